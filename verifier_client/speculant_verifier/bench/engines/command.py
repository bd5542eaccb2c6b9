"""``speculant bench engines``: our drafts in the engines that people run, beside what these bring."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress
    from speculant_verifier.bench.engines.methods import Files

_MIN_LENGTH = 512


class BenchEnginesSettings(CommandSettings):
    """Let engines continue the same prompts greedily, without drafts, with their own, and with ours, in turns.

    The model is the demo's, made wider with zeros that change nothing, so that a pass takes as long as one of 190
    million parameters. Engines come from 'make engines'; those that are not there are left out. Every prompt comes
    twice: new, and again when drafters may have learned from the first time. The exit status is 1 if drafts changed a
    token.
    """

    engines: Path = Path(".cache/engines")
    """Folder of the engines."""
    only: Literal["", "vllm", "llama-cpp-python", "llama-server"] = ""
    """Measure this engine alone."""
    methods: str = ""
    """Measure these ways of drafting alone, separated by semicolons, by the names that are printed without it; 'none'
    is always one."""
    width: Annotated[int, Field(ge=160)] = 1_024
    """Width of the model, at least 160, which engines need and pass in 2 ms."""
    batch: list[Annotated[int, Field(ge=1, le=64)]] = [1, 8]  # noqa: RUF012 - every instance gets its own copy
    """Sequences decoded together, by engines that can."""
    limit: Annotated[int, Field(ge=1)] = 24
    """Prompts: beginnings of functions."""
    max_tokens: Annotated[int, Field(ge=2)] = 60
    """Most new tokens of each, at least 2."""
    most_drafted: Annotated[int, Field(ge=1, le=64)] = 8
    """Most tokens drafted for a sequence in a step."""
    rounds: Annotated[int, Field(ge=1)] = 2
    """How often every prompt comes."""
    json_output: bool = False
    """Print one JSON object as the last line."""


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token."""
    settings = load_settings(BenchEnginesSettings, "bench engines", arguments)
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_verifier.bench.engines.measure import measure_engine
    from speculant_verifier.bench.engines.methods import installations
    from speculant_verifier.bench.engines.report import print_engines

    results = []
    found = [each for each in installations(settings.engines, settings.batch) if settings.only in ("", each.engine)]
    with show_progress() as progress, ExitStack() as stack:
        files = prompts = None
        for installation in found:
            if not installation.is_there:
                results.append({"engine": installation.engine, "skipped": "not installed; run: make engines"})
                continue
            if files is None:
                files, prompts = stack.enter_context(_files(settings, progress))
            assert prompts is not None
            results += measure_engine(installation, files, prompts, settings, progress)
    print_engines(results, arguments, as_json=settings.json_output)
    return int(any(not result.get("identical", True) for result in results))


@contextmanager
def _files(settings: BenchEnginesSettings, progress: BenchProgress) -> Iterator[tuple[Files, list[list[int]]]]:
    """Make what engines are given: the model twice, graphs, prompts, and a sidecar that runs inside of the block."""
    import numpy as np

    from speculant_graph.corpus.tokenize import CorpusTokenizer
    from speculant_graph.graph.build.builder import GraphBuilder, build_from_token_ids
    from speculant_graph.graph.llama_lookup import export_llama_lookup
    from speculant_graph.graph.store import load_graph, save_graph
    from speculant_verifier.bench.engine_models import pad_checkpoint
    from speculant_verifier.bench.engines.methods import Files
    from speculant_verifier.bench.gguf_model import write_gguf
    from speculant_verifier.bench.serve_processes import OwnDrafter
    from speculant_verifier.demo.corpus import beginnings, standard_library_files
    from speculant_verifier.demo.run import MODEL_FOLDER

    folder = Path(tempfile.mkdtemp(prefix="speculant-engines-"))
    drafter = None
    try:
        progress.begin("the demo's model, wider")
        wide, gguf = folder / "model", folder / "model.gguf"
        pad_checkpoint(MODEL_FOLDER, wide, settings.width, max(192, settings.width))
        write_gguf(wide, gguf)
        tokenizer = CorpusTokenizer.load(MODEL_FOLDER, special_tokens="parse")
        graph_path, helpless_path, lookup = (folder / name for name in ("graph.pkl", "helpless.pkl", "lookup.bin"))
        files = standard_library_files()
        GraphBuilder(tokenizer_name=str(MODEL_FOLDER)).build(files, graph_path, progress=progress.show_build)
        export_llama_lookup(load_graph(graph_path), lookup)
        shuffled = np.array([i for file in files for i in tokenizer.encode(file.read_text("utf-8", "replace"))])
        np.random.default_rng(0).shuffle(shuffled)
        save_graph(build_from_token_ids(shuffled, tokenizer.fingerprint, max_order=5), helpless_path)
        drafter = OwnDrafter(graph_path, f"unix://{folder}/drafter.sock")
        drafter.await_ready()
        prompts = [tokenizer.encode_prompt(text) for text in beginnings(settings.limit)]
        yield Files(wide, gguf, graph_path, helpless_path, lookup, drafter.address, folder), prompts
    finally:
        if drafter is not None:
            drafter.close()
        shutil.rmtree(folder, ignore_errors=True)
