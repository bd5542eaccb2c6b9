"""Replays recorded requests with a draft model and no target: what its drafts would have saved.

A step drafts as the engine does, walks the draft along what the target wrote, and goes on one token behind it: the rule
``follow`` does the same where the target writes the record. So tokens a pass are those of the engine. Seconds of the
target's passes come from the record. Those of drafting are measured, as time of this thread: a training has the lowest
priority, and what it waits for a core is nothing that drafts cost where they are served. What is drafted does not
depend on them: two replays of one model come to the same, so that a difference is the adapter's.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.config_learning import DraftModelConfig
from speculant_graph.draft.cost import COST_CURVES
from speculant_graph.types import TokenId
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.adapter_files import check_adapter, merge
from speculant_verifier.draft_model.opening import load_base
from speculant_verifier.draft_model.passes import CachedSequence, DraftPasses, TopRows
from speculant_verifier.draft_model.price import DraftPrice, PassTimes
from speculant_verifier.engine.drafting import Drafting, depths_of
from speculant_verifier.engine.sequence import ActiveSequence, Request
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.rules import TargetDistribution
from speculant_verifier.rules.follow import follow
from speculant_verifier.speculation.controller import DraftLengthController

DRAFT = DraftConfig(strategy="model")
"""How a replay drafts: without n-grams, which would hide what the model learned."""
_CURVE = COST_CURVES["dense"]
DRAFT_SHARE = 1 / 8
"""What a pass of the draft model is taken to cost, in passes of the target, where it is decided how much to draft. Were
that measured, two trainings on the same records could come to opposite verdicts."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay of one request came to."""

    num_tokens: int
    num_passes: int
    """Passes of the target."""
    seconds: float
    """Of drafting and of these passes."""

    @property
    def tokens_per_pass(self) -> float:
        """Tokens that a pass emits, its own one included."""
        return self.num_tokens / self.num_passes


class Replay:
    """One draft model that learns online from request to request, as it does where it serves."""

    def __init__(
        self,
        model: TargetModel,
        price: DraftPrice,
        pass_s: float,
        draft: DraftConfig = DRAFT,
    ) -> None:
        """Begin without experience.

        Args:
            model: what drafts.
            price: what passes of both models take.
            pass_s: seconds that a pass of the draft model is taken to need.
            draft: how to draft.
        """
        passes = TimedPasses(model, pass_s)
        self._drafter = ModelDrafter(passes, price, draft, clock=passes.clock)
        self._controller = DraftLengthController(lambda _, width: _CURVE.table(width), has_predictions=True)
        # Of a target it asks for lengths alone; where the draft model ends, there is no draft.
        self._drafting = Drafting(model, self._drafter, self._controller, draft, EngineTotals())

    def run(self, record: RequestRecord) -> Replayed:
        """Replay a request that was written in some seconds a pass."""
        config = GenerationConfig(max_tokens=len(record.output), ignore_end_tokens=True)
        sequence = ActiveSequence(Request(0, record.prompt, config), token_ids=list(record.prompt), has_session=True)
        sequence.history = self._controller.new_history()
        self._drafter.open(sequence.session_id)
        seconds = 0.0
        while sequence.num_remaining:
            started_s = time.thread_time()
            [draft] = self._drafting.drafts([sequence])
            seconds += time.thread_time() - started_s
            depths = depths_of(draft)
            verdict = follow(draft, _Recorded(record.output[sequence.num_emitted :], [0, *depths]), float)
            sequence.num_steps += 1
            sequence.token_ids += verdict.token_ids
            self._drafting.observe(sequence, draft, depths, len(verdict.path))
            pass_s = record.pass_s * _CURVE.at(1 + len(draft))
            self._drafter.note_pass(1, 1 + len(draft), pass_s)
            seconds += pass_s
        self._drafter.finish(sequence.session_id)
        return Replayed(sequence.num_emitted, sequence.num_steps, seconds)


class _Recorded:
    """A target that chooses what it chose before."""

    def __init__(self, token_ids: Sequence[TokenId], depths: Sequence[int]) -> None:
        self._token_ids, self._depths = token_ids, depths

    def choice_after(self, node: int) -> TokenId:
        return self._token_ids[self._depths[node]]

    def after(self, node: int) -> TargetDistribution:
        raise NotImplementedError  # of rules that weigh p against q


def load_adapted(config: DraftModelConfig, adapter: Path | None) -> TargetModel:
    """Load a draft model, with an adapter added to its weights or without.

    Raises:
        ConfigError: it can't be loaded, or the adapter is not of it.
    """
    model, fingerprint = load_base(config)
    if adapter is not None:
        model = merge(model, check_adapter(adapter, model, config.name).folder)
    return TargetModel(model, None, config.name, fingerprint)


def replays_of(models: Sequence[TargetModel], records: Sequence[RequestRecord]) -> list[Replay]:
    """Return replays of models of the same size, which are priced alike, before requests of one target.

    Args:
        models: what drafts.
        records: all that will be replayed, at least one.
    """
    pass_s = sum(record.pass_s for record in records) / len(records)
    target_s: PassTimes = lambda _, width: pass_s * _CURVE.table(width)  # noqa: E731
    draft_s: PassTimes = lambda rows, width: DRAFT_SHARE * target_s(rows, width)  # noqa: E731
    return [Replay(model, DraftPrice(target_s, draft_s), DRAFT_SHARE * pass_s) for model in models]


class TimedPasses(DraftPasses):
    """Passes that take equally long by a clock of their own."""

    def __init__(self, model: TargetModel, pass_s: float) -> None:
        """Take the model and how long they take."""
        super().__init__(model, 1, VerifierConfig().prefill_chunk)
        self._pass_s, self._now_s = pass_s, 0.0

    def clock(self) -> float:
        """Return the seconds of all passes so far."""
        return self._now_s

    def run(
        self, sequences: Sequence[CachedSequence], nodes: Sequence[Sequence[tuple[int, TokenId]]], width: int
    ) -> list[TopRows]:
        """Run one; see :class:`DraftPasses`."""
        self._now_s += self._pass_s
        return super().run(sequences, nodes, width)
