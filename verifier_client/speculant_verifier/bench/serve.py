"""``speculant bench serve``: many streams at a time from a service, plainly and with drafts."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field, SecretStr

from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress
    from speculant_verifier.bench.serve_load import Reading
    from speculant_verifier.bench.serve_processes import OwnDrafter

_WAYS: dict[str, dict[str, Any]] = {"plain": {"speculant": {"speculation": "off"}}, "speculative": {}}


class BenchServeSettings(CommandSettings):
    """Ask a service for many streams at a time, in turns without and with drafts.

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
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if a request failed."""
    settings = load_settings(BenchServeSettings, "bench serve", arguments)
    if settings.url and settings.kill_drafter:
        raise ConfigError("--kill-drafter kills a drafter of the bench's own; leave it or --url out")
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_graph.bench.report import print_report
    from speculant_verifier.bench.serve_processes import own_servers

    with ExitStack() as stack:
        progress = stack.enter_context(show_progress())
        url, drafter = settings.url, None
        if not url:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="speculant-")))
            url, drafter = stack.enter_context(own_servers(folder, settings.streams, progress))
        readings = asyncio.run(_play(settings, url, drafter, progress))
    figures = {"url": settings.url or None, **_figures(readings, settings)}
    figures["drafter_kills"] = drafter.num_kills if drafter is not None else 0
    print_report("serve", _rows(figures), figures, arguments, as_json=settings.json_output)
    return int(bool(figures["failed"]))


async def _play(
    settings: BenchServeSettings, url: str, drafter: OwnDrafter | None, progress: BenchProgress
) -> dict[str, list[list[Reading]]]:
    """Return the answers of every way and round."""
    from speculant_verifier.bench.serve_load import LoadClient, LoadPlan
    from speculant_verifier.bench.serve_processes import killing

    options = {"max_tokens": settings.max_tokens, "temperature": settings.temperature, "ignore_eos": True}
    prompts = _prompts(settings)
    client = LoadClient(url, settings.api_key.get_secret_value())
    model = await client.model()
    await client.play(LoadPlan(prompts[-1:], 4, 4, options), model, {}, lambda *_: None)  # first uses are slow
    rounds: dict[str, list[list[Reading]]] = {way: [] for way in _WAYS}
    for number in range(settings.rounds):
        first = number * settings.requests
        asked = [prompts[place % len(prompts)] for place in range(first, first + settings.requests)]
        for way, extra in _WAYS.items():
            tells = [progress.teller(f"{way}, round {number + 1}")]
            with ExitStack() as stack:
                if settings.kill_drafter and way == "speculative" and drafter is not None:
                    tells.append(stack.enter_context(killing(drafter)))
                plan = LoadPlan(asked, settings.requests, settings.streams, options)
                rounds[way].append(await client.play(plan, model, extra, _told(tells)))
    return rounds


def _told(tells: Sequence[Callable[[int, int], None]]) -> Callable[[int, int], None]:
    def tell_all(done: int, total: int) -> None:
        for tell in tells:
            tell(done, total)

    return tell_all


def _prompts(settings: BenchServeSettings) -> Sequence[str]:
    if settings.prompts is not None:
        from speculant_verifier.bench.cases import read_prompts

        return read_prompts(settings.prompts, None)
    from speculant_verifier.demo.corpus import beginnings

    return beginnings(settings.rounds * settings.requests + 1)


def _figures(rounds: Mapping[str, list[list[Reading]]], settings: BenchServeSettings) -> dict[str, Any]:
    import numpy as np

    figures: dict[str, Any] = {
        "streams": settings.streams, "requests": settings.requests, "rounds": settings.rounds,
        "max_tokens": settings.max_tokens, "temperature": settings.temperature,
    }  # fmt: skip
    everything = [reading for way in rounds.values() for readings in way for reading in readings]
    failures = [reading.failure for reading in everything if reading.failure]
    texts = [[[reading.text for reading in readings] for readings in way] for way in rounds.values()]
    figures["failed"], figures["failures"] = len(failures), sorted(set(failures))[:5]
    figures["identical"] = not failures and all(each == texts[0] for each in texts)
    for way, played in rounds.items():
        whole = [[reading for reading in readings if not reading.failure] for readings in played]
        spans = [max(each.ended_s for each in one) - min(each.started_s for each in one) for one in whole if one]
        answers = [reading for one in whole for reading in one]
        num_tokens = sum(reading.num_tokens for reading in answers)
        figures[f"{way}_tokens_per_s"] = num_tokens / sum(spans) if answers else 0.0
        first = [1e3 * (each.first_s - each.started_s) for each in answers if each.text]
        rest = [
            1e3 * (each.ended_s - each.first_s) / (each.num_tokens - 1)
            for each in answers
            if each.text and each.num_tokens > 1
        ]
        for key, values in (("ttft_ms", first), ("itl_ms", rest)):
            for percent in (50, 99):
                figures[f"{way}_{key}_p{percent}"] = float(np.percentile(values, percent)) if values else None
        ratios = []
        for readings in played:  # those that began together
            rates = [each.tokens_per_s for each in readings[: settings.streams] if each.num_tokens]
            ratios += [max(rates) / min(rates)] if rates else []
        figures[f"{way}_fastest_by_slowest"] = max(ratios) if ratios else None
        if way == "speculative":
            steps = sum(each.statistics.get("steps", 0) for each in answers)
            drafted = sum(each.statistics.get("drafted", 0) for each in answers)
            accepted = sum(each.statistics.get("accepted", 0) for each in answers)
            figures["mean_accepted_tokens"] = 1.0 + accepted / steps if steps else None
            figures["acceptance_rate"] = accepted / drafted if drafted else None
            figures["steps_without_drafter"] = sum(each.statistics.get("steps_without_drafter", 0) for each in answers)
    plain = figures["plain_tokens_per_s"]
    figures["speedup"] = figures["speculative_tokens_per_s"] / plain if plain else None
    return figures


def _rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    def shown(key: str, pattern: str) -> str:
        return "–" if figures[key] is None else pattern.format(figures[key])

    rows = [
        ("requests that failed", f"{figures['failed']} of {2 * figures['rounds'] * figures['requests']}"),
        *((f"  {failure}", "") for failure in figures["failures"]),
        ("texts the same with and without drafts", "yes" if figures["identical"] else "no"),
    ]
    for way in _WAYS:
        rows += [
            (f"{way}: tokens/s of all {figures['streams']} streams", shown(f"{way}_tokens_per_s", "{:.0f}")),
            ("  first text after, p50 and p99", f"{shown(f'{way}_ttft_ms_p50', '{:.0f}')} and "
             f"{shown(f'{way}_ttft_ms_p99', '{:.0f} ms')}"),
            ("  a token every, p50 and p99", f"{shown(f'{way}_itl_ms_p50', '{:.1f}')} and "
             f"{shown(f'{way}_itl_ms_p99', '{:.1f} ms')}"),
            ("  fastest stream by slowest, of those begun together", shown(f"{way}_fastest_by_slowest", "×{:.2f}")),
        ]  # fmt: skip
    return [
        *rows,
        ("faster with drafts", shown("speedup", "×{:.2f}")),
        ("tokens a step, accepted of drafted", f"{shown('mean_accepted_tokens', '{:.2f}')}, "
         f"{shown('acceptance_rate', '{:.0%}')}"),
        ("the drafter was killed; steps without it", f"{figures['drafter_kills']} times; "
         f"{figures['steps_without_drafter']}"),
    ]  # fmt: skip
