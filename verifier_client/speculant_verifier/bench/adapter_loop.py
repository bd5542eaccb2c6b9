"""``speculant bench adapter --loop``: what a draft model learns from requests of a domain that it never saw.

The documented commands collect requests and train an adapter, whose gate decides; it is then swapped in, and held-out
requests are decoded before and after. An adapter of shuffled text must be refused by the gate, and taken back where it
is forced in.
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

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig, TrainConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.corpus import beginnings_of, draft_files, training_files
from speculant_verifier.demo.run import MODEL_FOLDER

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress

_NUM_COLLECTED, _NUM_KNOWN = 600, 120
_TRAIN = TrainConfig(rank=64, alpha=64.0)  # half of the demo's width, as the setting recommends
_RESAMPLES = 10_000
_MOST_ROUNDS = 40


def measure_loop(
    draft_model: DraftModelConfig, limit: int, max_tokens: int, folder: Path, progress: BenchProgress
) -> dict[str, Any]:
    """Go once round the loop and return the figures, ready for JSON.

    Args:
        draft_model: what learns.
        limit: held-out requests of either kind.
        max_tokens: most new tokens of each.
        folder: for everything that is written.
        progress: told what is done.
    """
    unknown = draft_files()[1]
    new = beginnings_of(unknown)
    known = beginnings_of(path for path in training_files()[0] if path not in unknown)
    random.Random(1).shuffle(new)
    random.Random(1).shuffle(known)
    prompts = folder / "prompts.jsonl"
    chosen = new[limit:][:_NUM_COLLECTED] + known[limit:][:_NUM_KNOWN]
    prompts.write_text("".join(json.dumps(text) + "\n" for text in chosen), "utf-8")
    records, adapter = folder / "records", folder / "adapter"
    progress.begin("collecting")
    collected = _command(
        "collect-data", str(prompts), "--model", str(MODEL_FOLDER), "--draft-model", draft_model.name, "--strategy",
        "model", "--record", str(records), "--max-tokens", str(max_tokens), "--max-batch-size", "1", "--json",
    )  # fmt: skip
    progress.begin("training")
    trained = _command(
        "train", "--records", str(records), "--draft-model", draft_model.name, "--output", str(adapter),
        "--rank", str(_TRAIN.rank), "--alpha", str(_TRAIN.alpha), "--json",
    )  # fmt: skip
    config, draft = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=1), DraftConfig(strategy="model")
    before = SpeculativeDecoder(None, config, draft, draft_model=draft_model)
    after = SpeculativeDecoder(None, config, draft, draft_model=draft_model, target=before.target)
    assert after.adapters is not None
    # Both models are asked in every step, so that they are compared and not what they are worth.
    generation = GenerationConfig(max_tokens=max_tokens, speculation="on")
    figures: dict[str, Any] = {"collected": collected, "training": trained}
    if trained["adapter"] is not None:
        after.adapters.load(str(adapter))
        for name, texts in (("new_domain", new), ("known_domain", known)):
            tell = progress.teller(f"decoding, {name.replace('_', ' ')}")
            figures[name] = _compared(before, after, texts[:limit], generation, tell)
        figures["identical"] = all(figures[name]["identical"] for name in ("new_domain", "known_domain"))
        learned, kept = figures["new_domain"], figures["known_domain"]
        figures["tokens_per_pass_before"] = learned["tokens_per_pass_before"]
        figures["tokens_per_pass_after"] = learned["tokens_per_pass_after"]
        figures["interval_after_minus_before"] = learned["interval"]
        figures["replay_loss"] = round(1.0 - kept["tokens_per_pass_after"] / kept["tokens_per_pass_before"], 4)
    before.close()
    progress.begin("an adapter of shuffled text")
    worse = folder / "shuffled"
    figures["shuffled"] = _shuffled(draft_model, records, worse) | _forced(after, worse, new[:limit], generation)
    figures["worse_adapter_refused"] = figures["shuffled"]["is_refused"]
    after.close()
    return figures


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
    generation: GenerationConfig,
    tell: Callable[[int, int], None],
) -> dict[str, Any]:
    """Decode the same requests with both, in turns; means, and the 95 % bootstrap interval of the mean difference."""
    order = random.Random(0)
    tokens_per_pass: list[list[float]] = []
    num_tokens, seconds, identical = 0, [0.0, 0.0], True
    for number, text in enumerate(texts):
        tell(number, len(texts))
        pair = [0.0, 0.0]
        token_ids = []
        for side in order.sample((0, 1), 2):
            result = (before, after)[side].generate(text, generation)
            # One of a single token has no pass to speak of.
            pair[side] = len(result.token_ids) / max(1, result.num_steps)
            seconds[side] += result.times.total_s - result.times.prefill_s
            token_ids.append(result.token_ids)
        num_tokens += len(token_ids[0])
        identical &= token_ids[0] == token_ids[1]
        tokens_per_pass.append(pair)
    tell(1, 1)
    values = np.array(tokens_per_pass)
    differences = values[:, 1] - values[:, 0]
    drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, len(differences))).mean(1)
    return {
        "requests": len(texts),
        "identical": identical,
        "tokens_per_pass_before": round(float(values[:, 0].mean()), 4),
        "tokens_per_pass_after": round(float(values[:, 1].mean()), 4),
        "interval": np.percentile(drawn, [2.5, 97.5]).round(4).tolist(),
        "tokens_per_s_before": round(num_tokens / seconds[0], 3),
        "tokens_per_s_after": round(num_tokens / seconds[1], 3),
    }


def _shuffled(draft_model: DraftModelConfig, records: Path, folder: Path) -> dict[str, Any]:
    """Train on requests whose outputs are shuffled, and ask the gate about the true ones."""
    from speculant_verifier.model.loading import load_model
    from speculant_verifier.records.database import read_records
    from speculant_verifier.training.examples import split
    from speculant_verifier.training.gate import judge
    from speculant_verifier.training.run import train_adapter

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
    model = load_model(VerifierConfig(model_name=draft_model.name))
    folder.mkdir()
    result = train_adapter(model, draft_model.name, wrong, _TRAIN, folder)
    if result.candidate is None:
        return {"is_refused": True, "reason": "no state was better than the beginning"}
    result.candidate.rename(folder / "adapter")
    verdict = judge(folder / "adapter", None, draft_model, split(found)[1])
    return {"is_refused": not verdict.is_better, "reason": verdict.reason}


def _forced(
    decoder: SpeculativeDecoder, folder: Path, texts: Sequence[str], generation: GenerationConfig
) -> dict[str, Any]:
    """Force an adapter in and decode until it is taken back."""
    adapters = decoder.adapters
    assert adapters is not None
    if not (folder / "adapter").exists():
        return {"is_taken_back": None}
    adapters.load(str(folder / "adapter"))
    num_requests = num_tokens = 0
    for _ in range(_MOST_ROUNDS):
        for text in texts:
            if adapters.state.num_rollbacks:
                return {"is_taken_back": True, "requests_until": num_requests, "tokens_until": num_tokens}
            num_tokens += len(decoder.generate(text, generation).token_ids)
            num_requests += 1
    return {"is_taken_back": False, "requests_until": num_requests, "tokens_until": num_tokens}


def print_loop(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print what came of it."""
    from speculant_graph.bench.report import print_report

    training, shuffled = figures["training"], figures["shuffled"]
    rows = [
        ("requests collected, failures", f"{figures['collected']['requests']}, {figures['collected']['failures']}"),
        ("training", f"{training['num_steps']} steps, {training['duration_s']:.0f} s"),
        ("gate", training["gate"]["reason"] if training.get("gate") else "not asked: no state was better"),
    ]
    for name in ("new_domain", "known_domain"):
        if name in figures:
            each = figures[name]
            rows.append((
                f"{name.replace('_', ' ')}, tokens a pass, {each['requests']} held-out requests",
                f"{each['tokens_per_pass_before']:.2f} -> {each['tokens_per_pass_after']:.2f} "
                f"({each['interval'][0]:+.3f} to {each['interval'][1]:+.3f})",
            ))  # fmt: skip
            rows.append(("  tokens/s", f"{each['tokens_per_s_before']:.1f} -> {each['tokens_per_s_after']:.1f}"))
    if "identical" in figures:
        rows.append(("all tokens identical", "yes" if figures["identical"] else "NO"))
    rows.append(("shuffled text, the gate", "refused" if shuffled["is_refused"] else "ACCEPTED"))
    rows.append(("shuffled text, forced in", "taken back" if shuffled["is_taken_back"] else "not taken back"))
    print_report("adapter", rows, figures, arguments, as_json=as_json)
