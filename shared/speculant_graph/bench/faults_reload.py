"""Requests while the graph under them is replaced again and again, by one whose texts go on otherwise."""

from __future__ import annotations

import asyncio
import itertools
import os
import secrets
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import numpy as np

from speculant_graph.bench.faults_clients import BUDGET, quantiles, run_in_loop
from speculant_graph.bench.faults_server import FaultyServer, Stage, running_drafter
from speculant_graph.draft.generator import DraftGenerator
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.channel import connect_channel_async
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterAdminServiceStub, DrafterServiceStub

_CALLERS = 8
_STEPS_OF_SESSION = 5
_MODEL_S = 0.02
_CONTEXT_TOKENS = 8
_MOST_CONTEXTS = 500
_TIMEOUT_S = 30.0
_FEWEST_RELOADS = 3

_Answers = tuple[dict[int, tuple[int, ...]], dict[int, tuple[int, ...]]]


@dataclass(slots=True)
class _Phase:
    """What came of one phase's requests."""

    seconds: list[float] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    answers: list[tuple[int, int, tuple[int, ...]]] = field(default_factory=list)
    """Context, generation named, and tokens."""
    moved: int = 0
    """Steps of a session that were not of the generation it was opened on."""


def measure_reload(stage: Stage, num_requests: int) -> dict[str, Any]:
    """Ask for drafts while graphs are replaced; return the figures.

    Args:
        stage: graph and texts; its graph is one of the two.
        num_requests: requests of each phase: without reloads, and with them.

    Raises:
        SpeculantError: the graphs hardly differ.
    """
    stage.tell("reload: counting the other graph", 0, 0)
    other = build_from_token_ids(stage.token_ids[::-1], stage.graph.metadata.tokenizer, max_order=stage.graph.max_order)
    files = stage.path, stage.folder / "other.pkl"
    other.save(files[1])
    contexts, expected = _contexts(stage, other)
    live = stage.folder / "live.pkl"
    os.link(files[0], live)
    with running_drafter(stage, graph=live) as server:
        quiet, busy, order, took_s = run_in_loop(_measure(stage, server, files, live, contexts, num_requests))
    generations = dict(enumerate(order, start=1))
    checked = [*quiet.answers, *busy.answers]
    neither = sum(tokens not in (expected[0][place], expected[1][place]) for place, _, tokens in checked)
    misnamed = sum(
        generation not in generations or tokens != expected[generations[generation]][place]
        for place, generation, tokens in checked
    )
    failures = [*quiet.failures, *busy.failures]
    return {
        "requests": len(busy.seconds) + len(busy.failures),
        "quiet_requests": len(quiet.seconds) + len(quiet.failures),
        "reloads": len(order) - 1,
        "reloads_per_s": round((len(order) - 1) / took_s, 2),
        "failures": len(failures),
        "failure": failures[0] if failures else "",
        "neither": neither,
        "misnamed": misnamed - neither,
        "moved_sessions": quiet.moved + busy.moved,
        "generations_answered": len({generation for _, generation, _ in busy.answers}),
        "ms": quantiles(busy.seconds or [0.0], 1e-3),
        "quiet_ms": quantiles(quiet.seconds or [0.0], 1e-3),
    }


def _contexts(stage: Stage, other: NgramGraph) -> tuple[list[list[int]], _Answers]:
    """Return contexts that the two graphs draft different tokens for, and these tokens by the context's place."""
    generators = DraftGenerator(stage.graph), DraftGenerator(other)
    contexts: list[list[int]] = []
    expected: _Answers = ({}, {})
    random = np.random.default_rng(0)
    for _ in range(20 * _MOST_CONTEXTS):
        text = stage.texts[int(random.integers(len(stage.texts)))]
        start = int(random.integers(max(len(text) - _CONTEXT_TOKENS, 1)))
        context = text[start : start + _CONTEXT_TOKENS]
        first, second = (each.draft(context, BUDGET, "greedy").token_ids for each in generators)
        if first and second and first != second:
            expected[0][len(contexts)], expected[1][len(contexts)] = tuple(first), tuple(second)
            contexts.append(context)
        if len(contexts) == _MOST_CONTEXTS:
            break
    if not contexts:
        raise SpeculantError("the two graphs do not differ; give --tokens a larger number")
    return contexts, expected


async def _measure(
    stage: Stage, server: FaultyServer, files: tuple[Path, Path], live: Path, contexts: list[list[int]], requests: int
) -> tuple[_Phase, _Phase, list[int], float]:
    """Return both phases, which file each generation is of, and the seconds that reloads went on."""
    async with connect_channel_async(server.address) as channel, connect_channel_async(server.admin_address) as admin:
        stub = DrafterServiceStub(channel)  # type: ignore[no-untyped-call]
        quiet = await _ask(stage, "reload: requests without reloads", stub, contexts, requests)
        order, done = [0], asyncio.Event()

        async def reload() -> None:
            reloads = DrafterAdminServiceStub(admin)  # type: ignore[no-untyped-call]
            while not done.is_set() or len(order) <= _FEWEST_RELOADS:
                which = 1 - order[-1]
                staged = live.with_suffix(".staged")
                os.link(files[which], staged)
                staged.replace(live)
                try:
                    answer = await reloads.ReloadGraph(pb.ReloadGraphRequest(name=live.stem), timeout=_TIMEOUT_S)
                except grpc.aio.AioRpcError as error:
                    raise SpeculantError(f"a reload failed ({error.details()}); run it again") from error
                order.append(which)
                if answer.graph.generation != len(order):
                    raise SpeculantError("generations of a graph do not count up; report this as a bug")

        started_s = time.perf_counter()
        reloading = asyncio.create_task(reload())
        try:
            busy = await _ask(stage, "reload: requests with reloads", stub, contexts, requests)
            done.set()
            await reloading
        finally:
            reloading.cancel()
        return quiet, busy, order, time.perf_counter() - started_s


async def _ask(stage: Stage, label: str, stub: Any, contexts: list[list[int]], num_requests: int) -> _Phase:
    """Have callers ask at the same time, every other one by sessions, until there were enough requests."""
    phase = _Phase()

    async def step(place: int, session_id: int = 0, sent: int = 0) -> int:
        """Ask for one draft; return the generation that it says it is of, 0 after a failure."""
        stage.tell(label, min(len(phase.seconds), num_requests), num_requests)
        context = contexts[place]
        request = pb.DraftRequest(
            session_ids=[session_id], positions=[sent], context_lengths=[len(context)], context_tokens=context,
            node_budgets=[BUDGET], options=pb.StrategyOptions(strategy=pb.STRATEGY_GREEDY),
        )  # fmt: skip
        started_s = time.perf_counter()
        try:
            answer = await stub.Draft(request, timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            phase.failures.append(f"{error.code().name}: {error.details()}")
            return 0
        phase.seconds.append(time.perf_counter() - started_s)
        if list(answer.sequence_statuses) != [pb.SEQUENCE_STATUS_OK]:
            phase.failures.append(f"sequence status {list(answer.sequence_statuses)}")
            return 0
        phase.answers.append((place, answer.graph_generation, tuple(answer.draft_tokens)))
        await asyncio.sleep(_MODEL_S)
        return int(answer.graph_generation)

    async def session(places: itertools.count[int]) -> None:
        session_id = secrets.randbits(63) + 1
        try:
            opened = await stub.OpenSession(pb.OpenSessionRequest(session_id=session_id), timeout=_TIMEOUT_S)
            for turn in range(_STEPS_OF_SESSION):
                generation = await step(next(places) % len(contexts), session_id, turn * _CONTEXT_TOKENS)
                phase.moved += generation not in (0, opened.graph_generation)
            await stub.CloseSession(pb.CloseSessionRequest(session_id=session_id), timeout=_TIMEOUT_S)
        except grpc.aio.AioRpcError as error:
            phase.failures.append(f"{error.code().name}: {error.details()}")

    async def call(number: int) -> None:
        places = itertools.count(number * 101)
        while len(phase.seconds) + len(phase.failures) < num_requests:
            if number % 2:
                await session(places)
            else:
                await step(next(places) % len(contexts))

    await asyncio.gather(*(call(number) for number in range(_CALLERS)))
    return phase
