"""Detailed mode: traces requests during decoding, and records each request when it ends.

A request is not recorded if it uses ``speculation = "off"`` or teacher forcing. A request that
fails or is cancelled is not recorded either.

The recorded top tokens come from the target's raw logits, before the request's processors and temperature change them.
Records of greedy and sampled requests are therefore comparable. A draft model trained on the records learns the
target's distribution, not the settings of a request.
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
"""Number of the target's top tokens that are recorded per position. Recording more top tokens would teach a draft model
next to nothing."""


class Records:
    """Collects and writes the records of one engine."""

    def __init__(
        self, target: TargetModel, config: RecordConfig, draft: DraftConfig, identity: RecordIdentity | None
    ) -> None:
        """Open the folder.

        Args:
            target: the model.
            config: settings of the records, including the folder.
            draft: drafting settings.
            identity: fields of the records that only the caller knows; they may change.

        Raises:
            ConfigError: the folder can't be created.
        """
        self._config, self._strategy, self._target = config, draft.strategy, target.name
        self._identity = identity or RecordIdentity()
        try:
            self._tokenizer = target.fingerprint.sha256
        except ConfigError:  # no tokenizer: requests and outputs are token ids
            self._tokenizer = ""
        self._random = random.SystemRandom()  # the program may have seeded the default generator
        self.writer = RecordWriter(config)
        """Writes the records."""

    def begin(self, sequence: ActiveSequence) -> None:
        """Start a sequence's trace, if the sequence is to be recorded."""
        request = sequence.request
        if not (request.wrap_target or request.config.speculation == "off"):
            sequence.trace = Trace(self._strategy)

    def look(self, sequences: Sequence[ActiveSequence], logits: Tensor) -> None:
        """Add the target's top tokens to each trace, for every position whose token a pass emitted.

        Args:
            sequences: sequences of the pass.
            logits: raw logits after each sequence and every node of its draft, shape ``[sequences, 1 + nodes, V]``.
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
            sequence: the ended sequence.
            rolling: accepted share of the tried positions over the tenant's earlier requests; None if there are none.
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
        """Write all records that are not written yet."""
        self.writer.close()
