"""Recorded requests for training, written by real tiny models."""

from __future__ import annotations

import math
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from speculant_graph.config import RecordConfig, TrainConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_verifier.model import TargetModel
from speculant_verifier.records.database import RecordWriter
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training.trainer import Evaluation, Trainer
from support.records import record_of
from support.tiny_models import tiny_model

TOP_K = 4


def record(prompt: list[int], output: list[int], request_id: str = "a", tenant: str = "") -> RequestRecord:
    """Return a failure without recorded probabilities."""
    nothing: tuple[tuple[()], ...] = ((),) * len(output)
    return replace(
        record_of(0, tenant), request_id=request_id, tokenizer="digest", prompt=tuple(prompt), output=tuple(output),
        drafted=nothing, sources=nothing, accepted=(False,) * len(output), top_token_ids=nothing, top_logprobs=nothing,
        pass_s=0.05,
    )  # fmt: skip


def recorded(
    target: TargetModel, num_records: int = 4, num_tokens: int = 24, top_k: int = TOP_K
) -> list[RequestRecord]:
    """Return a model's output after random prompts, with its most probable tokens at every position."""
    chosen = random.Random(0)
    records = []
    for index in range(num_records):
        prompt = [chosen.randrange(256) for _ in range(8)]
        token_ids = list(prompt)
        tops = []
        for _ in range(num_tokens):
            with torch.inference_mode():
                logprobs = target.model(torch.tensor([token_ids])).logits[0, -1].log_softmax(-1)
            tops.append(logprobs.topk(top_k))
            token_ids.append(int(tops[-1].indices[0]))
        records.append(
            replace(
                record(prompt, token_ids[len(prompt) :], request_id=f"request-{index}"),
                tokenizer=target.fingerprint.sha256,
                top_token_ids=tuple(tuple(top.indices.tolist()) for top in tops),
                top_logprobs=tuple(tuple(top.values.tolist()) for top in tops),
            )
        )
    return records


def write_adapter(folder: Path, model: Any, name: str = "tiny", seed: int = 0, std: float = 0.1) -> Path:
    """Write an adapter with random weights; return its folder.

    Args:
        folder: folder to create.
        model: the base model, which is modified.
        name: name of the base model.
        seed: seed of the weights.
        std: standard deviation of the weights.
    """
    trainer = Trainer(model, name, TrainConfig(rank=4), folder)
    torch.manual_seed(seed)
    for parameter_name, parameter in trainer.model.named_parameters():
        if ".lora_B." in parameter_name:
            parameter.data.normal_(std=std)
    trainer.save(seed + 1, Evaluation(1.0, 0.5))
    assert trainer.best is not None
    return trainer.best[0]


def slow_interval(differences: list[float], documents: list[str], num_draws: int) -> tuple[float, float]:
    """Return the 95 % interval of the mean, by resampling documents one by one, each with all its requests."""
    names = sorted(set(documents))
    means = []
    for drawn in np.random.default_rng(0).integers(len(names), size=(num_draws, len(names))):
        sample: list[float] = []
        for index in drawn:
            sample += [each for each, name in zip(differences, documents, strict=True) if name == names[index]]
        means.append(sum(sample) / len(sample))
    means.sort()

    def quantile(share: float) -> float:
        place = share * (len(means) - 1)
        below, above = means[math.floor(place)], means[math.ceil(place)]
        return below + (above - below) * (place - math.floor(place))

    return quantile(0.025), quantile(0.975)


def fill_records(folder: Path, checkpoint: Path, num_tokens: int = 24) -> None:
    """Write enough records of a learnable text for the gate to judge a candidate.

    Args:
        folder: folder of the records.
        checkpoint: checkpoint of the draft model.
        num_tokens: length of an answer.
    """
    digest = CorpusTokenizer.load(str(checkpoint), None).fingerprint.sha256
    [written] = recorded(tiny_model("llama"), num_records=1, num_tokens=num_tokens)
    with RecordWriter(RecordConfig(folder=folder)) as writer:
        for index in range(500):
            each = replace(written, document=f"d{index}", prompt=(index % 256, *written.prompt), tokenizer=digest)
            writer.record(replace(each, is_failure=index % 3 == 0))
