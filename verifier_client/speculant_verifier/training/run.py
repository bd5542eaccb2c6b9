"""One training from beginning to end: which records, the trainer, and what came of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedModel

from speculant_graph.config_learning import TrainConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training.examples import Example, make_example, mixture, split
from speculant_verifier.training.trainer import Progress, Trainer


@dataclass(frozen=True, slots=True)
class TrainingFigures:
    """What a training did. Losses are in nats a position; 'after' is of the best state, by its held-out loss."""

    num_steps: int
    num_tokens: int
    """Positions that were trained on, repetitions counted."""
    num_held_out: int
    """Requests that were held out."""
    held_out_loss_before: float
    held_out_loss_after: float
    acceptance_before: float
    """Share of the held-out positions at which the draft model's most probable token is the target's."""
    acceptance_after: float
    trainable_share: float
    """Share of all parameters."""
    duration_s: float


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came of a training."""

    candidate: Path | None
    """An adapter that may be published; None if none was better than what there was before."""
    figures: TrainingFigures
    held_out: tuple[RequestRecord, ...]
    """What the candidate is to be judged by: no training has seen these."""
    end: BaseException | None
    """Ctrl-C or SIGTERM, if the training ended by it."""


def train_adapter(
    model: PreTrainedModel,
    base_name: str,
    records: Sequence[RequestRecord],
    config: TrainConfig,
    folder: Path,
    *,
    report: Callable[[Progress], None] = lambda progress: None,
) -> TrainingResult:
    """Train an adapter; Ctrl-C and SIGTERM end it early, and what is best by then is the result.

    Args:
        model: the draft model as it was loaded; afterwards it is good for nothing else.
        base_name: the name or folder it was loaded from.
        records: requests of one tenant, or of all that share an adapter; failures, and replay among them.
        config: how to train.
        folder: an empty one for checkpoints; the candidate is in it.
        report: called after every step.

    Raises:
        ConfigError: there are fewer than two requests, or the model can't have such an adapter.
    """
    started = time.monotonic()
    longest = min(config.max_tokens, model.config.get_text_config().max_position_embeddings)
    # A first token without a prompt has nothing before it to be predicted from.
    usable = [record for record in records if len(record.prompt) + len(record.output) > 1 and record.output]
    if len(usable) < 2:
        raise ConfigError("a training needs two requests at least, one of them to judge by; record more of them")
    own, held_out = split(usable)
    chosen = mixture([each for each in own if each.is_failure], [each for each in own if not each.is_failure], config)
    examples: dict[int, Example] = {id(each): make_example(each, longest, config.labels) for each in own}
    judges = [make_example(each, longest, config.labels) for each in held_out]
    trainer = Trainer(model, base_name, config, folder)
    end: BaseException | None = None
    before = trainer.evaluate(judges)
    try:
        trainer.run([examples[id(each)] for each in chosen], judges, before, report)
    except (KeyboardInterrupt, SystemExit) as interruption:
        end = interruption
    seen = chosen[: trainer.num_steps * config.accumulate]
    candidate, after = trainer.best or (None, before)
    figures = TrainingFigures(
        num_steps=trainer.num_steps,
        num_tokens=sum(examples[id(each)].num_labels for each in seen),
        num_held_out=len(held_out),
        held_out_loss_before=before.loss,
        held_out_loss_after=after.loss,
        acceptance_before=before.acceptance,
        acceptance_after=after.acceptance,
        trainable_share=trainer.share,
        duration_s=time.monotonic() - started,
    )
    return TrainingResult(candidate, figures, tuple(held_out), end)
