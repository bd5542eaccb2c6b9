"""Runs one forward pass over every sequence's pending tokens and draft, then applies each request's rule."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import target_row_width
from speculant_graph.errors import GenerationError
from speculant_graph.types import EMPTY_DRAFT, Draft, Feedback, TokenId
from speculant_verifier.cache import SlotCache
from speculant_verifier.engine.drafting import depths_of
from speculant_verifier.engine.logits_cache import LogitsCache
from speculant_verifier.engine.records import Records
from speculant_verifier.engine.sequence import ActiveSequence, StepOutput, is_out_of_memory, out_of_memory
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel
from speculant_verifier.results import FinishReason, TokenLogprobs
from speculant_verifier.rules import RULES, DraftTarget, Verdict
from speculant_verifier.sampling import RowContext, RowTarget, targets_of, top_tokens
from speculant_verifier.speculation.controller import DraftLengthController


class Verification:
    """Turns pending tokens and drafts into emitted tokens."""

    def __init__(
        self,
        target: TargetModel,
        cache: SlotCache,
        logits_cache: LogitsCache,
        draft: DraftConfig,
        controller: DraftLengthController,
        totals: EngineTotals,
        records: Records | None,
    ) -> None:
        """Use a model and its caches; ``controller`` learns from verified drafts."""
        self._target, self._cache, self._controller, self._totals = target, cache, controller, totals
        self._row_width = target_row_width(draft)
        self._records = records
        self._logits_cache = logits_cache

    def emit_cached(self, sequences: Sequence[ActiveSequence]) -> list[StepOutput]:
        """Emit each sequence's tokens from cached logits, without a forward pass, while its next logits are cached."""
        outputs: list[StepOutput] = []
        for sequence in sequences:
            while (logits := self._logits_cache.logits(sequence)) is not None:
                assert sequence.sampler is not None
                [target] = targets_of(
                    logits[None, None], [RowContext(sequence.sampler, sequence.token_ids, EMPTY_DRAFT)]
                )
                outputs.append(self._outcome(sequence, EMPTY_DRAFT, target, logits[None]).output)
                if sequence.trace is not None:
                    sequence.trace.add_top(None)
                sequence.num_from_target_cache += len(outputs[-1].token_ids)
                if outputs[-1].finish_reason is not None:
                    break
        return outputs

    def step(self, sequences: Sequence[ActiveSequence], drafts: Sequence[Draft]) -> list[StepOutput]:
        """Verify the sequences' drafts and return the outputs.

        Args:
            sequences: sequences in row order, with few pending tokens each.
            drafts: per sequence, the draft after its last pending token.
        """
        clock, stall_s = [time.perf_counter()], self._target.stall_s
        pending = [each.token_ids[each.num_cached :] for each in sequences]
        rows = [each.row for each in sequences]
        logits = self._target.forward(pending, self._cache, rows, drafts)
        if logits.is_cuda:
            torch.cuda.synchronize(logits.device)  # the rules would wait for it anyway
        clock.append(time.perf_counter())
        stall_s = self._target.stall_s - stall_s
        contexts = []
        for each, draft in zip(sequences, drafts, strict=True):
            assert each.sampler is not None
            contexts.append(RowContext(each.sampler, each.token_ids, draft))
        targets = targets_of(logits, contexts)
        self._record_feedback(sequences, drafts, logits)
        outcomes = [
            self._outcome(each, draft, target, logits[index])
            for index, (each, draft, target) in enumerate(zip(sequences, drafts, targets, strict=True))
        ]
        if self._records is not None:
            self._records.look(sequences, logits)
        clock.append(time.perf_counter())
        kept: dict[int, Sequence[int]] = {}
        for each, tokens, draft, outcome in zip(sequences, pending, drafts, outcomes, strict=True):
            each.num_steps += 1
            if outcome.verdict is None:
                continue
            kept[each.row] = kept_nodes(len(tokens), outcome.verdict.path)
            depths = depths_of(draft)
            accepted = range(1, outcome.output.num_accepted + 1)
            for counts in (each, self._totals):
                counts.num_drafts += bool(depths)
                _count(counts.drafted_by_depth, depths)
                _count(counts.accepted_by_depth, accepted)
            for node in outcome.verdict.path[: len(accepted)] if draft.sources else ():
                self._totals.accepted_by_source[draft.sources[node]] += 1
            if depths:
                predicted = sum(draft.path_probabilities)
                self._controller.observe(each.history, depths, len(outcome.verdict.path), predicted)
        try:
            self._cache.commit_all(list(kept), list(kept.values()))
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            # Accepted tokens stay pending: the next pass reads them again.
            kept = {each.row: range(len(tokens)) for each, tokens in zip(sequences, pending, strict=True)}
            self._cache.commit_all(list(kept), list(kept.values()))
        for each in sequences:
            each.num_cached += len(kept.get(each.row, ()))
        clock.append(time.perf_counter())
        num_nodes = sum(1 + len(draft.token_ids) for draft in drafts)
        self._totals.record_pass(clock[1] - clock[0], len(sequences), num_nodes)
        for times in (self._totals.times, *(each.times for each in sequences)):
            times.forward_s += clock[1] - clock[0]
            times.stall_s += stall_s
            times.verify_s += clock[2] - clock[1]
            times.commit_s += clock[3] - clock[2]
        return [outcome.output for outcome in outcomes]

    def _outcome(self, sequence: ActiveSequence, draft: Draft, row: RowTarget, logits: Tensor) -> _Outcome:
        """Apply a request's verification rule; an error ends only this request."""
        sampler, request = sequence.sampler, sequence.request
        assert sampler is not None
        target: DraftTarget = row
        if request.wrap_target is not None:
            target = request.wrap_target(row, sequence.num_emitted, [0, *depths_of(draft)])
        try:
            verdict = RULES[request.config.rule](draft, target, sampler.next_number)
            token_ids, reason = ended(sequence, verdict.token_ids)
            path = verdict.path[: len(token_ids)]
            # The position after the accepted path was tried only if the draft has a token for it.
            is_tried = len(token_ids) > len(path) and (path[-1] + 1 if path else 0) in draft.parents
            logprobs = self._logprobs(sequence, row, verdict, token_ids)
            if sequence.trace is not None:
                sequence.trace.add(draft, path, len(token_ids))
            if self._logits_cache.bound:
                self._logits_cache.keep(sequence, draft, path, logits)
        except Exception as error:  # processors and stop checks may be third-party code
            sequence.error = _error_of(error)
            return _Outcome(None, StepOutput(sequence, (), 0, "error"))
        sequence.token_ids += token_ids
        sequence.num_tried += len(path) + is_tried
        if reason is None and len(sequence.token_ids) >= self._target.max_length:
            reason = "length"
        return _Outcome(verdict, StepOutput(sequence, token_ids, len(path), reason, logprobs))

    def _record_feedback(self, sequences: Sequence[ActiveSequence], drafts: Sequence[Draft], logits: Tensor) -> None:
        """Store the target's top tokens as feedback for the drafter, by node index in the drafter's response."""
        if not self._row_width or not any(draft.draft_id for draft in drafts):
            return
        top = top_tokens(logits, self._row_width).cpu().numpy()
        for index, (sequence, draft) in enumerate(zip(sequences, drafts, strict=True)):
            if draft.draft_id:
                nodes = [0, *(node + 1 for node in sequence.draft_nodes)]
                sequence.feedback = Feedback(draft.draft_id, nodes, top[index, : len(nodes)])

    def _logprobs(
        self, sequence: ActiveSequence, row: RowTarget, verdict: Verdict, token_ids: Sequence[TokenId]
    ) -> tuple[TokenLogprobs, ...]:
        width = sequence.config.logprobs
        if width is None:
            return ()
        nodes = [0, *(node + 1 for node in verdict.path)]
        logprobs = tuple(row.logprobs_after(node, token, width) for node, token in zip(nodes, token_ids, strict=False))
        sequence.logprobs += logprobs
        return logprobs


def _error_of(error: Exception) -> GenerationError:
    if isinstance(error, GenerationError):
        return error
    if is_out_of_memory(error):
        return out_of_memory()
    what = f"a logits processor or a stop check failed ({type(error).__name__}: {error})"
    return GenerationError(what, fix="fix or leave it out")


@dataclass(frozen=True, slots=True)
class _Outcome:
    verdict: Verdict | None
    output: StepOutput


def ended(sequence: ActiveSequence, token_ids: tuple[TokenId, ...]) -> tuple[tuple[TokenId, ...], FinishReason | None]:
    """Truncate tokens at the first end token, at the end found by the stop check, or at the maximum length.

    Returns:
        The tokens to emit, and the finish reason, which is None if the sequence continues.
    """
    most = sequence.longest - len(sequence.token_ids)
    kept = token_ids[:most]
    end = next((index for index, token in enumerate(kept) if token in sequence.end_token_ids), None)
    if sequence.request.stop_check is not None:
        num_tokens = sequence.request.stop_check(kept[:end])
        if num_tokens is not None:
            return kept[:num_tokens], "stop"
    if end is not None:
        return kept[: end + 1], "stop"
    return kept, "length" if len(kept) == most else None


def kept_nodes(num_pending: int, path: Sequence[int]) -> Sequence[int]:
    """Return the nodes of a pass that stay in the KV cache: the pending tokens and the accepted path after them."""
    if all(node == index for index, node in enumerate(path)):
        return range(num_pending + len(path))
    return [*range(num_pending), *(num_pending + node for node in path)]


def _count(totals: list[int], depths: Sequence[int]) -> None:
    for depth in depths:
        while len(totals) < depth:
            totals.append(0)
        totals[depth - 1] += 1
