"""Engines with one way of drafting each, in processes of their own that are sent orders."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speculant_graph.errors import SpeculantError
from speculant_verifier.bench.statistics import Decoded, DecodedRow
from speculant_verifier.bench.workload import BenchRequest

EngineName = Literal["vllm", "llama-cpp-python", "llama-server"]
"""An engine."""

NONE, OURS = "none", "speculant"
"""Methods: without drafts, and with ours."""
PROPOSER = "speculant_graph.engines.vllm.SpeculantProposer"
MOST_DRAFTED = 8
"""Tokens drafted for a sequence in a step."""

_WORKER = "speculant_verifier.bench.engine_worker"
_PROGRAMS: dict[EngineName, str] = {
    "vllm": "vllm/bin/python", "llama-cpp-python": "llama-cpp/bin/python", "llama-server": "llama-server",
}  # fmt: skip
_STOP_S = 10.0
_LAST_LINES = 2


@dataclass(frozen=True, slots=True)
class EngineFiles:
    """What all engines are given."""

    engines: Path
    """Where ``make engines`` puts them."""
    model: Path
    """Checkpoint for vLLM."""
    gguf: Path | None
    """The same model for llama.cpp."""
    graph: Path
    """Graph of a corpus."""
    lookup: Path
    """The corpus as llama.cpp's lookup cache."""
    sidecar: str
    """Address of a drafter that serves the graph."""
    folder: Path
    """For messages."""


def program_of(engine: EngineName, folder: Path) -> Path:
    """Return where ``make engines`` puts an engine's Python, or its program."""
    return (folder / _PROGRAMS[engine]).absolute()


def orders_of(engine: EngineName, files: EngineFiles, batch: int) -> dict[str, dict[str, Any]]:
    """Return the ways of drafting of an engine, by name, and what its worker gets for each."""
    width = ["--spec-draft-n-max", str(MOST_DRAFTED)]
    cache = ["--spec-type", "ngram-cache", *width]
    sources: dict[str, dict[str, Any]] = {
        OURS: {"graph_path": str(files.graph.absolute())},
        # What earlier runs taught the sidecar is no help for a later one.
        f"{OURS}, sidecar": {"client": {"address": files.sidecar, "tenant": f"{engine}-{batch}"}},
    }
    custom = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": MOST_DRAFTED}
    ngram = {"method": "ngram", "num_speculative_tokens": MOST_DRAFTED, "prompt_lookup_min": 2, "prompt_lookup_max": 5}
    suffix = {"method": "suffix", "num_speculative_tokens": MOST_DRAFTED}
    orders: dict[EngineName, dict[str, dict[str, Any]]] = {
        "vllm": {
            NONE: {},
            "ngram": {"speculative": ngram},
            "suffix": {"speculative": suffix},
            **{method: {"speculative": custom, "additional": {"speculant": each}} for method, each in sources.items()},
        },
        "llama-cpp-python": {
            NONE: {},
            "lookup": {},
            **{method: {"settings": each} for method, each in sources.items()},
        },
        "llama-server": {
            NONE: {"flags": []},
            "ngram-simple": {"flags": ["--spec-type", "ngram-simple", *width]},
            "ngram-mod": {"flags": ["--spec-type", "ngram-mod"]},
            "ngram-cache": {"flags": cache},
            OURS: {"flags": [*cache, "--lookup-cache-dynamic", str(files.lookup)]},
        },
    }
    return orders[engine]


class Candidate:
    """An engine that is running with one way of drafting."""

    def __init__(self, engine: EngineName, method: str, files: EngineFiles, order: dict[str, Any]) -> None:
        """Start it.

        Args:
            engine: the engine.
            method: the way of drafting.
            files: where everything is.
            order: what its worker gets: sizes, and what belongs to the method.

        Raises:
            SpeculantError: it does not start.
        """
        program = program_of(engine, files.engines)
        model = files.model if engine == "vllm" else files.gguf
        assert model is not None
        self._log = files.folder / f"{engine}-{order['batch']}-{method.replace(', ', '-')}.log"
        with self._log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [sys.executable if engine == "llama-server" else str(program), "-m", _WORKER],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                cwd=files.folder,  # settings of the bench's folder are not for engines
                start_new_session=True,
            )
        self._ask({
            **order, "engine": engine, "method": method, "program": str(program), "model": str(model.absolute()),
            "most_drafted": MOST_DRAFTED,
        })  # fmt: skip

    def decode(self, requests: Sequence[BenchRequest]) -> Decoded:
        """Continue prompts, greedily. Steps are counted for all of them together, in the first row."""
        prompts = [list(request.prompt) for request in requests]
        answer = self._ask({"prompts": prompts, "max_tokens": requests[0].max_tokens})
        rows = [DecodedRow(ids) for ids in answer["ids"]]
        rows[0].num_steps = answer["passes"]
        return Decoded(rows, answer["seconds"])

    def draft_times(self) -> list[float]:
        """Return how long each batch of drafts took, seconds, where that is known."""
        return [float(seconds) for seconds in self._ask({"times": True})["times"]]

    def close(self) -> None:
        """End it: without orders it ends in its own way."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        try:
            self._process.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

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
