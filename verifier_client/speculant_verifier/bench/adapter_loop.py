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
from collections.abc import Mapping, Sequence
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
        "model", "--record", str(records), "--max-tokens", str(max_tokens), "--json",
    )  # fmt: skip
    progress.begin("training")
    trained = _command(
        "train", "--records", str(records), "--draft-model", draft_model.name, "--output", str(adapter),
        "--rank", str(_TRAIN.rank), "--alpha", str(_TRAIN.alpha), "--json",
    )  # fmt: skip
    config = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=1)
    decoder = SpeculativeDecoder(None, config, DraftConfig(strategy="model"), draft_model=draft_model)
    assert decoder.adapters is not None
    generation = GenerationConfig(max_tokens=max_tokens)
    progress.begin("decoding before and after")
    before = [_tokens_per_pass(decoder, texts[:limit], generation) for texts in (new, known)]
    figures: dict[str, Any] = {"collected": collected, "training": trained}
    if trained["adapter"] is not None:
        decoder.adapters.load(str(adapter))
        after = [_tokens_per_pass(decoder, texts[:limit], generation) for texts in (new, known)]
        figures |= {
            "new_domain": _paired(before[0], after[0]), "known_domain": _paired(before[1], after[1]),
        }  # fmt: skip
    progress.begin("an adapter of shuffled text")
    worse = folder / "shuffled"
    figures["shuffled"] = _shuffled(draft_model, records, worse) | _forced(decoder, worse, new[:limit], generation)
    decoder.close()
    return figures


def _command(*arguments: str) -> dict[str, Any]:
    """Run a command of this program and return its last line."""
    done = subprocess.run([sys.executable, "-m", "speculant", *arguments], capture_output=True, text=True, check=False)
    try:
        content: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        raise ConfigError(f"speculant {arguments[0]} failed: {done.stderr.strip().splitlines()[-1:]}") from None
    return content


def _tokens_per_pass(decoder: SpeculativeDecoder, texts: Sequence[str], generation: GenerationConfig) -> list[float]:
    """Return those of every request; one of a single token has no pass to speak of and is left out by its 1."""
    results = [decoder.generate(text, generation) for text in texts]
    return [len(result.token_ids) / max(1, result.num_steps) for result in results]


def _paired(before: Sequence[float], after: Sequence[float]) -> dict[str, Any]:
    """Compare the same requests: means, and the 95 % bootstrap interval of the mean difference."""
    differences = np.array(after) - np.array(before)
    generator = np.random.default_rng(0)
    drawn = generator.choice(differences, (_RESAMPLES, len(differences))).mean(1)
    low, high = np.percentile(drawn, [2.5, 97.5]).tolist()
    return {
        "requests": len(differences),
        "tokens_per_pass_before": round(float(np.mean(before)), 4),
        "tokens_per_pass_after": round(float(np.mean(after)), 4),
        "interval": [round(low, 4), round(high, 4)],
    }


def _shuffled(draft_model: DraftModelConfig, records: Path, folder: Path) -> dict[str, Any]:
    """Train on requests whose outputs are shuffled, and ask the gate about the true ones."""
    from speculant_verifier.model.loading import load_model
    from speculant_verifier.records.reader import read_records
    from speculant_verifier.training.examples import split
    from speculant_verifier.training.gate import judge
    from speculant_verifier.training.run import train_adapter

    found = list(read_records(records, tenant=""))
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
    rows.append(("shuffled text, the gate", "refused" if shuffled["is_refused"] else "ACCEPTED"))
    rows.append(("shuffled text, forced in", "taken back" if shuffled["is_taken_back"] else "not taken back"))
    print_report("adapter", rows, figures, arguments, as_json=as_json)
