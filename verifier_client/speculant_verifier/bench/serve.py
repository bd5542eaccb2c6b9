"""``speculant bench serve``: many streams at a time from a service, plainly and with drafts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import Field, SecretStr

from speculant_graph.bench.processes import OwnDrafter, await_health, free_port, running_module
from speculant_graph.bench.report import BenchProgress, BenchSettings, ReportTable, print_report, show_progress, shown
from speculant_graph.errors import ConfigError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.settings import load_settings
from speculant_verifier.bench.serve_load import LoadClient, Reading
from speculant_verifier.bench.workload import read_prompts
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import beginnings, standard_library_files

_WAYS: dict[str, dict[str, Any]] = {"plain": {"speculant": {"speculation": "off"}}, "speculative": {}}
_COUNTS = ("steps", "drafted", "accepted", "steps_without_drafter")
_NUM_WARM_UP = 4
_DEADLINE_MS = 100


class BenchServeSettings(BenchSettings):
    """Ask a service for many streams at a time, without and with drafts interleaved.

    Without --url the demo's model is served for it, with a drafter of its own. The exit status is 1 if a request
    failed.
    """

    url: str = ""
    """A running service: the base URL of its API, ending in /v1."""
    api_key: SecretStr = SecretStr("")
    """Its key, if it wants one."""
    prompts: Path | None = None
    """Prompts: one a line, or JSON Lines with the field 'prompt'; if they are few they are used again, which drafts
    learn from. Without them the demo's library: functions are begun, each once."""
    streams: Annotated[int, Field(ge=1, le=4096)] = 50
    """Requests at the same time."""
    requests: Annotated[int, Field(ge=1, le=100_000)] = 250
    """Requests of a round; the n-th has the seed n."""
    rounds: Annotated[int, Field(ge=1, le=100)] = 2
    """Rounds of each way."""
    max_tokens: Annotated[int, Field(ge=1)] = 64
    """Tokens of each answer; the model's end is ignored."""
    temperature: Annotated[float, Field(ge=0)] = 0.0
    """How tokens are chosen."""
    kill_drafter: bool = False
    """Kill the drafter in the midst of every round with drafts and start it again; only without --url."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a request failed."""
    settings = load_settings(BenchServeSettings, "bench serve", arguments)
    if settings.url and settings.kill_drafter:
        raise ConfigError("--kill-drafter kills a drafter of the bench's own; leave it or --url out")
    with ExitStack() as stack:
        progress = stack.enter_context(show_progress())
        url, drafter = settings.url, None
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculant-")))
            url, drafter = stack.enter_context(_own_servers(folder, settings.streams, progress))
        rounds = asyncio.run(_play(settings, url, drafter, progress))
    figures = {"url": settings.url or None, **_figures(rounds, settings)}
    figures["drafter_kills"] = drafter.num_kills if drafter is not None else 0
    keys = ("tokens_per_s", "ttft_ms_p50", "ttft_ms_p99", "itl_ms_p50", "itl_ms_p99")
    headings = ("", "tokens/s of\nall streams", "first text\nms, p50", "\np99", "a token every\nms, p50", "\np99")
    lines = [(way, *(shown(figures[f"{way}_{key}"], ".1f") for key in keys)) for way in _WAYS]
    rows = [
        ("requests that failed", f"{figures['failed']} of {2 * settings.rounds * settings.requests}"),
        *((f"  {failure}", "") for failure in figures["failures"]),
        ("texts the same with and without drafts", "yes" if figures["identical"] else "no"),
        ("faster with drafts: times", shown(figures["speedup"], ".2f")),
        ("tokens a step", shown(figures["mean_accepted_tokens"], ".2f")),
        ("drafted tokens accepted", shown(figures["acceptance_rate"], ".0%")),
        ("the drafter was killed", f"{figures['drafter_kills']} times"),
        ("steps without it", f"{figures['steps_without_drafter']}"),
    ]
    tables = [ReportTable(headings, lines, f"{settings.streams} streams")]
    print_report("serve", rows, figures, arguments, as_json=settings.json_output, tables=tables)
    return int(bool(figures["failed"]))


@contextmanager
def _own_servers(folder: Path, num_streams: int, progress: BenchProgress) -> Iterator[tuple[str, OwnDrafter]]:
    """Serve the demo's model in processes of their own; yield the API's address, and the drafter."""
    graph = folder / "graph.pkl"
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER))
    builder.build(standard_library_files(), graph, progress=progress.show_build)
    progress.begin("starting the drafter and the verifier")
    with closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter:
        port, address = free_port(), f"unix://{folder}/verifier.sock"
        arguments = [
            "verifier", "--model", str(MODEL_FOLDER), "--listen", address, "--http", f"127.0.0.1:{port}",
            "--verifier.prefix-cache", "0",  # every way reads the prompts itself
            "--address", drafter.address, "--client.deadline-ms", str(_DEADLINE_MS), "--strategy", "tree",
            "--max-batch-size", str(num_streams), "--num-threads", "1", "--log-level", "WARNING",
        ]  # fmt: skip
        with running_module("speculant_graph.cli.main", arguments) as verifier:
            await_health(verifier, address)
            yield f"http://127.0.0.1:{port}/v1", drafter


async def _play(
    settings: BenchServeSettings, url: str, drafter: OwnDrafter | None, progress: BenchProgress
) -> dict[str, list[list[Reading]]]:
    """Return the answers of every way and round."""
    client = LoadClient(url, settings.api_key.get_secret_value(), settings.streams)
    fields = {
        "model": await client.model(), "max_tokens": settings.max_tokens, "temperature": settings.temperature,
        "ignore_eos": True,
    }  # fmt: skip
    if settings.prompts is None:
        prompts = beginnings(settings.rounds * settings.requests + 1)
    else:
        prompts = read_prompts(settings.prompts, None)
    await client.play([prompts[-1]] * _NUM_WARM_UP, fields, lambda *_: None)  # first uses are slow
    rounds: dict[str, list[list[Reading]]] = {way: [] for way in _WAYS}
    for index in range(settings.rounds):
        first = index * settings.requests
        asked = [prompts[i % len(prompts)] for i in range(first, first + settings.requests)]
        for way, extra in _WAYS.items():
            show = progress.begin(f"{way}, round {index + 1}")
            may_kill = asyncio.Event()

            def tell(done: int, total: int, show: Any = show, may_kill: asyncio.Event = may_kill) -> None:
                show(done, total)
                if 4 * done >= total:
                    may_kill.set()

            async with asyncio.TaskGroup() as group:
                if settings.kill_drafter and way == "speculative" and drafter is not None:
                    group.create_task(_kill(drafter, may_kill))
                rounds[way].append(await client.play(asked, {**fields, **extra}, tell))
    return rounds


async def _kill(drafter: OwnDrafter, may_kill: asyncio.Event) -> None:
    """Kill a drafter and start it again in the midst of a round."""
    await may_kill.wait()
    await asyncio.to_thread(drafter.kill_and_start)


def _figures(rounds: Mapping[str, list[list[Reading]]], settings: BenchServeSettings) -> dict[str, Any]:
    figures: dict[str, Any] = settings.model_dump(
        include={"streams", "requests", "rounds", "max_tokens", "temperature"}
    )
    failures = [each.failure for way in rounds.values() for one in way for each in one if each.failure]
    texts = [[[reading.text for reading in one] for one in way] for way in rounds.values()]
    figures |= {"failed": len(failures), "failures": sorted(set(failures))[:5]}
    figures["identical"] = not failures and all(each == texts[0] for each in texts)
    for way, played in rounds.items():
        whole = [one for readings in played if (one := [each for each in readings if not each.failure])]
        seconds = sum(max(each.ended_s for each in one) - min(each.started_s for each in one) for one in whole)
        answers = [reading for one in whole for reading in one]
        figures[f"{way}_tokens_per_s"] = sum(each.num_tokens for each in answers) / seconds if whole else 0.0
        spoken = [each for each in answers if each.text]
        times = {
            "ttft_ms": [each.first_s - each.started_s for each in spoken],
            "itl_ms": [(each.ended_s - each.first_s) / (each.num_tokens - 1) for each in spoken if each.num_tokens > 1],
        }
        for key, values in times.items():
            for percent in (50, 99):
                value = 1e3 * float(np.percentile(values, percent)) if values else None
                figures[f"{way}_{key}_p{percent}"] = value
    # Of the last way, which has drafts.
    counts = {key: sum(each.statistics.get(key, 0) for each in answers) for key in _COUNTS}
    plain = figures["plain_tokens_per_s"]
    return figures | {
        "mean_accepted_tokens": 1.0 + counts["accepted"] / counts["steps"] if counts["steps"] else None,
        "acceptance_rate": counts["accepted"] / counts["drafted"] if counts["drafted"] else None,
        "steps_without_drafter": counts["steps_without_drafter"],
        "speedup": figures["speculative_tokens_per_s"] / plain if plain else None,
    }
