"""The decoding loop: requests join and leave a running batch; a step drafts, verifies and emits for all of them.

A step reads a chunk of the unread prompts and sends the drafter one message for all sequences. One forward pass then
reads each sequence's pending tokens and draft. Each request's rule verifies its draft, and the step commits and emits
the accepted tokens. An error in one request ends only that request. The engine handles token ids, not text, and does
not use gRPC. Only one thread at a time may use the engine.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence

from loguru import logger

from speculant_graph.budget import StepBudget
from speculant_graph.config import DraftConfig, RecordConfig, VerifierConfig
from speculant_graph.errors import SpeculantError, TokenizerMismatchError
from speculant_graph.types import Drafter, TokenId, capabilities_of
from speculant_verifier.engine.admission import Admission
from speculant_verifier.engine.drafting import Drafting
from speculant_verifier.engine.logits_cache import LogitsCache
from speculant_verifier.engine.memory_pressure import MemoryPressure
from speculant_verifier.engine.prompts import Prefill
from speculant_verifier.engine.records import Records
from speculant_verifier.engine.sequence import (
    MOST_PENDING,
    ActiveSequence,
    Request,
    StepOutput,
    is_out_of_memory,
    out_of_memory,
)
from speculant_verifier.engine.totals import EngineTotals, RollingAcceptance
from speculant_verifier.engine.verification import Verification
from speculant_verifier.model import PREFILL_CHUNK, TargetModel
from speculant_verifier.records.database import RecordWriter
from speculant_verifier.records.record import RecordIdentity
from speculant_verifier.sampling import Sampler, end_token_ids_of, processors_of
from speculant_verifier.speculation.controller import DraftLengthController
from speculant_verifier.suitability import require_request


class Engine:
    """Decodes any number of requests, at most ``max_batch_size`` at a time."""

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter,
        config: VerifierConfig,
        draft: DraftConfig,
        *,
        budget: StepBudget | None = None,
        require_same_tokenizer: bool = True,
        record: RecordConfig | None = None,
        identity: RecordIdentity | None = None,
        prefill_chunk: int = PREFILL_CHUNK,
    ) -> None:
        """Set up the engine without running the model.

        Args:
            target: the model.
            drafter: the source of drafts.
            config: limits of the batch and of memory.
            draft: drafting settings; ``k`` is the maximum number of nodes drafted per sequence and step. If ``k`` is 0,
                nothing is drafted.
            budget: decides which drafts are worth their cost; None: passes are assumed to cost as much as on a typical
                machine.
            require_same_tokenizer: whether to raise an error if the drafter's tokenizer differs from the target's at
                the first request.
            record: which finished requests are recorded, and in which folder. If ``record`` or its folder is None, no
                request is recorded.
            identity: fields of the records that only the caller knows; the caller may change them at any time.
            prefill_chunk: maximum number of prompt tokens that are read between two steps of the running sequences.

        Raises:
            ConfigError: the records folder can't be created.
        """
        self._target, self._drafter, self._config, self._draft = target, drafter, config, draft
        self._waiting: deque[ActiveSequence] = deque()
        self._running: list[ActiveSequence] = []
        self._failed: list[StepOutput] = []
        self._numbers = itertools.count()
        self._has_emitted = self._has_warned = False
        self._require_same_tokenizer = require_same_tokenizer
        self._is_full = False  # the first waiting sequence does not fit into the batch
        self.totals = EngineTotals()
        """Times and counts since the engine was created."""
        self.admission = Admission(target, config, draft.k, prefill_chunk)
        """Admission control, which decides which requests run, and owns their KV cache."""
        cache, self.prefixes = self.admission.cache, self.admission.prefixes
        self._prefill = Prefill(target, cache, self.prefixes, self.admission.prefill_chunk, self.totals)
        has_predictions = capabilities_of(drafter, draft.strategy).is_calibrated
        self._budget = budget or StepBudget(target.typical_cost)
        self._controller = DraftLengthController(
            self._budget, has_predictions=has_predictions, is_measured=budget is not None
        )
        self._drafting = Drafting(target, drafter, self._controller, draft, self.totals, config.max_batch_size)
        self.acceptance = RollingAcceptance()
        """Recent acceptance rate of drafts, per tenant."""
        self._records = None if record is None or record.folder is None else Records(target, record, draft, identity)
        self.logits_cache = LogitsCache(target.name, config.target_cache)
        """Cache of the target's logits, as in SpecExec; the cache counts its hits and evictions."""
        self._verification = Verification(
            target, cache, self.logits_cache, draft, self._controller, self.totals, self._records
        )
        weights = () if target.offload is None else (target.offload,)
        caches, parts = (self.prefixes, self.logits_cache), (self._drafting, *weights, self.admission)
        self._pressure = MemoryPressure(target, caches, parts, self._drafting.spare_bytes, self.totals)

    @property
    def has_work(self) -> bool:
        """Whether the next step has any work to do."""
        can_admit = bool(self._waiting) and not self._is_full
        return bool(self._failed) or can_admit or bool(self._running)

    @property
    def num_running(self) -> int:
        """Number of sequences in the batch."""
        return len(self._running)

    @property
    def recorder(self) -> RecordWriter | None:
        """Writer of the records of finished requests; None if requests are not recorded."""
        return None if self._records is None else self._records.writer

    @property
    def num_kv_tokens(self) -> int:
        """Number of tokens in the KV cache, summed over the running sequences."""
        return sum(sequence.num_cached for sequence in self._running.copy())  # a step may be changing it

    @property
    def num_reserved_kv_tokens(self) -> int:
        """Number of reserved KV tokens: running sequences times the greatest length that any of them may reach."""
        return self.admission.reserved_tokens(self._running.copy())  # a step may be changing it

    @property
    def num_kv_bytes(self) -> int:
        """Size of the KV cache in bytes, including free rows and slots."""
        return self.admission.cache.num_bytes

    @property
    def num_waiting(self) -> int:
        """Number of requests that wait for a row of the KV cache."""
        return len(self._waiting)

    def check(self, request: Request) -> None:
        """Refuse a request that could never be decoded; any thread may call this.

        Raises:
            SpeculantError: the request is invalid.
        """
        self.admission.check(request)
        self._sampler(request, self._ends_of(request))

    def add(self, request: Request) -> ActiveSequence:
        """Add a request and return its sequence; an invalid request ends with the finish reason ``error``.

        Outputs of the request refer to the returned sequence.
        """
        history = self._controller.new_history()
        sequence = ActiveSequence(request, next(self._numbers), token_ids=list(request.prompt), history=history)
        sequence.arrived_s = time.perf_counter()
        try:
            if request.refusal is not None:
                raise request.refusal
            require_request(request.config, self._draft)
            self.admission.check(request)
            sequence.end_token_ids = self._ends_of(request)
            sequence.sampler = self._sampler(request, sequence.end_token_ids)
        except SpeculantError as error:
            self._failed.append(_failure(sequence, error))
            return sequence
        if request.config.ignore_end_tokens:
            sequence.end_token_ids = frozenset()
        if self._records is not None:
            self._records.begin(sequence)
        self._waiting.append(sequence)
        return sequence

    def cancel(self, sequence: ActiveSequence) -> None:
        """Stop decoding a sequence and free its row; nothing more is emitted for it."""
        self._failed = [output for output in self._failed if output.sequence is not sequence]
        self.totals.num_cancelled += sequence in self._running or sequence in self._waiting
        if sequence in self._running:
            self._leave(sequence)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)
            self._is_full = False

    def close(self) -> None:
        """Cancel everything."""
        for sequence in [*self._running, *self._waiting]:
            self.cancel(sequence)
        if self._records is not None:
            self._records.close()

    def run(self, requests: Iterable[Request]) -> Iterator[StepOutput]:
        """Decode requests and yield their outputs, step by step; outputs of other requests are dropped."""
        own = {id(sequence): sequence for sequence in map(self.add, requests)}
        try:
            while own:
                for output in self.step():
                    if id(output.sequence) in own:
                        if output.finish_reason is not None:
                            del own[id(output.sequence)]
                        yield output
        finally:  # also if the caller closes the iterator
            for sequence in own.values():
                self.cancel(sequence)

    def step(self) -> list[StepOutput]:
        """Do one step and return its outputs; do nothing if there is no work.

        Raises:
            TokenizerMismatchError: the drafter has a different tokenizer. The error is raised only before the first
                token is emitted, when failing is better than decoding all requests without drafts.
        """
        if not self.has_work:
            return []
        started_s = time.perf_counter()
        self._pressure.look()
        self._admit()
        outputs, self._failed = self._failed, []
        active = list(self._running)
        if self.logits_cache.bound:
            outputs += self._verification.emit_cached(active)
        ended = [output.sequence for output in outputs if output.finish_reason is not None]
        left = [sequence for sequence in active if sequence not in ended]
        if unread := [each for each in left if _num_pending(each) > MOST_PENDING]:
            outputs += self._guarded(self._prefill.step, self._prefill.selected(unread))
            left = [each for each in left if each.row >= 0 and _num_pending(each) <= MOST_PENDING]
        outputs += self._guarded(self._decode, left)
        now_s = time.perf_counter()
        elapsed_s = now_s - started_s
        for times in (self.totals.times, *(each.times for each in active)):
            times.total_s += elapsed_s
        self._drafting.show_rest([each.sequence for each in outputs if each.finish_reason in ("stop", "length")])
        for output in outputs:
            sequence = output.sequence
            if output.token_ids:
                self._has_emitted = True
                sequence.times.first_token_s = sequence.times.first_token_s or sequence.times.total_s
            self._note(output, now_s)
            if output.finish_reason is not None and sequence in self._running:
                self._leave(sequence)
        return outputs

    def _note(self, output: StepOutput, now_s: float) -> None:
        sequence, totals, count = output.sequence, self.totals, len(output.token_ids)
        if count:
            totals.num_tokens += count
            if sequence.emitted_s:
                totals.token_times.observe((now_s - sequence.emitted_s) / count, count)
            else:
                totals.first_token_times.observe(now_s - sequence.arrived_s)
            sequence.emitted_s = now_s
        if output.finish_reason is not None:
            totals.num_ended[output.finish_reason] += 1
            totals.request_times.observe(now_s - sequence.arrived_s)
            rolling, num_accepted = self.acceptance.of(sequence.tenant), sum(sequence.accepted_by_depth)
            sequence.rolling_acceptance = self.acceptance.add(sequence.tenant, sequence.num_tried, num_accepted)
            if output.finish_reason != "error" and self._records is not None:
                self._records.finish(sequence, rolling)

    def _ends_of(self, request: Request) -> frozenset[TokenId]:
        return end_token_ids_of(request.config, self._target.end_token_ids)

    def _sampler(self, request: Request, ends: frozenset[TokenId]) -> Sampler:
        length, processors, target = len(request.prompt), request.processors, self._target
        if processors is None:
            processors = processors_of(request.config, length, ends, target.vocabulary_size, target.device)
        constraint = None if request.grammar is None else request.grammar.constraint(length)
        return Sampler(request.config, processors, constraint=constraint)

    def _admit(self) -> None:
        while self._waiting:
            sequence = self._waiting[0]
            try:
                if not self.admission.admit(sequence, self._running, len(self._waiting)):
                    self._is_full = True
                    return
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                if not self._pressure.shed():
                    self._failed.append(_failure(self._waiting.popleft(), out_of_memory()))
                continue
            self._running.append(self._waiting.popleft())
            self.totals.num_prompt_tokens += len(sequence.prompt)
            self.totals.num_from_prefix_cache += sequence.num_from_prefix_cache
            self.totals.queue_times.observe(time.perf_counter() - sequence.arrived_s)
            if self._drafting.wants(sequence):
                self._open(sequence)

    def _open(self, sequence: ActiveSequence) -> None:
        try:
            options = sequence.request.session
            if options is None:
                self._drafter.open(sequence.session_id)
            else:
                sequence.drafter_problem = self._drafter.open(sequence.session_id, options) or ""
            sequence.has_session, self._has_warned = True, False
        except TokenizerMismatchError as error:
            self._drafter.finish(sequence.session_id)
            if self._require_same_tokenizer and not self._has_emitted:
                raise
            if not self._has_warned:
                logger.warning("the drafter has another tokenizer, continuing without drafts: {}", error)
            self._has_warned = True
        except SpeculantError as error:  # the drafter is configured to be strict
            self._failed.append(_failure(sequence, error))
            self._leave(sequence)
        except Exception as error:  # drafters may be third-party code
            logger.warning("the drafter can't open a session, continuing without drafts: {!r}; fix it", error)

    def _decode(self, sequences: Sequence[ActiveSequence]) -> list[StepOutput]:
        times = self.totals.times
        draft_s, pass_s = times.draft_s, times.forward_s
        has_pending = any(_num_pending(each) > 1 for each in sequences)  # the pass is wider than its drafts
        drafts = self._drafting.drafts(sequences)
        outputs = self._verification.step(sequences, drafts)
        sizes = [len(draft.token_ids) for draft in drafts]
        width, num_rows = 1 + max(sizes), len(sequences)
        draft_s, pass_s = times.draft_s - draft_s, times.forward_s - pass_s
        draft_s -= self._drafting.report(pass_s)
        if has_pending or pass_s <= 0.0 or not self._target.is_steady:
            return outputs
        if draft_s > 0.0 and self._drafter.state == "ok":  # an outage says nothing about the value of drafts
            num_new = sum(len(output.token_ids) for output in outputs)
            self._budget.observe(num_rows, num_rows * width, num_new, pass_s, draft_s, sum(sizes))
        elif width == 1:
            self._budget.observe_plain(num_rows, pass_s)
        return outputs

    def _guarded(self, work: object, sequences: Sequence[ActiveSequence]) -> list[StepOutput]:
        """Run part of a step; if memory is short even after all reductions, end the newest sequence and try again.

        Repeating the part is safe, because a part that runs out of memory has not changed anything yet.
        """
        left = sorted(sequences, key=lambda each: each.row)
        failures: list[StepOutput] = []
        while left:
            try:
                outputs: list[StepOutput] = work(left)  # type: ignore[operator]
                return failures + outputs
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
            if self._pressure.shed():
                continue
            youngest = max(left, key=lambda each: each.number)
            left.remove(youngest)
            failures.append(_failure(youngest, out_of_memory()))
            self._leave(youngest)  # another sequence may move to its row
            left.sort(key=lambda each: each.row)
        return failures

    def _leave(self, sequence: ActiveSequence) -> None:
        self._running.remove(sequence)
        self._is_full = False
        self.admission.release(sequence, self._running)
        self._running.sort(key=lambda each: each.row)
        if sequence.has_session:
            self._drafter.finish(sequence.session_id)


def _num_pending(sequence: ActiveSequence) -> int:
    return len(sequence.token_ids) - sequence.num_cached


def _failure(sequence: ActiveSequence, error: SpeculantError) -> StepOutput:
    sequence.error = error
    return StepOutput(sequence, (), 0, "error")
