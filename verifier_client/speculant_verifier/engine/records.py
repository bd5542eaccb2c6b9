"""Detailed mode: what happens to a request is collected while it is decoded, and recorded when it has ended.

Only requests that have drafts of the drafter's are recorded: not those whose callers bring theirs, those with
``speculation = "off"``, or those that are made to write a given text. Requests that fail or are cancelled are not,
either.

The most probable tokens are those of the target's raw logits, before a request's processors and temperature. So records
of greedy and sampled requests are of one kind: training on them learns the model, not the settings of a request.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from loguru import logger
from torch import Tensor

from speculant_graph.config import DraftConfig, RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.engine.sequence import ActiveSequence, is_out_of_memory
from speculant_verifier.model import TargetModel
from speculant_verifier.records.database import RecordWriter
from speculant_verifier.records.record import RecordIdentity, RequestRecord, Trace
from speculant_verifier.sampling import top_logprobs

_TOP_K = 16
"""Most probable tokens of the target that are kept of a position: more would teach a draft model next to nothing."""


class Records:
    """Collects and writes the records of one engine."""

    def __init__(
        self, target: TargetModel, config: RecordConfig, draft: DraftConfig, identity: RecordIdentity | None
    ) -> None:
        """Open the folder.

        Args:
            target: the model.
            config: it names a folder.
            draft: how drafts are made.
            identity: what else records hold; it may change.

        Raises:
            ConfigError: the folder can't be made.
        """
        self._config, self._strategy, self._target = config, draft.strategy, target.name
        self._identity = identity or RecordIdentity()
        try:
            self._tokenizer = target.fingerprint.sha256
        except ConfigError:  # only token ids go in and out
            self._tokenizer = ""
        self._random = random.SystemRandom()  # a program may have seeded the other one
        self.writer = RecordWriter(config)
        """Writes them."""

    def begin(self, sequence: ActiveSequence) -> None:
        """Collect what happens to a sequence from now on, if it is one to be recorded."""
        request = sequence.request
        if not (request.wrap_target or request.config.speculation == "off"):
            sequence.trace = Trace(self._strategy)

    def look(self, sequences: Sequence[ActiveSequence], logits: Tensor) -> None:
        """Collect the most probable tokens of the positions that a pass emitted.

        Args:
            sequences: those of the pass.
            logits: raw ones after each sequence and after every node of its draft, shape ``[sequences, 1 + nodes, V]``.
        """
        rows = [
            (row, node)
            for row, each in enumerate(sequences)
            for node in (each.trace.nodes if each.trace is not None else ())
        ]
        if not rows:
            return
        try:
            top = top_logprobs(logits[tuple(zip(*rows, strict=True))], _TOP_K)
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            logger.warning("no memory is left for records of requests that are running; lower verifier.max_batch_size")
            for each in sequences:
                each.trace = None
            return
        start = 0
        for each in sequences:
            if each.trace is not None and each.trace.nodes:
                end = start + len(each.trace.nodes)
                each.trace.add_top(top[start:end])
                start = end

    def finish(self, sequence: ActiveSequence, rolling: float | None) -> None:
        """Record a sequence that has ended without an error.

        Args:
            sequence: what ended.
            rolling: accepted share of the tried positions of the tenant's requests before it; None: there were none.
        """
        trace, request, output = sequence.trace, sequence.request, sequence.output
        if trace is None or not output:
            return
        threshold = self._config.threshold
        least = rolling or 0.0 if threshold == "relative" else threshold
        num_accepted = sum(trace.accepted)
        options, identity = request.session, self._identity
        self.writer.record(
            RequestRecord(
                request_id=str(sequence.session_id),
                time_s=time.time(),
                tenant=(options.tenant if options is not None else None) or identity.tenant,
                target=self._target,
                tokenizer=self._tokenizer,
                draft_model=identity.draft_model,
                adapter=identity.adapter,
                strategy=trace.strategy,
                rule=request.config.rule,
                temperature=request.config.temperature,
                seed=request.config.seed,
                document=request.document,
                prompt=sequence.prompt,
                output=output,
                drafted=tuple(trace.drafted),
                sources=tuple(trace.sources),
                confidences=trace.rounded_confidences,
                accepted=tuple(trace.accepted),
                top_token_ids=trace.top_token_ids,
                top_logprobs=trace.top_logprobs,
                num_passes=sequence.num_steps,
                pass_s=sequence.times.forward_s / max(1, sequence.num_steps),
                is_failure=num_accepted < least * sequence.num_tried,
                reservoir_key=self._random.random(),
            )
        )

    def close(self) -> None:
        """Write what waits."""
        self.writer.close()
