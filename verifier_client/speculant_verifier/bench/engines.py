"""``speculant bench engines``: our drafts in the engines that people run, beside what these bring."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from speculant_graph.bench.progress import BenchProgress, show_progress
from speculant_graph.bench.report import ReportTable, print_report
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.llama_lookup import export_llama_lookup
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.settings import CommandSettings, load_settings
from speculant_verifier.bench.engine_candidates import (
    MOST_DRAFTED,
    NONE,
    Candidate,
    EngineFiles,
    EngineName,
    orders_of,
    program_of,
)
from speculant_verifier.bench.serve_processes import OwnDrafter
from speculant_verifier.bench.trials import interleaved
from speculant_verifier.bench.workload import BenchRequest, read_prompts
from speculant_verifier.demo.corpus import beginnings

_BATCHES: dict[EngineName, tuple[int, ...]] = {"vllm": (1, 8), "llama-cpp-python": (1,), "llama-server": (1,)}
_ROUNDS = (1, 2)


class BenchEnginesSettings(CommandSettings):
    """Let engines continue the same prompts greedily, without drafts, with their own, and with ours, interleaved.

    Engines come from 'make engines'; those that are not there are left out. Every prompt comes twice: new, and again
    when drafters may have learned from the first time. The exit status is 1 if drafts changed a token.
    """

    model: Path
    """Folder of the checkpoint that vLLM serves."""
    graph_path: Path
    """Graph of a corpus, built with the model's tokenizer."""
    gguf: Path | None = None
    """The same model as llama.cpp wants it; without it llama.cpp is left out."""
    prompts: Path | None = None
    """Prompts: one a line, or JSON Lines with the field 'prompt'; without them beginnings of functions of Python's
    standard library."""
    engines: Path = Path(".cache/engines")
    """Folder of the engines."""
    only: Literal["", "vllm", "llama-cpp-python", "llama-server"] = ""
    """Measure this engine alone."""
    limit: Annotated[int, Field(ge=1)] = 24
    """Most prompts."""
    max_tokens: Annotated[int, Field(ge=2)] = 60
    """Most new tokens of each, at least 2."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token."""
    settings = load_settings(BenchEnginesSettings, "bench engines", arguments)
    found: list[EngineName] = []
    results: list[dict[str, Any]] = []
    for engine in _BATCHES:
        if settings.only not in ("", engine):
            continue
        if not program_of(engine, settings.engines).is_file():
            results.append({"engine": engine, "skipped": "not installed; run: make engines"})
        elif engine != "vllm" and settings.gguf is None:
            results.append({"engine": engine, "skipped": "no model; name one with --gguf"})
        else:
            found.append(engine)
    if found:
        with show_progress() as progress, _files(settings) as (files, requests):
            for engine in found:
                for batch in _BATCHES[engine]:
                    results += _measure(engine, batch, files, requests, progress)
    rows, tables = _shown(results)
    print_report("engines", rows, {"results": results}, arguments, as_json=settings.json_output, tables=tables)
    return int(any(not result.get("identical", True) for result in results))


@contextmanager
def _files(settings: BenchEnginesSettings) -> Iterator[tuple[EngineFiles, list[BenchRequest]]]:
    """Make what engines are given, with a sidecar that runs inside of the block."""
    tokenizer = CorpusTokenizer.load(settings.model, special_tokens="parse")
    texts = read_prompts(settings.prompts, settings.limit) if settings.prompts else beginnings(settings.limit)
    requests = [BenchRequest(tuple(map(int, tokenizer.encode_prompt(text))), settings.max_tokens) for text in texts]
    with tempfile.TemporaryDirectory(prefix="speculant-engines-") as name:
        folder = Path(name)
        lookup = folder / "lookup.bin"
        export_llama_lookup(NgramGraph.load(settings.graph_path), lookup)
        with closing(OwnDrafter(settings.graph_path, f"unix://{folder}/drafter.sock")) as drafter:
            drafter.await_ready()
            yield (
                EngineFiles(
                    settings.engines,
                    settings.model,
                    settings.gguf,
                    settings.graph_path,
                    lookup,
                    drafter.address,
                    folder,
                ),
                requests,
            )


def _measure(
    engine: EngineName, batch: int, files: EngineFiles, requests: Sequence[BenchRequest], progress: BenchProgress
) -> list[dict[str, Any]]:
    """Return one result for each way of drafting and round."""
    longest = max(len(request.prompt) + request.max_tokens for request in requests) + MOST_DRAFTED + 1
    sizes = {"batch": batch, "max_length": 64 * -(-longest // 64)}
    running: dict[str, Candidate] = {}
    head = {"engine": engine, "batch": batch}
    results: list[dict[str, Any]] = []
    try:
        for method, order in orders_of(engine, files, batch).items():
            progress.begin(f"{engine}: {method} starts")
            try:
                running[method] = Candidate(engine, method, files, {**sizes, **order})
            except SpeculantError as error:
                results.append({**head, "method": method, "skipped": str(error)})
            else:  # first calls compile and fill caches
                running[method].decode([replace(requests[0], max_tokens=4)])
        if NONE not in running:
            return results
        ways = {method: candidate.decode for method, candidate in running.items()}
        for round_number in _ROUNDS:
            trials = interleaved(ways, requests, batch, progress.teller(f"{engine}, round {round_number}"))
            for method in ways:
                each = trials.statistics(method)
                results.append({
                    **head, "method": method, "round": round_number, "identical": trials.is_identical(method, NONE),
                    "tokens": each.num_tokens, "tokens_per_pass": round(each.mean_accepted_tokens, 3),
                    "tokens_per_s": round(each.tokens_per_s, 1),
                    "speedup": round(each.tokens_per_s / trials.statistics(NONE).tokens_per_s, 3),
                })  # fmt: skip
        for result in results:
            times = running[result["method"]].draft_times() if result["method"] in running else []
            for percent in (50, 99):
                value = round(1e6 * float(np.percentile(times, percent)), 1) if times else None
                result[f"propose_us_p{percent}"] = value
    finally:
        for candidate in running.values():
            candidate.close()
    return results


def _shown(results: Sequence[Mapping[str, Any]]) -> tuple[list[tuple[str, str]], list[ReportTable]]:
    """Return what is printed: a line for each engine, batch size, way of drafting and round."""
    lines = [
        (
            f"{each['engine']}, batch {each['batch']}: {each['method']}",
            str(each["round"]),
            f"{each['tokens_per_pass']:.2f}",
            f"{each['tokens_per_s']:.0f}",
            f"×{each['speedup']:.2f}",
            *("–" if each[key] is None else f"{each[key]:.0f}" for key in ("propose_us_p50", "propose_us_p99")),
            "yes" if each["identical"] else "NO",
        )
        for each in results
        if "skipped" not in each
    ]
    headings = (
        "", "round", "tokens\na pass", "tokens/s", "against\nnone", "propose\nµs, p50", "\np99", "same\ntokens",
    )  # fmt: skip
    rows = [
        (f"{each['engine']} {each.get('method', '')}".strip(), each["skipped"]) for each in results if "skipped" in each
    ]
    return rows, [ReportTable(headings, lines)] if lines else []
