"""``speculant bench adapter --loop``: what a draft model learns from requests of a domain that it never saw.

The documented commands collect requests and train an adapter, whose gate decides; it is then swapped in, and held-out
requests are decoded before and after. An adapter of shuffled text must be refused by the gate.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from speculant_graph.bench.progress import BenchProgress
from speculant_graph.bench.report import ReportTable
from speculant_graph.config import DraftConfig, DraftModelConfig, GenerationConfig, TrainConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.bench.engine_decoding import EngineDecoding
from speculant_verifier.bench.trials import interleaved
from speculant_verifier.bench.workload import prompt_group
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import beginnings_of, draft_files, training_files
from speculant_verifier.model.loading import load_model
from speculant_verifier.records.database import read_records, replay_of
from speculant_verifier.training.examples import split
from speculant_verifier.training.gate import judge
from speculant_verifier.training.trainer import train_adapter

if TYPE_CHECKING:
    from speculant_verifier.bench.adapter import BenchAdapterSettings

_NUM_COLLECTED, _NUM_KNOWN = 600, 120
_TRAIN = TrainConfig(rank=64, alpha=64.0)  # half of the demo's width, as the setting recommends
_RESAMPLES = 10_000
_BEFORE, _AFTER = "before", "after"


def measure_loop(settings: BenchAdapterSettings, folder: Path, progress: BenchProgress) -> dict[str, Any]:
    """Go once round the loop and return the figures, ready for JSON."""
    draft_model, limit = settings.draft_model, settings.limit
    unknown = draft_files()[1]
    new = beginnings_of(unknown)
    known = beginnings_of(path for path in training_files()[0] if path not in unknown)
    random.Random(1).shuffle(new)
    random.Random(1).shuffle(known)
    prompts, records, adapter = folder / "prompts.jsonl", folder / "records", folder / "adapter"
    chosen = new[limit:][:_NUM_COLLECTED] + known[limit:][:_NUM_KNOWN]
    prompts.write_text("".join(json.dumps(text) + "\n" for text in chosen), "utf-8")
    progress.begin("collecting")
    _command(
        "generate", "--prompts", str(prompts), "--model", str(MODEL_FOLDER), "--draft-model", draft_model.name,
        "--strategy", "model", "--record", str(records), "--max-tokens", str(settings.max_tokens),
        "--max-batch-size", "1", "--json",
    )  # fmt: skip
    progress.begin("training")
    trained = _command(
        "train", "--records", str(records), "--draft-model", draft_model.name, "--output", str(adapter),
        "--rank", str(_TRAIN.rank), "--alpha", str(_TRAIN.alpha), "--json",
    )  # fmt: skip
    collected = {
        "requests": len(chosen),
        "failures": len(read_records(records)),
        "replay": len(replay_of(records, None, len(chosen))),
    }
    figures: dict[str, Any] = {"collected": collected, "training": trained, "identical": True}
    if trained["adapter"] is not None:
        config, draft = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=1), DraftConfig(strategy="model")
        before = SpeculativeDecoder(None, config, draft, draft_model=draft_model)
        after = SpeculativeDecoder(None, config, draft, draft_model=draft_model, target=before.target)
        assert after.adapters is not None
        after.adapters.load(str(adapter))
        for name, texts in (("new_domain", new), ("known_domain", known)):
            tell = progress.teller(f"decoding, {name.replace('_', ' ')}")
            figures[name] = _compared(before, after, texts[:limit], settings.max_tokens, tell)
        after.close()
        before.close()
        learned, kept = figures["new_domain"], figures["known_domain"]
        figures |= {
            "identical": learned["identical"] and kept["identical"],
            "tokens_per_pass_before": learned["tokens_per_pass_before"],
            "tokens_per_pass_after": learned["tokens_per_pass_after"],
            "interval_after_minus_before": learned["interval"],
            "replay_loss": round(1.0 - kept["tokens_per_pass_after"] / kept["tokens_per_pass_before"], 4),
        }
    progress.begin("an adapter of shuffled text")
    figures["worse_adapter_refused"] = _is_shuffled_refused(draft_model, records, folder / "shuffled")
    return figures


def loop_report(figures: Mapping[str, Any]) -> tuple[list[tuple[str, str]], list[ReportTable]]:
    """Return what is printed of the figures."""
    training = figures["training"]
    rows = [
        ("requests collected, failures", f"{figures['collected']['requests']}, {figures['collected']['failures']}"),
        ("training", f"{training['num_steps']} steps, {training['duration_s']:.0f} s"),
        ("gate", training["gate"]["reason"] if training.get("gate") else "not asked: no state was better"),
        ("shuffled text, the gate", "refused" if figures["worse_adapter_refused"] else "ACCEPTED"),
    ]
    lines = [
        (
            f"{name.replace('_', ' ')}, {each['requests']} held-out requests",
            f"{each['tokens_per_pass_before']:.2f} -> {each['tokens_per_pass_after']:.2f}",
            f"{each['interval'][0]:+.3f} to {each['interval'][1]:+.3f}",
            f"{each['tokens_per_s_before']:.1f} -> {each['tokens_per_s_after']:.1f}",
        )
        for name in ("new_domain", "known_domain")
        if (each := figures.get(name))
    ]
    return rows, [ReportTable(("", "tokens a pass", "95 % interval\nof the change", "tokens/s"), lines)]


def _command(*arguments: str) -> dict[str, Any]:
    """Run a command of this program and return its last line."""
    done = subprocess.run([sys.executable, "-m", "speculant", *arguments], capture_output=True, text=True, check=False)
    try:
        content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise ConfigError(f"speculant {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}") from None
    return content


def _compared(
    before: SpeculativeDecoder,
    after: SpeculativeDecoder,
    texts: Sequence[str],
    max_tokens: int,
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    """Decode the same requests with both, interleaved; means, and 95 % bootstrap interval of the mean difference."""
    # Both models are asked in every step, so that they are compared and not what they are worth.
    generation = GenerationConfig(speculation="on")
    ways = {
        name: EngineDecoding(before.target, decoder.drafter, decoder.draft_config, 1, generation).decode
        for name, decoder in ((_BEFORE, before), (_AFTER, after))
    }
    trials = interleaved(ways, prompt_group(texts, before.target, max_tokens, "prompts").requests, 1, tell)
    per_pass = {name: np.array([row.tokens_per_step for row in trials.rows(name)]) for name in ways}
    differences = per_pass[_AFTER] - per_pass[_BEFORE]
    drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, len(differences))).mean(1)
    figures: dict[str, Any] = {
        "requests": len(texts),
        "identical": trials.is_identical(_AFTER, _BEFORE),
        "interval": np.percentile(drawn, [2.5, 97.5]).round(4).tolist(),
    }
    for name in ways:
        figures[f"tokens_per_pass_{name}"] = round(float(per_pass[name].mean()), 4)
        figures[f"tokens_per_s_{name}"] = round(trials.statistics(name).tokens_per_s_without_prompts, 3)
    return figures


def _is_shuffled_refused(draft_model: DraftModelConfig, records: Path, folder: Path) -> bool:
    """Train on requests whose outputs are shuffled, and ask the gate about the true ones."""
    found = read_records(records, tenant="")
    generator = random.Random(0)
    wrong = [
        replace(
            each,
            output=tuple(generator.sample(each.output, len(each.output))),
            top_token_ids=((),) * len(each.output),
            top_logprobs=((),) * len(each.output),
        )
        for each in found
    ]
    folder.mkdir()
    model = load_model(VerifierConfig(model_name=draft_model.name))
    result = train_adapter(model, draft_model.name, wrong, _TRAIN, folder)
    if result.candidate is None:
        return True  # no state was better than the beginning
    result.candidate.rename(folder / "adapter")
    return not judge(folder / "adapter", None, draft_model, split(found)[1]).is_better
