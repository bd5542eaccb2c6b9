"""``speculant bench engines``: this project's drafts in other engines, compared with the engines' own drafts."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field

from speculant_graph.bench.processes import OwnDrafter, stop
from speculant_graph.bench.report import begin, print_report
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines.llama_cpp.lookup_table import export_llama_lookup
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.types import TokenId
from speculant_verifier.bench.decoding import Decoded, DecodedRow, Trials, interleaved
from speculant_verifier.bench.workload import BenchRequest, read_prompts
from speculant_verifier.demo.corpus import beginnings

EngineName = Literal["vllm", "llama-cpp-python", "llama-server"]
"""Name of an inference engine that can be measured."""

PROPOSER = "speculant_graph.engines.vllm.SpeculantProposer"
"""Path of this project's proposer class, as vLLM's configuration names it."""

_NONE, _OURS = "none", "speculant"
_MOST_DRAFTED = 8
_WORKER = "speculant_verifier.bench.engine_worker"
_PROGRAMS: dict[EngineName, str] = {
    "vllm": "vllm/bin/python", "llama-cpp-python": "llama-cpp/bin/python", "llama-server": "llama-server",
}  # fmt: skip
"""Path of each engine's Python interpreter or program, relative to the folder where ``make engines`` installs the
engines."""
_BATCHES: dict[EngineName, tuple[int, ...]] = {"vllm": (1, 8), "llama-cpp-python": (1,), "llama-server": (1,)}
_PROMPTS_PER_LIMIT = {1: 1, 8: 4}
"""Factor by which --limit is multiplied to get the number of prompts, for each batch size. Batches of eight need more
prompts, so that the measurement takes about as long as one with single prompts."""
_ROUNDS = (1, 2)
_LAST_LINES = 2
_STOP_S = 10.0


class BenchEnginesSettings(ReportingSettings):
    """Continue the same prompts greedily in each engine, interleaved: no drafts, the engine's drafts, and ours.

    'make engines' installs the engines; missing engines are skipped. Every prompt runs in two rounds; in the second
    round, drafters may have learned from the first. The measurement covers vLLM's V1 model runner, but not its V2 model
    runner. The exit status is 1 if drafts changed a token (except with vLLM in bfloat16). The exit status is also 1 if
    an engine that is installed or named by --only lacks a result without drafts or with our drafts.
    """

    model: Path
    """Folder of the checkpoint that vLLM serves."""
    graph_path: Path
    """Graph file of a corpus, built with the model's tokenizer."""
    gguf: Path | None = None
    """The same model as a GGUF file, for llama.cpp; if not given, llama.cpp is skipped."""
    prompts: Path | None = None
    """File of prompts: one per line, or JSON Lines with the field 'prompt'. By default, prompts are the first lines of
    functions of Python's standard library."""
    engines: Path = Path(".cache/engines")
    """Folder in which 'make engines' has installed the engines."""
    only: Literal["", "vllm", "llama-cpp-python", "llama-server"] = ""
    """Name of the only engine to measure; by default, all engines are measured."""
    dtype: Literal["float32", "bfloat16"] = "float32"
    """Data type of the model in vLLM. In bfloat16, drafts from any source may flip a choice between two nearly equal
    tokens."""
    limit: Annotated[int, Field(ge=1)] = 24
    """Maximum number of prompts that are decoded one at a time. In batches of eight, four times as many prompts are
    decoded."""
    max_tokens: Annotated[int, Field(ge=2)] = 60
    """Maximum number of new tokens per prompt, at least 2."""


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return the exit status."""
    settings = load_settings(BenchEnginesSettings, "bench engines", arguments)
    found: list[EngineName] = []
    results: list[dict[str, Any]] = []
    for engine in _BATCHES:
        if settings.only not in ("", engine):
            continue
        if not (settings.engines / _PROGRAMS[engine]).is_file():
            results.append({"engine": engine, "skipped": "not installed; run: make engines"})
        elif engine != "vllm" and settings.gguf is None:
            results.append({"engine": engine, "skipped": "no model; name one with --gguf"})
        else:
            found.append(engine)
    if found:
        tokenizer = CorpusTokenizer.load(settings.model, special_tokens="parse")
        most = settings.limit * max(_PROMPTS_PER_LIMIT[batch] for engine in found for batch in _BATCHES[engine])
        texts = read_prompts(settings.prompts, most) if settings.prompts else beginnings(most)
        requests = [BenchRequest(tuple(map(int, tokenizer.encode_prompt(each))), settings.max_tokens) for each in texts]
        with tempfile.TemporaryDirectory(prefix="speculant-engines-") as name:
            folder = Path(name)
            export_llama_lookup(NgramGraph.load(settings.graph_path), folder / "lookup.bin")
            with contextlib.closing(OwnDrafter(settings.graph_path, f"unix://{folder}/drafter.sock")):
                for engine in found:
                    for batch in _BATCHES[engine]:
                        chosen = requests[: settings.limit * _PROMPTS_PER_LIMIT[batch]]
                        results += _measure(engine, batch, settings, folder, chosen)
    for result in results:
        for each in result.get("differences", ()):
            where = f"request {each['request']} differs from token {each['token']} on"
            gap = f"the two best were {each['logprob_gap']:.2g} apart"
            sys.stderr.write(f"{result['engine']}, {result['method']}: {where}, where {gap}\n")
    print_report("engines", {"results": results}, arguments, as_json=settings.json_output)
    is_exact = settings.dtype == "float32"
    has_changed = any(not each.get("identical", True) and (is_exact or each["engine"] != "vllm") for each in results)
    measured = {(each["engine"], each["method"]) for each in results if "skipped" not in each}
    wanted = {*found, settings.only} - {""}
    return int(has_changed or any((engine, each) not in measured for engine in wanted for each in (_NONE, _OURS)))


def _methods(engine: EngineName, batch: int, graph: Path, folder: Path) -> dict[str, dict[str, Any]]:
    """Return the worker's parameters for each drafting method to measure in an engine, by method name."""
    width = ["--spec-draft-n-max", str(_MOST_DRAFTED)]
    cache = ["--spec-type", "ngram-cache", *width]
    sources: dict[str, dict[str, Any]] = {
        _OURS: {"graph_path": str(graph.absolute())},
        # Text that the sidecar has learned must not help later runs.
        f"{_OURS}, sidecar": {"client": {"address": f"unix://{folder}/drafter.sock", "tenant": f"{engine}-{batch}"}},
    }
    if engine == "llama-server":
        return {
            _NONE: {"flags": []},
            "ngram-simple": {"flags": ["--spec-type", "ngram-simple", *width]},
            "ngram-mod": {"flags": ["--spec-type", "ngram-mod"]},
            "ngram-cache": {"flags": cache},
            _OURS: {"flags": [*cache, "--lookup-cache-dynamic", str(folder / "lookup.bin")]},
        }
    if engine == "llama-cpp-python":
        return {_NONE: {}, "lookup": {}, **{method: {"settings": each} for method, each in sources.items()}}
    custom = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": _MOST_DRAFTED}
    ngram = {"method": "ngram", "num_speculative_tokens": _MOST_DRAFTED, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    return {
        _NONE: {},
        "ngram": {"speculative": ngram},
        "suffix": {"speculative": {"method": "suffix", "num_speculative_tokens": _MOST_DRAFTED}},
        **{method: {"speculative": custom, "additional": {"speculant": each}} for method, each in sources.items()},
    }


class Candidate:
    """An engine with one drafting method, running in its own process and controlled by orders."""

    def __init__(self, settings: BenchEnginesSettings, folder: Path, order: dict[str, Any]) -> None:
        """Start the engine's worker process.

        Args:
            settings: paths and options.
            folder: folder for the log of the process.
            order: the worker's parameters: engine, method, sizes, and parameters of the method.

        Raises:
            SpeculantError: the engine does not start.
        """
        engine: EngineName = order["engine"]
        program = (settings.engines / _PROGRAMS[engine]).absolute()
        model = settings.model if engine == "vllm" else settings.gguf
        assert model is not None
        self.draft_s: list[float] = []  # duration of each batch of drafts, if known
        self._log = folder / f"{engine}-{order['batch']}-{order['method'].replace(', ', '-')}.log"
        with self._log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [sys.executable if engine == "llama-server" else str(program), "-m", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                cwd=folder,  # engines must not read settings in the bench's folder
                start_new_session=True,
            )
        paths = {"program": str(program), "model": str(model.absolute()), "most_drafted": _MOST_DRAFTED}
        self._ask({**order, **paths, "dtype": settings.dtype})

    def decode(self, requests: Sequence[BenchRequest]) -> Decoded:
        """Continue prompts greedily. The result's first row holds the total number of steps of all prompts."""
        prompts = [list(request.prompt) for request in requests]
        answer = self._ask({"prompts": prompts, "max_tokens": requests[0].max_tokens})
        rows = [DecodedRow(ids) for ids in answer["ids"]]
        rows[0].num_steps = answer["passes"]
        self.draft_s = answer["draft_s"]
        return Decoded(rows, answer["seconds"])

    def gap(self, text: Sequence[TokenId]) -> float:
        """Return the difference between the log-probabilities of the two best next tokens."""
        return float(self._ask({"text": list(text)})["gap"])

    def close(self) -> None:
        """Close the worker's input, which makes it stop its engine and exit."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)
        stop(self._process)

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        if not line:
            self.close()
            lines = [each for each in self._log.read_text("utf-8", "replace").splitlines() if each.strip()]
            raise SpeculantError(f"it ended: {' / '.join(lines[-_LAST_LINES:]) or 'without a message'}")
        return json.loads(line)


def _measure(
    engine: EngineName,
    batch: int,
    settings: BenchEnginesSettings,
    folder: Path,
    requests: Sequence[BenchRequest],
) -> list[dict[str, Any]]:
    """Measure an engine at one batch size; return one result per drafting method and round."""
    longest = max(len(request.prompt) + request.max_tokens for request in requests) + _MOST_DRAFTED + 1
    running: dict[str, Candidate] = {}
    head = {"engine": engine, "batch": batch}
    results: list[dict[str, Any]] = []
    try:
        for method, extra in _methods(engine, batch, settings.graph_path, folder).items():
            begin(f"{engine}: {method} starts")
            order = {**head, "method": method, "max_length": 64 * -(-longest // 64), **extra}
            try:
                running[method] = Candidate(settings, folder, order)
            except SpeculantError as error:
                results.append({**head, "method": method, "skipped": str(error)})
            else:  # warm-up: the first calls compile and fill caches
                running[method].decode([replace(requests[0], max_tokens=4)])
        if _NONE not in running:
            return results
        variants = {method: candidate.decode for method, candidate in running.items()}
        for round_number in _ROUNDS:
            trials = interleaved(variants, requests, batch, begin(f"{engine}, round {round_number}"))
            for method in variants:
                each, differing = trials.statistics(method), _differences(trials, method, running[_NONE])
                results.append({
                    **head, "method": method, "round": round_number, "identical": not differing,
                    "differing": len(differing), "tokens": each.num_tokens,
                    "tokens_per_pass": round(each.mean_accepted_tokens, 3), "tokens_per_s": round(each.tokens_per_s, 1),
                    "speedup": round(each.tokens_per_s / trials.statistics(_NONE).tokens_per_s, 3),
                    "differences": differing,
                })  # fmt: skip
        for result in results:
            times = running[result["method"]].draft_s if result["method"] in running else []
            for percent in (50, 99):
                value = round(1e6 * float(np.percentile(times, percent)), 1) if times else None
                result[f"propose_us_p{percent}"] = value
    finally:
        for candidate in running.values():
            candidate.close()
    return results


def _differences(trials: Trials, method: str, plain: Candidate) -> list[dict[str, Any]]:
    """Return where a method diverges from plain decoding, and the log-probability gap of the two best tokens there."""
    found = []
    for index, length in trials.differences(method, _NONE):
        text = [*trials.requests[index].prompt, *trials.rows(_NONE)[index].token_ids[:length]]
        found.append({"request": index, "token": length, "logprob_gap": round(plain.gap(text), 6)})
    return found
