"""What the demo does, step by step; :mod:`.report` lays it out."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from speculant_graph.bench.processes import await_health, running_module
from speculant_graph.cli.graphs import show_progress
from speculant_graph.client import DrafterClient, NullDrafter
from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import GraphError
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.log import log_to_stderr
from speculant_verifier.console import quiet_transformers
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.command import DemoSettings
from speculant_verifier.demo.corpus import standard_library_files
from speculant_verifier.demo.prompts import PROMPTS
from speculant_verifier.demo.report import DemoReport, Outcome
from speculant_verifier.model import TargetModel


def run_demo(settings: DemoSettings, arguments: Sequence[str]) -> int:
    """Run everything and print the comparison; 0 if all texts are identical, else 1."""
    report = DemoReport(arguments)
    quiet_transformers()
    log_to_stderr("WARNING")
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory(prefix="speculant-"))
        folder = settings.folder or Path(temporary)
        graph_path = _graph(folder, report)
        # The socket is always in the short temporary path: socket names are limited to about 100 characters.
        address = f"unix://{temporary}/drafter.sock"
        command = ["--listen", address, "--graph", str(graph_path), "--log-level", "WARNING"]
        process = stack.enter_context(running_module("speculant_drafter", command))
        await_health(process, address)
        report.show_line(f"sidecar: process {process.pid} serves it at {address}")
        # One thread: matrices this small gain nothing from more, and threads that wait for each other would fight
        # with the sidecar for the cores.
        target = TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", num_threads=1))
        report.show_line(f"model:   {sum(p.numel() for p in target.model.parameters()):,} parameters, {target.device}")
        client = DrafterClient(
            # Otherwise what the first run accepted would be in the graph for the one that is measured.
            ClientConfig(address=address, deadline_ms=100.0, learn=False),
            tokenizer=target.fingerprint,
            draft=settings.draft,
            wants_proposals=False,
        )
        stack.callback(client.close)
        plain = SpeculativeDecoder(drafter=NullDrafter(), target=target, draft_config=DraftConfig(k=0))
        speculative = SpeculativeDecoder(drafter=client, target=target, draft_config=settings.draft)
        for index, prompt in enumerate(PROMPTS, start=1):
            report.show_prompt(index, len(PROMPTS), prompt)
            shown = [  # also the warm-up: printing is not measured
                report.show_stream(name, decoder.stream(prompt, settings.generation))
                for name, decoder in (("plain", plain), ("speculative", speculative))
            ]
            outcome = _measure(prompt, plain, speculative, client, settings)
            report.add(outcome, identical=outcome.identical and shown[0].token_ids == shown[1].token_ids)
    return report.finish(as_json=settings.json_output)


def _graph(folder: Path, report: DemoReport) -> Path:
    path = folder / "standard_library.pkl"
    tokenizer = CorpusTokenizer.load(MODEL_FOLDER)
    if path.is_file():
        try:
            if NgramGraph.load(path).metadata.tokenizer.sha256 == tokenizer.fingerprint.sha256:
                report.show_line(f"graph:   {path} is there already")
                return path
        except GraphError:
            pass  # of an older release: build it again
    files = standard_library_files()
    folder.mkdir(parents=True, exist_ok=True)
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER))
    with show_progress() as progress:
        graph = builder.build(files, path, progress=progress)
    report.show_line(
        f"graph:   {graph.metadata.num_tokens:,} tokens of {len(files)} standard library files, "
        f"{sum(graph.metadata.transitions_per_order):,} transitions, {path.stat().st_size / 1e6:.0f} MB"
    )
    return path


def _measure(
    prompt: str,
    plain: SpeculativeDecoder,
    speculative: SpeculativeDecoder,
    client: DrafterClient,
    settings: DemoSettings,
) -> Outcome:
    """Decode in turn, so that a noisy moment hits both, and take medians of the times."""
    config: GenerationConfig = settings.generation
    plain_results, speculative_results = [], []
    round_trips_s: list[float] = []
    for _ in range(settings.rounds):
        plain_results.append(plain.generate(prompt, config))
        before = client.statistics.steps
        speculative_results.append(speculative.generate(prompt, config))
        steps = client.statistics.steps - before
        round_trips_s += client.statistics.round_trip_s[-steps:] if steps else ()
    reference, last = plain_results[0], speculative_results[-1]
    return Outcome(
        prompt=prompt,
        num_tokens=len(reference.token_ids),
        plain_s=median(result.times.total_s for result in plain_results),
        speculative_s=median(result.times.total_s for result in speculative_results),
        num_steps=last.num_steps,
        num_drafted=last.num_drafted,
        num_accepted=last.num_accepted,
        num_steps_without_drafter=sum(result.num_steps_without_drafter for result in speculative_results),
        round_trips_s=tuple(round_trips_s),
        identical=all(result.token_ids == reference.token_ids for result in plain_results + speculative_results),
    )
