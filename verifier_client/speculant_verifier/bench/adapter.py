"""``speculant bench adapter``: a draft model beside n-grams and alone, and what it learns from recorded requests."""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Field

from speculant_graph.config_learning import DraftModelConfig
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.model import TargetModel

PLAIN, NGRAMS, MODEL, BOTH = "plain", "tree", "model", "tree with the model"


_TURN = 2
"""Requests of each row in a turn; at its end rows wait for the slowest request."""


class BenchAdapterSettings(CommandSettings):
    """Decode the demo model's prompts plainly, by n-grams, by the demo's draft model, and by both, in turns.

    The prompts are of three kinds: text that the draft model knows, text that the graph holds, and text that neither
    does. The exit status is 1 if drafts changed a token.
    """

    limit: Annotated[int, Field(ge=1)] = 24
    """Prompts of each kind."""
    max_tokens: Annotated[int, Field(ge=8)] = 96
    """Most new tokens of each, at least 8."""
    batch: Annotated[int, Field(ge=1, le=64)] = 1
    """Requests decoded together."""
    draft_model: DraftModelConfig = DraftModelConfig()
    """Another draft model than the demo's."""
    loop: bool = False
    """Measure something else: collect, train, gate and swap, by the documented commands, and requests of a domain that
    the draft model never saw before and after."""
    json_output: bool = False
    """Print one JSON object as the last line."""


@dataclass(slots=True)
class _Tally:
    """What one way of decoding did with prompts of one kind."""

    num_tokens: int = 0
    num_passes: int = 0
    seconds: float = 0.0

    def figures(self, plain: _Tally) -> dict[str, Any]:
        return {
            "tokens_per_pass": round(self.num_tokens / self.num_passes, 4),
            "tokens_per_s": round(self.num_tokens / self.seconds, 3),
            "speedup": round(self.num_tokens / self.seconds / (plain.num_tokens / plain.seconds), 4),
        }


def run(arguments: Sequence[str]) -> int:
    """Measure and print; 1 if drafts changed a token."""
    settings = load_settings(BenchAdapterSettings, "bench adapter", arguments)
    from speculant_graph.bench.replay_progress import show_progress
    from speculant_verifier.console import quiet_transformers

    quiet_transformers()
    from speculant_verifier.demo.run import DRAFT_MODEL_FOLDER

    draft_model = settings.draft_model
    if not draft_model.name:
        draft_model = draft_model.model_copy(update={"name": str(DRAFT_MODEL_FOLDER)})
    with show_progress() as progress, tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        if settings.loop:
            from speculant_verifier.bench.adapter_loop import measure_loop, print_loop

            figures = measure_loop(draft_model, settings.limit, settings.max_tokens, Path(folder), progress)
        else:
            figures = _measure(settings, draft_model, Path(folder), progress)
    (print_loop if settings.loop else _print)(figures, arguments, as_json=settings.json_output)
    return int(not figures.get("identical", True))


def _measure(
    settings: BenchAdapterSettings, draft_model: DraftModelConfig, folder: Path, progress: BenchProgress
) -> dict[str, Any]:
    from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.demo.run import MODEL_FOLDER
    from speculant_verifier.model import TargetModel

    progress.begin("loading models")
    config = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=settings.batch)
    target = TargetModel.load(config)
    graph = folder / "graph.pkl"
    kinds = _kinds(settings, target, graph, progress)
    progress.begin("measuring passes")
    ways = {
        PLAIN: SpeculativeDecoder(None, config, DraftConfig(k=0), target=target),
        NGRAMS: SpeculativeDecoder(graph, config, DraftConfig(), target=target),
        MODEL: SpeculativeDecoder(None, config, DraftConfig(strategy="model"), draft_model=draft_model, target=target),
        BOTH: SpeculativeDecoder(graph, config, DraftConfig(), draft_model=draft_model, target=target),
    }
    warming = [text for prompts in kinds.values() for text in prompts[settings.limit :]]
    tallies = {kind: {way: _Tally() for way in ways} for kind in kinds}
    groups = [
        (kind, prompts[start : min(start + _TURN * settings.batch, settings.limit)])
        for kind, prompts in kinds.items()
        for start in range(0, settings.limit, _TURN * settings.batch)
    ]
    random.Random(0).shuffle(groups)
    generation = GenerationConfig(max_tokens=settings.max_tokens)
    identical = True
    tell = progress.teller("decoding")
    for decoder in ways.values():
        decoder.generate(warming, generation)  # of others: they learn from what they write
    for done, (kind, prompts) in enumerate(groups):
        tell(done, len(groups))
        outputs = []
        for way in random.Random(done).sample(list(ways), len(ways)):
            outputs.append(_decode(ways[way], prompts, generation, tallies[kind][way]))
        identical &= all(output == outputs[0] for output in outputs)
    tell(1, 1)
    for decoder in ways.values():
        decoder.close()
    return {
        "identical": identical,
        "batch": settings.batch,
        "prompts": settings.limit,
        "pass_cost": _pass_cost(ways[BOTH], settings.batch),
        "kinds": {kind: _figures_of(by_way) for kind, by_way in tallies.items()},
        "tree_tokens_per_s": _overall(tallies, NGRAMS),
        "model_tokens_per_s": _overall(tallies, MODEL),
        "tree_with_model_tokens_per_s": _overall(tallies, BOTH),
    }


def _overall(tallies: Mapping[str, Mapping[str, _Tally]], way: str) -> float:
    parts = [by_way[way] for by_way in tallies.values()]
    return round(sum(each.num_tokens for each in parts) / sum(each.seconds for each in parts), 3)


def _decode(decoder: SpeculativeDecoder, prompts: Sequence[str], generation: Any, tally: _Tally) -> list[Any]:
    started_s = time.perf_counter()
    results = decoder.generate(list(prompts), generation)
    tally.seconds += time.perf_counter() - started_s
    for result in results:
        tally.num_tokens += len(result.token_ids)
        tally.num_passes += result.num_steps
    return [result.token_ids for result in results]


def _figures_of(by_way: Mapping[str, _Tally]) -> dict[str, Any]:
    figures = {way: tally.figures(by_way[PLAIN]) for way, tally in by_way.items()}
    best = max(figures[NGRAMS]["tokens_per_s"], figures[MODEL]["tokens_per_s"])
    return figures | {"both_over_better": round(figures[BOTH]["tokens_per_s"] / best, 4)}


def _pass_cost(decoder: SpeculativeDecoder, batch: int) -> float | None:
    """Return what a pass of the draft model takes, as a share of one of the target, both over one token of each row."""
    from speculant_verifier.speculation import load_or_measure
    from speculant_verifier.speculation.cost_measure import batches_up_to

    assert decoder.costs is not None
    assert decoder.adapters is not None
    own = load_or_measure(decoder.adapters.model, batches_up_to(batch))
    return round(own.ms(batch, 1) / decoder.costs.ms(batch, 1), 4)


def _kinds(
    settings: BenchAdapterSettings, target: TargetModel, graph: Path, progress: BenchProgress
) -> dict[str, list[str]]:
    """Build the graph of a part of what the draft model never saw; return prompts of every kind.

    Only functions that the demo model goes on to write are prompts. Behind those that were asked for there are some to
    warm up with.
    """
    from speculant_graph.config import DraftConfig, GenerationConfig
    from speculant_graph.graph.build.builder import GraphBuilder
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.demo.corpus import beginnings_of, draft_files, training_files

    unknown = draft_files()[1]
    in_graph = [path for path in unknown if "http" in path.parts or "json" in path.parts]
    files = {
        "the draft model knows it": [path for path in training_files()[0] if path not in unknown],
        "the graph holds it": in_graph,
        "neither": [path for path in unknown if path not in in_graph],
    }
    GraphBuilder(tokenizer_name=target.fingerprint.name).build(in_graph, graph, progress=progress.show_build)
    plain = SpeculativeDecoder(None, None, DraftConfig(k=0), target=target)
    generation = GenerationConfig(max_tokens=settings.max_tokens)
    kinds: dict[str, list[str]] = {}
    tell = progress.teller("choosing prompts")
    for number, (kind, paths) in enumerate(files.items()):
        tell(number, len(files))
        found = beginnings_of(paths)
        random.Random(0).shuffle(found)
        kinds[kind] = []
        for text in found:
            if len(kinds[kind]) == settings.limit + settings.batch:
                break
            if len(plain.generate(text, generation).token_ids) > settings.max_tokens // 2:
                kinds[kind].append(text)
    plain.close()
    return kinds


def _print(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    from speculant_graph.bench.report import print_report

    rows = [("a pass of the draft model, in passes of the target", f"{figures['pass_cost']:.2f}")]
    for kind, by_way in figures["kinds"].items():
        rows.append((f"{kind}: {by_way[PLAIN]['tokens_per_s']:.0f} tokens/s plainly", "tokens a pass, speed"))
        for way in (NGRAMS, MODEL, BOTH):
            each = by_way[way]
            rows.append((f"  {way}", f"{each['tokens_per_pass']:.2f}, ×{each['speedup']:.2f}"))
        rows.append(("  both, in tokens/s of the better of the two", f"×{by_way['both_over_better']:.3f}"))
    rows.append(("all tokens identical", "yes" if figures["identical"] else "NO"))
    print_report("adapter", rows, figures, arguments, as_json=as_json)
