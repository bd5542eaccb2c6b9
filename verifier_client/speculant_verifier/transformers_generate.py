"""Speculative decoding in transformers: ``model.generate(..., custom_generate=speculant_generate)``.

transformers expands prompts and prepares processors, stopping criteria and limits; this module decodes. Any batch and
all logits processors are supported, and processors see the same inputs as in transformers, including left padding.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import LongTensor, Tensor
from transformers import GenerationConfig as TransformersConfig
from transformers import (
    LogitsProcessor,
    LogitsProcessorList,
    PreTrainedModel,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteriaList,
)
from transformers.generation.utils import GenerateDecoderOnlyOutput

from speculant_graph.client import LocalDrafter, NullDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.types import Drafter, RuleName, TokenId
from speculant_verifier.engine import ActiveSequence, Engine, Request
from speculant_verifier.model import TargetModel

_UNSUPPORTED = ("output_scores", "output_logits", "output_attentions", "output_hidden_states")


def speculant_generate(
    model: PreTrainedModel,
    input_ids: LongTensor,
    *,
    logits_processor: LogitsProcessorList,
    stopping_criteria: StoppingCriteriaList,
    generation_config: TransformersConfig,
    drafter: Drafter | None = None,
    draft_config: DraftConfig | None = None,
    seeds: Sequence[int] | None = None,
    rule: RuleName = "follow",
    max_batch_size: int = 0,
    sequences: list[ActiveSequence] | None = None,
    spec_streamer: Callable[[int, Sequence[TokenId]], object] | None = None,
    **model_inputs: Any,
) -> LongTensor | GenerateDecoderOnlyOutput:
    """Decode like ``model.generate``, but with drafts; greedy output is the same.

    Examples:
        >>> model.generate(**inputs, max_new_tokens=50, custom_generate=speculant_generate, drafter=drafter)

    Args:
        model: any causal model of transformers that :class:`TargetModel` accepts.
        input_ids: prompts, ``[batch, length]``, left-padded.
        logits_processor: object that transformers makes from the call's settings.
        stopping_criteria: object that transformers makes from the call's settings.
        generation_config: object that transformers makes from the call's settings.
        drafter: the drafter, which the caller opens and closes; None: draft from the sequences themselves.
        draft_config: drafting settings: ``k`` (maximum number of nodes per step) always applies, and all other settings
            apply if no drafter is given.
        seeds: sampling seed of every row; None: seeds from torch's random state.
        rule: the verification rule.
        max_batch_size: maximum number of rows that are decoded together; 0: all rows.
        sequences: a list that receives the steps, acceptance and times of every row.
        spec_streamer: called with a row's index and its new tokens as they are emitted.
        model_inputs: model inputs from transformers; ``attention_mask`` marks the padding of prompts.

    Returns:
        Token ids of prompts and outputs, right-padded, ``[batch, longest]``; they are in an output object if the call
        requests one.

    Raises:
        ConfigError: the call requests beams, or outputs that are not supported.
        GenerationError: a row can't be continued.
    """
    for name in _UNSUPPORTED:
        if getattr(generation_config, name, None):
            raise ConfigError(f"speculative decoding does not support {name}; leave it out")
    if (generation_config.num_beams or 1) > 1:
        raise ConfigError("speculative decoding has no beams; leave num_beams out, or set it to 1")
    rows: list[list[int]] = input_ids.tolist()
    attention_mask: Tensor | None = model_inputs.get("attention_mask")
    starts = [0] * len(rows) if attention_mask is None else attention_mask.long().argmax(-1).tolist()
    if seeds is None:
        seeds = torch.randint(1 << 62, (len(rows),)).tolist() if generation_config.do_sample else [0] * len(rows)
    if len(seeds) != len(rows):
        raise ConfigError(f"there are {len(seeds)} seeds for {len(rows)} rows; give one for each")
    draft_config = draft_config or DraftConfig()
    owned: Drafter | None = None
    requests = [
        Request(
            index,
            tuple(row[start:]),
            GenerationConfig(
                max_tokens=max(1, generation_config.max_length - len(row)),
                temperature=1.0 if generation_config.do_sample else 0.0,
                seed=seed,
                rule=rule,
                end_token_ids=(),
            ),
            processors=_of_row(logits_processor, index, row[:start]),
            stop_check=_StopCheck(stopping_criteria, row, input_ids.device),
        )
        for index, (row, start, seed) in enumerate(zip(rows, starts, seeds, strict=True))
    ]
    try:
        with _attention_of(model):
            target = TargetModel(model, None, type(model).__name__)
            if drafter is None:
                size = target.vocabulary_size
                owned = LocalDrafter(None, draft_config, vocabulary_size=size) if draft_config.k else NullDrafter()
                drafter = owned
            engine = Engine(
                target,
                drafter,
                VerifierConfig(max_batch_size=max_batch_size or len(rows)),
                draft_config,
            )
            ended: dict[int, ActiveSequence] = {}
            for output in engine.run(requests):
                if (error := output.sequence.error) is not None:
                    raise GenerationError(f"row {output.sequence.index}: {error.message}", fix=error.fix) from error
                if spec_streamer is not None and output.token_ids:
                    spec_streamer(output.sequence.index, output.token_ids)
                if output.finish_reason is not None:
                    ended[output.sequence.index] = output.sequence
    finally:
        if owned is not None:
            owned.close()
    if sequences is not None:
        sequences.extend(ended[index] for index in range(len(rows)))
    outputs = [torch.tensor([*row, *ended[index].output]) for index, row in enumerate(rows)]
    padding = generation_config._pad_token_tensor
    token_ids = torch.nn.utils.rnn.pad_sequence(
        outputs, batch_first=True, padding_value=0 if padding is None else int(padding)
    ).to(input_ids.device)
    if generation_config.return_dict_in_generate:
        return GenerateDecoderOnlyOutput(sequences=LongTensor(token_ids))
    return LongTensor(token_ids)


@contextmanager
def _attention_of(model: PreTrainedModel) -> Iterator[None]:
    """Restore the model's own attention after the block."""
    before = model.config._attn_implementation
    was_training = model.training
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        model.train(was_training)


class _Padded(LogitsProcessor):
    """Adds the prompt's padding to a row before its processors run, because transformers counts it in row lengths."""

    def __init__(self, processors: LogitsProcessorList, padding: Sequence[TokenId]) -> None:
        self._processors = processors
        self._padding = torch.tensor([list(padding)], dtype=torch.long)

    def __call__(self, input_ids: LongTensor, scores: Tensor) -> Tensor:
        padded = LongTensor(torch.cat([self._padding.to(input_ids.device), input_ids], -1))
        processed: Tensor = self._processors(padded, scores)
        return processed


def _of_row(processors: LogitsProcessorList, row: int, padding: Sequence[TokenId]) -> LogitsProcessorList:
    """Return the processors for one row of the batch."""
    own = LogitsProcessorList()
    for processor in processors:
        ignored = getattr(processor, "prompt_ignore_length", None)
        if isinstance(processor, RepetitionPenaltyLogitsProcessor) and isinstance(ignored, Tensor):
            processor = RepetitionPenaltyLogitsProcessor(processor.penalty, prompt_ignore_length=ignored[row : row + 1])
        own.append(processor)
    return LogitsProcessorList([_Padded(own, padding)]) if padding else own


class _StopCheck:
    """Checks transformers' stopping criteria after every token."""

    def __init__(self, criteria: StoppingCriteriaList, prompt: Sequence[TokenId], device: torch.device) -> None:
        self._criteria, self._device = criteria, device
        self._token_ids = list(prompt)

    def __call__(self, token_ids: Sequence[TokenId]) -> int | None:
        for count, token in enumerate(token_ids, start=1):
            self._token_ids.append(token)
            row = torch.tensor([self._token_ids], device=self._device)
            if bool(self._criteria(row, None).all()):
                return count
        return None
