"""``speculant bench serve``: measures many concurrent streams from a service, with and without drafts."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import httpx2
import numpy as np
from pydantic import Field, SecretStr

from speculant_graph.bench.processes import OwnDrafter, await_health, free_port, running_module
from speculant_graph.bench.report import Progress, begin, print_report, show_build
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.rpc.addresses import MAX_PORT, host_stays_local
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_verifier.bench.workload import read_prompts
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import beginnings, standard_library_files

_VARIANTS: dict[str, dict[str, Any]] = {"plain": {"speculant": {"speculation": "off"}}, "speculative": {}}
_COUNTS = ("steps", "drafted", "accepted", "steps_without_drafter")
_NUM_WARM_UP = 4
_DEADLINE_MS = 100
_TIMEOUT_S = 600.0


class BenchServeSettings(ReportingSettings):
    """Send many concurrent streams to a service, in alternating rounds without and with drafts.

    Without --url, the command serves the demo model itself, together with a drafter. The exit status is 1 if a request
    failed.
    """

    url: str = ""
    """Base URL of a running service's API, ending in /v1."""
    api_key: SecretStr = SecretStr("")
    """API key of the service, if it requires a key."""
    prompts: Path | None = None
    """File of prompts: one per line, or JSON Lines with the field 'prompt'. If there are too few prompts, they are
    reused, and drafters learn from the repetition. By default, each prompt is the beginning of a different function of
    the demo's library."""
    streams: Annotated[int, Field(ge=1, le=4096)] = 50
    """Concurrent requests."""
    requests: Annotated[int, Field(ge=1, le=100_000)] = 250
    """Number of requests per round; request n uses seed n."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """Number of rounds without drafts; the same number of rounds runs with drafts."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Number of tokens of each answer; the model's end token is ignored."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """Sampling temperature."""
    kill_drafter: bool = False
    """Kill and restart the drafter after a quarter of every round with drafts; not allowed together with --url."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return 1 if a request failed."""
    settings = load_settings(BenchServeSettings, "bench serve", arguments)
    if settings.url:
        _require_url(settings.url)
    if settings.url and settings.kill_drafter:
        raise ConfigError("--kill-drafter needs the bench's own drafter; leave it or --url out")
    with ExitStack() as stack:
        url, drafter = settings.url.rstrip("/"), None
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculant-")))
            url, drafter = stack.enter_context(_own_servers(folder, settings.streams))
        rounds = asyncio.run(_play(settings, url, drafter))
    figures = {"url": settings.url or None, **_figures(rounds, settings)}
    figures["drafter_kills"] = drafter.num_kills if drafter is not None else 0
    print_report("serve", figures, arguments, as_json=settings.json_output)
    return int(bool(figures["failed"]))


@contextmanager
def _own_servers(folder: Path, num_streams: int) -> Iterator[tuple[str, OwnDrafter]]:
    """Serve the demo model in separate processes; yield the API's address and the drafter."""
    graph = folder / "graph.pkl"
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER))
    builder.build(standard_library_files(), graph, progress=show_build())
    begin("starting the drafter and the verifier")
    with closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter:
        port, address = free_port(), f"unix://{folder}/verifier.sock"
        arguments = [
            "verifier", "--model", str(MODEL_FOLDER), "--listen", address, "--http", f"127.0.0.1:{port}",
            "--verifier.prefix-cache", "0",  # every variant prefills the prompts itself
            "--address", drafter.address, "--client.deadline-ms", str(_DEADLINE_MS), "--strategy", "tree",
            "--max-batch-size", str(num_streams), "--num-threads", "1", "--log-level", "WARNING",
        ]  # fmt: skip
        with running_module("speculant_graph.cli.main", arguments) as verifier:
            await_health(verifier, address)
            yield f"http://127.0.0.1:{port}/v1", drafter


@dataclass(slots=True)
class Answer:
    """One response, as its client sees it."""

    started_s: float = 0.0
    first_s: float = 0.0
    """Time at which the first text of the response arrived, in seconds."""
    ended_s: float = 0.0
    text: str = ""
    num_tokens: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """The server's statistics about the response, from the last event of the stream."""
    failure: str = ""
    """Why the response is incomplete; empty if complete."""


async def _play(settings: BenchServeSettings, url: str, drafter: OwnDrafter | None) -> dict[str, list[list[Answer]]]:
    """Send all requests of all rounds; return the responses by variant and round."""
    if settings.prompts is None:
        prompts = beginnings(settings.rounds * settings.requests + 1)
    else:
        prompts = read_prompts(settings.prompts, None)
    key = settings.api_key.get_secret_value()
    rounds: dict[str, list[list[Answer]]] = {variant: [] for variant in _VARIANTS}
    async with httpx2.AsyncClient(
        base_url=url,
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=_TIMEOUT_S,
        trust_env=not host_stays_local(httpx2.URL(url).host),  # no proxy for a local server
        limits=httpx2.Limits(max_connections=settings.streams, max_keepalive_connections=settings.streams),
    ) as session:
        fields = {
            "model": await _model(session), "max_tokens": settings.max_tokens, "temperature": settings.temperature,
            "ignore_eos": True, "stream": True, "stream_options": {"include_usage": True},
        }  # fmt: skip
        # First requests are slow.
        await _ask_all(session, [prompts[-1]] * _NUM_WARM_UP, fields, settings.streams, lambda *_: None)
        for index in range(settings.rounds):
            first = index * settings.requests
            asked = [prompts[i % len(prompts)] for i in range(first, first + settings.requests)]
            for variant, extra in _VARIANTS.items():
                show = begin(f"{variant}, round {index + 1}")
                may_kill = asyncio.Event()

                def tell(done: int, total: int, show: Progress = show, may_kill: asyncio.Event = may_kill) -> None:
                    show(done, total)
                    if 4 * done >= total:
                        may_kill.set()

                async with asyncio.TaskGroup() as group:
                    if settings.kill_drafter and variant == "speculative" and drafter is not None:
                        group.create_task(_kill(drafter, may_kill))
                    rounds[variant].append(await _ask_all(session, asked, {**fields, **extra}, settings.streams, tell))
    return rounds


def _require_url(url: str) -> None:
    """Reject an invalid URL.

    Raises:
        ConfigError: the URL is not an HTTP URL.
    """
    try:
        found = httpx2.URL(url)
        is_right = found.scheme in ("http", "https") and found.host and (found.port or 0) <= MAX_PORT
    except httpx2.InvalidURL:
        is_right = False
    if not is_right:
        raise ConfigError(f"--url: {url!r} is not the URL of a server; write http://host:port/v1")


async def _model(session: httpx2.AsyncClient) -> str:
    """Return the name of the served model.

    Raises:
        SpeculantError: no OpenAI-compatible server answers at the URL.
    """
    try:
        answer = await session.get("models")
        return str(answer.raise_for_status().json()["data"][0]["id"])
    except (httpx2.HTTPError, ValueError, LookupError) as error:
        raise SpeculantError(
            f"there is no OpenAI-compatible server at {session.base_url} ({error or type(error).__name__}); "
            "start one with 'speculant verifier', and end --url in /v1"
        ) from error


async def _ask_all(
    session: httpx2.AsyncClient, prompts: Sequence[str], fields: Mapping[str, Any], num_streams: int, tell: Progress
) -> list[Answer]:
    """Send all prompts with limited concurrency; prompt n has seed n. Failed requests are recorded, not raised."""
    answers = [Answer() for _ in prompts]
    waiting = iter(enumerate(prompts))
    num_done = 0

    async def work() -> None:
        nonlocal num_done
        for index, prompt in waiting:
            await _ask(session, {**fields, "prompt": prompt, "seed": index}, answers[index])
            num_done += 1
            tell(num_done, len(prompts))

    async with asyncio.TaskGroup() as group:
        for _ in range(num_streams):
            group.create_task(work())
    return answers


async def _ask(session: httpx2.AsyncClient, body: Mapping[str, Any], answer: Answer) -> None:
    answer.started_s = time.perf_counter()
    answer.failure = "the stream ended early"
    try:
        async with session.stream("POST", "completions", json=body) as response:
            if response.status_code != httpx2.codes.OK:
                answer.failure = f"status {response.status_code}: {(await response.aread()).decode()[:200]}"
                return
            async for line in response.aiter_lines():
                if line == "data: [DONE]":
                    answer.failure = ""
                elif line.startswith("data: "):
                    event = json.loads(line.removeprefix("data: "))
                    if "error" in event:
                        answer.failure = str(event["error"].get("message", "an error"))
                        return
                    _take(answer, event)
    except (httpx2.HTTPError, ValueError) as error:
        answer.failure = str(error) or type(error).__name__
    answer.ended_s = time.perf_counter()


def _take(answer: Answer, event: Mapping[str, Any]) -> None:
    for choice in event["choices"]:
        if choice["text"] and not answer.text:
            answer.first_s = time.perf_counter()
        answer.text += choice["text"]
    if usage := event.get("usage"):
        answer.num_tokens = usage["completion_tokens"]
    answer.statistics = event.get("speculant") or answer.statistics


async def _kill(drafter: OwnDrafter, may_kill: asyncio.Event) -> None:
    """Kill and restart the drafter as soon as ``may_kill`` is set during a round."""
    await may_kill.wait()
    await asyncio.to_thread(drafter.kill_and_start)


def _figures(rounds: Mapping[str, list[list[Answer]]], settings: BenchServeSettings) -> dict[str, Any]:
    figures: dict[str, Any] = settings.model_dump(
        include={"streams", "requests", "rounds", "max_tokens", "temperature"}
    )
    failures = [each.failure for variant in rounds.values() for one in variant for each in one if each.failure]
    texts = [[[answer.text for answer in one] for one in variant] for variant in rounds.values()]
    figures |= {"failed": len(failures), "failures": sorted(set(failures))[:5]}
    figures["identical"] = not failures and all(each == texts[0] for each in texts)
    for variant, played in rounds.items():
        whole = [one for answers in played if (one := [each for each in answers if not each.failure])]
        seconds = sum(max(each.ended_s for each in one) - min(each.started_s for each in one) for one in whole)
        answers = [each for one in whole for each in one]
        figures[f"{variant}_tokens_per_s"] = sum(each.num_tokens for each in answers) / seconds if whole else 0.0
        spoken = [each for each in answers if each.text]
        times = {
            "ttft_ms": [each.first_s - each.started_s for each in spoken],
            "itl_ms": [(each.ended_s - each.first_s) / (each.num_tokens - 1) for each in spoken if each.num_tokens > 1],
        }
        for key, values in times.items():
            for percent in (50, 99):
                value = 1e3 * float(np.percentile(values, percent)) if values else None
                figures[f"{variant}_{key}_p{percent}"] = value
    # The last variant has drafts.
    counts = {key: sum(each.statistics.get(key, 0) for each in answers) for key in _COUNTS}
    plain = figures["plain_tokens_per_s"]
    return figures | {
        "mean_accepted_tokens": 1.0 + counts["accepted"] / counts["steps"] if counts["steps"] else None,
        "acceptance_rate": counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
        "steps_without_drafter": counts["steps_without_drafter"],
        "speedup": figures["speculative_tokens_per_s"] / plain if plain else None,
    }
