"""Which ways of drafting an engine is measured with, and how each is started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from speculant_verifier.bench.engines.contenders import Contender, LlamaServer, WorkerContender

EngineName = Literal["vllm", "llama-cpp-python", "llama-server"]
"""An engine."""

NONE, OURS, HELPLESS = "none", "speculant", "speculant, no help"
"""Methods: without drafts, with ours, and with ours where the graph is of no use."""
PROPOSER = "speculant_graph.engines.vllm.SpeculantProposer"


@dataclass(frozen=True, slots=True)
class Files:
    """What all engines are given."""

    checkpoint: Path
    """Folder of the model."""
    gguf: Path
    """The same model for llama.cpp."""
    graph: Path
    """Graph of the corpus."""
    helpless: Path
    """A graph that is of no use for the prompts."""
    lookup: Path
    """The corpus as llama.cpp's lookup cache."""
    sidecar: str
    """Address of a drafter that serves the graph."""
    folder: Path
    """For messages."""


@dataclass(frozen=True, slots=True)
class Installation:
    """Where an engine is."""

    engine: EngineName
    path: Path
    """Its Python, or its program."""
    batches: tuple[int, ...]
    """Batch sizes to measure."""

    @property
    def is_there(self) -> bool:
        """Whether it is installed."""
        return self.path.is_file()


def installations(folder: Path, batches: Sequence[int]) -> list[Installation]:
    """Return where ``make engines`` puts the engines."""
    return [
        Installation("vllm", folder / "vllm" / "bin" / "python", tuple(batches)),
        Installation("llama-cpp-python", folder / "llama-cpp" / "bin" / "python", (1,)),
        Installation("llama-server", folder / "llama-server", (1,)),
    ]


def methods_of(
    installation: Installation, files: Files, batch: int, most_drafted: int, max_length: int
) -> dict[str, Callable[[], Contender]]:
    """Return the ways of drafting of an engine, by name, as what starts them."""
    if installation.engine == "llama-server":
        return _llama_server(installation, files, most_drafted, max_length)
    ours: dict[str, dict[str, Any]] = {
        OURS: {"graph_path": str(files.graph)},
        # What earlier runs taught the sidecar is no help for a later one.
        f"{OURS}, sidecar": {"client": {"address": files.sidecar, "tenant": f"{installation.engine}-{batch}"}},
        HELPLESS: {"graph_path": str(files.helpless), "draft": {"sources": ["corpus"]}},
    }
    common: dict[str, Any] = {"batch": batch, "max_length": max_length, "most_drafted": most_drafted}
    orders: dict[str, dict[str, Any]] = {}
    if installation.engine == "vllm":
        worker, common["model"] = "vllm_worker", str(files.checkpoint)
        for method, own in (("ngram", {"prompt_lookup_min": 2, "prompt_lookup_max": 5}), ("suffix", {})):
            orders[method] = {"speculative": {"method": method, "num_speculative_tokens": most_drafted, **own}}
        custom = {"method": "custom_class", "model": PROPOSER, "num_speculative_tokens": most_drafted}
        for method, settings in ours.items():
            orders[method] = {"speculative": custom, "additional": {"speculant": settings}}
    else:
        worker, common["model"] = "llama_worker", str(files.gguf)
        orders["lookup"] = {"method": "lookup", "settings": {}}
        for method, settings in ours.items():
            orders[method] = {"method": method, "settings": settings}
    orders = {NONE: {"method": NONE}, **orders}

    def starting(method: str, order: dict[str, Any]) -> Callable[[], Contender]:
        log = files.folder / f"{installation.engine}-{batch}-{method.replace(', ', '-').replace(' ', '-')}.log"
        return lambda: WorkerContender(installation.path, worker, {**common, **order}, log)

    return {method: starting(method, order) for method, order in orders.items()}


def _llama_server(
    installation: Installation, files: Files, most_drafted: int, max_length: int
) -> dict[str, Callable[[], Contender]]:
    def starting(method: str, *arguments: str) -> Callable[[], Contender]:
        log = files.folder / f"llama-server-{method}.log"
        return lambda: LlamaServer(installation.path, files.gguf, max_length, arguments, log)

    width = ("--spec-draft-n-max", str(most_drafted))
    return {
        NONE: starting(NONE),
        "ngram-simple": starting("simple", "--spec-type", "ngram-simple", *width),
        "ngram-mod": starting("mod", "--spec-type", "ngram-mod"),
        "ngram-cache": starting("cache", "--spec-type", "ngram-cache", *width),
        OURS: starting("export", "--spec-type", "ngram-cache", "--lookup-cache-dynamic", str(files.lookup), *width),
    }
