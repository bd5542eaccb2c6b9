"""Measures how long the core holds its locks, and a client's delay while another client opens long prompts.

    python tests/perf/locks.py [--graph FILE] [--learned 1000000] [--sessions 10000] [--steps 1000] [--deadline-ms 20]

It measures holds by kind of lock while prompts of 65k and 128k tokens arrive, and while a tenant's learned text fills
up. It measures the memory of sessions that do not learn. It also times steps of eight rows over a sidecar, alone and
while another client repeatedly opens prompts of 128k tokens. By default the graph is of Python's standard library. The
last line is a JSON object.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from speculant_graph import _core
from speculant_graph.bench.processes import OwnDrafter
from speculant_graph.bench.texts import drawn_texts, words_of_standard_library
from speculant_graph.config import DraftConfig
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.machine import anonymous_bytes, describe_machine
from speculant_graph.rpc import convert
from speculant_graph.rpc.channel import connect_channel
from speculant_graph.rpc.step_messages import OpenRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import SequenceStep

SERVICE = "/speculant_graph.rpc.v1.DrafterService/"
PROMPTS = (65_536, 131_072)
ROWS, K, TOKENS_PER_STEP, WARM_UP, PAUSE_S = 8, 8, 3, 50, 0.004
LEARNED_PIECE = 500


def holds_during(work: Callable[[], object]) -> dict[str, object]:
    """Return the number of holds of each kind of lock during ``work``, and the longest hold in milliseconds."""
    _core.record_lock_holds(True)
    _core.take_lock_holds()
    start_s = time.perf_counter()
    work()
    figures: dict[str, object] = {"call_ms": round(1e3 * (time.perf_counter() - start_s), 2)}
    for kind, (count, longest_ns) in _core.take_lock_holds().items():
        if count:
            figures[kind] = {"holds": count, "longest_ms": round(longest_ns / 1e6, 3)}
    _core.record_lock_holds(False)
    return figures


def measure_holds(graph: NgramGraph, text: np.ndarray[Any, Any], num_learned: int) -> dict[str, object]:
    """Measure holds while taking long prompts, in one call each, and while filling learned text, text by text."""
    drafter = SessionDrafter(graph, DraftConfig(strategy="tree", k=K))
    figures: dict[str, object] = {}
    for size in PROMPTS:
        prompt = np.resize(text, size)

        def take(size: int = size, prompt: np.ndarray[Any, Any] = prompt) -> None:
            drafter.open(size)
            drafter.accept(size, prompt)
            drafter.draft([SequenceStep(size, (), K)])

        figures[f"prompt_{size}"] = holds_during(take)
        drafter.close(size)
    memory = LearnedStore(num_learned).memory("")
    pieces = [np.array(np.roll(text, -start)[:LEARNED_PIECE]) for start in range(0, num_learned, LEARNED_PIECE)]
    figures["store_fills"] = holds_during(lambda: [memory.core.add(piece) for piece in pieces])
    return figures


def measure_sessions(graph: NgramGraph, text: np.ndarray[Any, Any], num_sessions: int) -> dict[str, object]:
    """Measure sessions that do not learn, each with a prompt of 200 tokens and eight steps with target top-k rows."""
    drafter = SessionDrafter(graph, DraftConfig(strategy="tree", k=K))
    drafter.open(0, learn=True)
    drafter.accept(0, text[:200])
    drafter.recycle(0, [0], [[1, 2, 3, 4]])
    drafter.accept(0, text[200:202])
    before = anonymous_bytes()
    for number in range(1, num_sessions + 1):
        drafter.open(number)
        start = number * 7 % (len(text) - 300)
        drafter.accept(number, text[start : start + 200])
        for step in range(8):
            drafter.draft([SequenceStep(number, (), K)])
            drafter.recycle(number, [0], [text[start : start + 4]])
            drafter.accept(number, text[start + 200 + 4 * step : start + 204 + 4 * step])
    counted = sum(map(drafter.num_bytes, range(1, num_sessions + 1)))
    return {
        "sessions": num_sessions,
        "counted_mb": round(counted / 1e6, 1),
        "resident_mb": round((anonymous_bytes() - before) / 1e6, 1),
    }


def steps_of(address: str, texts: list[list[int]], num_steps: int) -> list[float]:
    """Return the milliseconds of each step of a batch; steps are a few milliseconds apart."""
    ids = range(1_000, 1_000 + ROWS)
    times_ms = []
    with connect_channel(address) as channel:
        open_session: Any = channel.unary_unary(SERVICE + "OpenSession", None, None)
        draft: Any = channel.unary_unary(SERVICE + "Draft", None, None)
        close: Any = channel.unary_unary(SERVICE + "CloseSession", None, None)
        for number in ids:
            open_session(convert.encode_open_request(OpenRequest(number)).SerializeToString())
        start = 0
        for step in range(num_steps):
            end = 200 + TOKENS_PER_STEP * step
            request = convert.request_writer()
            for number, each in zip(ids, texts, strict=True):
                request.add(each[start:end], number, start, K)
            payload = request.payload()
            start, start_s = end, time.perf_counter()
            draft(payload)
            times_ms.append(1e3 * (time.perf_counter() - start_s))
            time.sleep(PAUSE_S)
        for number in ids:
            close(pb.CloseSessionRequest(session_id=number).SerializeToString())
    return times_ms[WARM_UP:]


def open_long_prompts(address: str, prompt: list[int], opened: Any, is_over: Any) -> None:
    """Repeatedly open a session with a long prompt and close it."""
    with connect_channel(address) as channel:
        calls = {
            name: channel.unary_unary(SERVICE + name, None, None) for name in ("OpenSession", "Draft", "CloseSession")
        }
        request = convert.request_writer()
        request.add(prompt, 7, 0, K)
        messages = {
            "OpenSession": convert.encode_open_request(OpenRequest(7)).SerializeToString(),
            "Draft": request.payload(),
            "CloseSession": pb.CloseSessionRequest(session_id=7).SerializeToString(),
        }
        while not is_over.is_set():
            for name, message in messages.items():
                calls[name](message)
            with opened.get_lock():
                opened.value += 1


def late(times_ms: list[float], deadline_ms: float) -> dict[str, object]:
    """Return percentiles of step times, and the number of missed deadlines."""
    p50, p99 = np.percentile(times_ms, [50, 99])
    return {
        "p50_ms": round(float(p50), 2),
        "p99_ms": round(float(p99), 2),
        "longest_ms": round(max(times_ms), 2),
        "late": round(sum(each > deadline_ms for each in times_ms) / len(times_ms), 4),
    }


def measure_service(graph: NgramGraph, path: Path, num_steps: int, deadline_ms: float) -> dict[str, object]:
    """Measure steps of eight rows over a sidecar, alone and with another client's long prompts."""
    texts = drawn_texts(graph, ROWS + 1, max(200 + TOKENS_PER_STEP * num_steps, 2_000))
    context = multiprocessing.get_context("spawn")
    prompt = np.resize(texts.pop(), PROMPTS[-1]).tolist()
    opened, is_over = context.Value("i", 0), context.Event()
    with tempfile.TemporaryDirectory() as folder, closing(OwnDrafter(path, f"unix://{folder}/drafter.sock")) as drafter:
        alone = steps_of(drafter.address, texts, num_steps)
        stranger = context.Process(target=open_long_prompts, args=(drafter.address, prompt, opened, is_over))
        stranger.start()
        while not opened.value:
            time.sleep(0.05)
        before, start_s = opened.value, time.perf_counter()
        beside = steps_of(drafter.address, texts, num_steps)
        per_s = (opened.value - before) / (time.perf_counter() - start_s)
        is_over.set()
        stranger.join()
    return {
        "alone": late(alone, deadline_ms),
        "beside_long_prompts": late(beside, deadline_ms),
        "prompts_per_s": round(per_s, 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--graph", type=Path)
    parser.add_argument("--learned", type=int, default=1_000_000)
    parser.add_argument("--sessions", type=int, default=10_000)
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--deadline-ms", type=float, default=20.0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = arguments.graph or Path(folder) / "graph.pkl"
        if arguments.graph is None:
            build_from_token_ids(*words_of_standard_library()).save(path)
        graph = NgramGraph.load(path)
        text = np.array(drawn_texts(graph, 1, 200_000)[0], np.int64)
        report = {
            "holds": measure_holds(graph, text, arguments.learned),
            "sessions": measure_sessions(graph, text, arguments.sessions),
            "service": measure_service(graph, path, arguments.steps, arguments.deadline_ms),
            "machine": describe_machine(),
        }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
