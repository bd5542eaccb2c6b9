"""Training of a LoRA adapter on recorded requests: the draft model learns to write what the target wrote.

The loss of a position is :func:`divergence`, on the target's own text. The base stays frozen; B begins at zero, so an
untrained adapter changes nothing (Hu et al. 2021, "LoRA"). Steps are AdamW's (Loshchilov and Hutter 2019).

What is judged and saved is a part of the trained change, :data:`STRENGTH`: weights between those before and after a
training keep what was known better than the latter do, and have most of its gain (Wortsman et al. 2022, "Robust
fine-tuning of zero-shot models"). With the demo's pair and 400 requests of a new domain, tokens a pass of chains of
four rose there by 11 % at full strength and fell by 7 % on text that the draft model knew; at half +7 % and -0.6 %.
"""

from __future__ import annotations

import copy
import json
import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from loguru import logger
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers import PreTrainedModel, get_cosine_schedule_with_warmup

from speculant_graph.config import TrainConfig
from speculant_graph.corpus.hub import sentence
from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model.adapter_files import (
    NOTE_FILE,
    AdapterInfo,
    load_weights,
    plain,
    quiet_peft,
)
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training.examples import Example, documents_of, make_example, mixture, split

LARGE = 200_000_000
"""From so many parameters on activations are computed twice: of a small model they are small, and a third of the time
would be lost for nothing; of a large one they would not fit into memory."""
STRENGTH = 0.5
"""Share of the trained change that is published."""
GROUP = 8
"""Requests whose gradients make one step."""
LONGEST = 2_048
"""Tokens of a request that are trained on; of longer ones the beginning of the prompt is cut off."""
_NUM_EVALUATIONS = 10
_WARM_UP = 0.05
_LARGEST_NORM = 1.0
_LEAST_ALPHA = 16
"""An adapter counts alpha / rank: twice at rank 8, once at ranks from 16 up, as it does for models of a few million."""
_NEVER = -1e30  # a finite logit: minus infinity would make NaN of 0 times its logarithm, and of its gradient


@dataclass(frozen=True, slots=True)
class Evaluation:
    """How well requests that were held out are drafted, with the target's own tokens before every position."""

    loss: float
    """Divergence from the target, nats a position."""
    acceptance: float
    """Share of the positions at which the most probable token is the one that the target wrote."""


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """What came of a training; how requests that were held out are drafted before and after it."""

    candidate: Path | None
    """An adapter that may be published; None if none was better than what there was before."""
    held_out: tuple[RequestRecord, ...]
    """What the candidate is to be judged by: no training has seen their documents."""
    documents: frozenset[str]
    """Keys of the documents that were trained on."""
    end: BaseException | None
    """Ctrl-C or SIGTERM, if the training ended by it."""
    num_steps: int
    num_tokens: int
    """Positions that were trained on, repetitions counted."""
    before: Evaluation
    after: Evaluation
    """Of the best state, by its loss."""
    trainable_share: float
    """Share of all parameters."""
    duration_s: float


def train_adapter(
    model: PreTrainedModel,
    base_name: str,
    records: Sequence[RequestRecord],
    config: TrainConfig,
    folder: Path,
    *,
    start: AdapterInfo | None = None,
    report: Callable[[str], object] = lambda line: None,
) -> TrainingResult:
    """Train an adapter; Ctrl-C and SIGTERM end it early, and what is best by then is the result.

    Args:
        model: the draft model as it was loaded; afterwards it is good for nothing else.
        base_name: the name or folder it was loaded from.
        records: requests of one tenant; failures, and replay among them.
        config: how to train.
        folder: an empty one for checkpoints; the candidate is in it.
        start: an adapter of this model to go on from; None: one that changes nothing.
        report: takes a line for people after every evaluation.

    Raises:
        ConfigError: there are fewer than two requests, or the model can't have such an adapter.
    """
    started = time.monotonic()
    longest = min(LONGEST, model.config.get_text_config().max_position_embeddings)
    # A first token without a prompt has nothing before it to be predicted from.
    usable = [record for record in records if len(record.prompt) + len(record.output) > 1 and record.output]
    if len(usable) < 2:
        raise ConfigError("a training needs two requests at least, one of them to judge by; record more of them")
    own, held_out = split(usable)
    failures = [make_example(each, longest) for each in own if each.is_failure]
    replay = [make_example(each, longest) for each in own if not each.is_failure]
    chosen = mixture(failures, replay, config.epochs)
    judges = [make_example(each, longest) for each in held_out]
    trainer = Trainer(model, base_name, config, folder, start)
    end: BaseException | None = None
    before = trainer.evaluate(judges)
    try:
        trainer.run(chosen, judges, before, report)
    except (KeyboardInterrupt, SystemExit) as interruption:
        end = interruption
    candidate, after = trainer.best or (None, before)
    return TrainingResult(
        candidate,
        tuple(held_out),
        frozenset(documents_of(own)),
        end,
        num_steps=trainer.num_steps,
        num_tokens=sum(each.num_labels for each in chosen[: trainer.num_steps * GROUP]),
        before=before,
        after=after,
        trainable_share=trainer.share,
        duration_s=time.monotonic() - started,
    )


class Trainer:
    """A draft model with an adapter to train, and the best state of it on disk."""

    def __init__(
        self,
        model: PreTrainedModel,
        base_name: str,
        config: TrainConfig,
        folder: Path,
        start: AdapterInfo | None = None,
    ) -> None:
        """Put an adapter into a model.

        Args:
            model: as it was loaded; it gets the adapter's layers, another attention, and no other use.
            base_name: the name or folder it was loaded from.
            config: how to train.
            folder: where checkpoints go.
            start: an adapter of this model to go on from, of whatever shape; None: one that changes nothing.

        Raises:
            ConfigError: it can't have an adapter, or not this one.
        """
        model = plain(model)
        torch.manual_seed(0)  # a training can be repeated
        self._config, self._folder = config, folder
        if model.dtype == torch.float16:  # gradients of single tokens are too small for it
            model = model.bfloat16()
        # Ours is made for decoding; these are the ones that torch and transformers differentiate. gpt-oss has no sdpa.
        model.set_attn_implementation("sdpa" if model._supports_sdpa else "eager")
        with quiet_peft():
            try:
                self.model: Any = get_peft_model(
                    model, copy.deepcopy(start.config) if start else lora_config(model, config)
                )
            except ValueError as error:  # none of the layers is of a kind that can have one
                raise ConfigError(f"{sentence(error)} Choose another draft model.") from error
        self.model.peft_config["default"].base_model_name_or_path = base_name
        if sum(parameter.numel() for parameter in model.parameters()) > LARGE:
            model.activation_checkpointing_enable()
        self._model = model
        trained = {name: each for name, each in self.model.named_parameters() if each.requires_grad}
        self._weights = list(trained.values())
        if start is not None:
            load_weights(self.model, base_name, start)
        # Of a new adapter A is as good as any, and only B, which begins at zero, is the change.
        changed = self._weights if start else [each for name, each in trained.items() if "lora_B" in name]
        self._beginnings = [(weights, weights.detach().clone()) for weights in changed]
        num_trained = sum(parameter.numel() for parameter in self._weights)
        self.share = num_trained / sum(parameter.numel() for parameter in self.model.parameters())
        """Share of all parameters that is trained."""
        self.best: tuple[Path, Evaluation] | None = None
        """The best state so far by its held-out loss, a whole adapter; None while none is better than the beginning."""
        self.num_steps = 0
        """Steps so far."""

    def run(
        self,
        training: Sequence[Example],
        held_out: Sequence[Example],
        before: Evaluation,
        report: Callable[[str], object],
    ) -> None:
        """Train on requests in their order; may be left by any exception, and the best state is whole.

        Args:
            training: requests; those that are to be seen more than once are there more than once.
            held_out: others, by which the best state is found.
            before: how well the model does them now.
            report: takes a line for people after every evaluation.
        """
        groups = [training[start : start + GROUP] for start in range(0, len(training), GROUP)]
        every = math.ceil(len(groups) / _NUM_EVALUATIONS)
        # Decay would pull the product of the matrices towards the base twice; their rank is bound enough.
        optimiser = torch.optim.AdamW(self._weights, lr=self._config.learning_rate, weight_decay=0.0)
        schedule = get_cosine_schedule_with_warmup(optimiser, math.ceil(_WARM_UP * len(groups)), len(groups) + 1)
        best = before
        for step, group in enumerate(groups, 1):
            loss = self._accumulate(group)
            norm = nn.utils.clip_grad_norm_(self._weights, _LARGEST_NORM)
            if not math.isfinite(loss) or not norm.isfinite():
                logger.warning("the loss is no number any more, and the training ends; lower train.learning_rate")
                break
            optimiser.step()
            schedule.step()
            optimiser.zero_grad(set_to_none=True)
            self.num_steps = step
            if step % every and step < len(groups):
                continue
            found = self.evaluate(held_out)
            is_best = found.loss < best.loss
            if is_best:
                self.save(step, found)
                best = found
            report(
                f"step {step}/{len(groups)}: loss {loss:.3f}, held out {found.loss:.3f}, "
                f"acceptance {found.acceptance:.1%}{', best so far' if is_best else ''}"
            )

    def logits(self, example: Example) -> Tensor:
        """Return the model's logits for the labelled positions, ``[n, V]``."""
        token_ids = torch.from_numpy(example.token_ids[None, :-1]).to(self._model.device)
        # Of the prompt none are computed: with a large vocabulary they are most of the memory.
        kept = torch.arange(example.first - 1, token_ids.shape[1], device=token_ids.device)
        logits: Tensor = self._model(token_ids, use_cache=False, logits_to_keep=kept).logits[0]
        return logits

    def loss(self, logits: Tensor, example: Example) -> Tensor:
        """Return the sum over the labelled positions."""
        labels = (example.label_ids, example.label_probabilities, example.is_label)
        return divergence(logits, *(torch.from_numpy(each).to(logits.device) for each in labels)).sum()

    @torch.no_grad()
    def evaluate(self, examples: Sequence[Example]) -> Evaluation:
        """Return how well the model would draft these requests if it were published now."""
        self._model.train(False)
        loss, num_accepted, num_positions = 0.0, 0, 0
        with self._as_published():
            for example in examples:
                logits = self.logits(example)
                loss += float(self.loss(logits, example))
                written = torch.from_numpy(example.token_ids[example.first :]).to(logits.device)
                num_accepted += int((logits.argmax(-1) == written).sum())
                num_positions += example.num_labels
        return Evaluation(loss / num_positions, num_accepted / num_positions)

    def _accumulate(self, group: Sequence[Example]) -> float:
        """Add up the gradients of some requests; every position counts the same, whatever request it is of."""
        self._model.train(True)
        num_positions = sum(example.num_labels for example in group)
        total = 0.0
        for example in group:
            loss = self.loss(self.logits(example), example) / num_positions
            loss.backward()
            total += loss.item()
        return total

    @contextmanager
    def _as_published(self) -> Iterator[None]:
        """Have the adapter as strong as it is published."""
        trained = [weights.detach().clone() for weights, _ in self._beginnings]
        with torch.no_grad():
            for weights, beginning in self._beginnings:
                weights.copy_(beginning.lerp(weights, STRENGTH))
            try:
                yield
            finally:
                for (weights, _), values in zip(self._beginnings, trained, strict=True):
                    weights.copy_(values)

    def save(self, step: int, evaluation: Evaluation) -> None:
        """Write the present state as the best one; the one before goes."""
        folder = self._folder / str(step)
        with self._as_published():
            self.model.save_pretrained(str(folder), save_embedding_layers=False)
        (folder / "README.md").unlink(missing_ok=True)  # an empty form
        note = {"step": step, **asdict(evaluation)}
        (folder / NOTE_FILE).write_text(json.dumps(note), encoding="utf-8")
        earlier, self.best = self.best, (folder, evaluation)
        if earlier is not None:
            shutil.rmtree(earlier[0], ignore_errors=True)


def lora_config(model: PreTrainedModel, config: TrainConfig) -> LoraConfig:
    """Return peft's settings of a new adapter.

    All linear layers get one, and so do the experts of mixtures, which are no linear layers but parameters with three
    dimensions: of itself peft leaves those of gpt-oss out, where most of the weights are. With the demo's pair (three
    epochs at 1e-2) held-out acceptance went from 29 to 34 % with them at rank 8, and to 28 % without them at rank 32.
    """
    experts = {".".join(name.split(".")[-2:]) for name, parameter in model.named_parameters() if parameter.ndim == 3}
    return LoraConfig(
        r=config.rank,
        lora_alpha=max(_LEAST_ALPHA, config.rank),
        target_modules="all-linear",
        target_parameters=sorted(experts) or None,
        task_type="CAUSAL_LM",
    )


def divergence(logits: Tensor, label_ids: Tensor, probabilities: Tensor, is_label: Tensor) -> Tensor:
    """Return the forward divergence of the target from the model, KL(q ‖ p) in nats, of every position.

    Of the target only some tokens' probabilities are known; all others are one class, for both. With one label of
    probability 1 this is the cross-entropy.

    Args:
        logits: the model's, ``[n, V]``.
        label_ids: ``[n, k]``; those that are not meant repeat one that is.
        probabilities: the target's, ``[n, k]``; their sum is at most 1 but for rounding.
        is_label: which of the k are meant, ``[n, k]``.

    Returns:
        ``[n]``, float32.
    """
    logits = logits.float()
    total = logits.logsumexp(-1)
    known = logits.gather(1, label_ids) - total[:, None]
    # Not log(1 - sum p): where the model is nearly sure, nothing but rounding is left of the difference.
    other = logits.scatter(1, label_ids, _NEVER).logsumexp(-1) - total
    rest = (1 - probabilities.sum(-1)).clamp(min=0)
    differences = torch.where(is_label, torch.xlogy(probabilities, probabilities) - probabilities * known, 0)
    return differences.sum(-1) + torch.xlogy(rest, rest) - rest * other
