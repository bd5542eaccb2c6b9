"""Detailed mode: what the target rejected goes to the recorder."""

from __future__ import annotations

import time
from collections.abc import Sequence

from torch import Tensor

from speculant_graph.config import VerifierConfig
from speculant_graph.types import Draft, TokenId
from speculant_verifier.disagreements import DisagreementRecorder
from speculant_verifier.disagreements.rejections import Origin, TargetView, disagreements_of, view_of
from speculant_verifier.engine.sequence import ActiveSequence
from speculant_verifier.rules import Verdict


class Records:
    """Writes down the disagreements of one engine, if that is asked for."""

    def __init__(self, config: VerifierConfig) -> None:
        """Open the folder.

        Raises:
            ConfigError: the folder can't be made.
        """
        self._config = config
        self._recorder = (
            DisagreementRecorder(config.disagreements, max_bytes=config.disagreement_bytes)
            if config.disagreements is not None
            else None
        )

    def take(self, sequence: ActiveSequence, draft: Draft, verdict: Verdict, logits: Tensor) -> None:
        """Record what was rejected of a draft.

        Args:
            sequence: as it was before the draft.
            draft: what was verified.
            verdict: what of it was accepted and emitted.
            logits: raw ones after the sequence and after every node, shape ``[1 + nodes, V]``.
        """
        if self._recorder is None or not len(draft):
            return

        def look(node: int, token_ids: Sequence[TokenId]) -> TargetView:
            return view_of(logits[node], token_ids, self._config.disagreement_top_k)

        num_drafted = sum(sequence.drafted_by_depth)
        origin = Origin(
            request_id=sequence.request.request_id or str(sequence.session_id),
            session_id=sequence.session_id,
            rule=sequence.config.rule,
            acceptance_rate=sum(sequence.accepted_by_depth) / num_drafted if num_drafted else 0.0,
            time_s=time.time(),
        )
        found = disagreements_of(
            sequence.token_ids, draft, verdict, look, origin, context_tokens=self._config.disagreement_context
        )
        for disagreement in found:
            self._recorder.record(disagreement)

    def close(self) -> None:
        """Write what waits."""
        if self._recorder is not None:
            self._recorder.close()
