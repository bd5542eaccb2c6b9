"""Whether a trained adapter may be published: requests that no training has seen are replayed before and after.

What serves now, the adapter published before or none, and the candidate draft for the same requests, without a target:
a step drafts as the engine does, walks the draft along the target's text, and goes one token further. The rule
``follow`` does the same where the target writes the record, so tokens a pass are those of the engine. Tokens a pass
must rise, seconds must not, and what went well before must go on so.

Seconds are those of passes, by their number: of the target as the record has them, of the draft model as a share of
these. So two replays of one model come to the same, and a difference is the adapter's.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant_graph.budget import CURVES, CostCurve, StepBudget
from speculant_graph.config import DraftConfig, DraftModelConfig, GenerationConfig
from speculant_graph.types import PassReport, TokenId
from speculant_verifier.draft_model import ModelDrafter
from speculant_verifier.draft_model.adapter_files import with_adapter
from speculant_verifier.draft_model.draft_budget import DraftPrice
from speculant_verifier.draft_model.factory import load_base
from speculant_verifier.draft_model.passes import CachedSequence, DraftPasses, TopRows
from speculant_verifier.engine.drafting import Drafting, depths_of
from speculant_verifier.engine.sequence import ActiveSequence, Request
from speculant_verifier.engine.totals import EngineTotals
from speculant_verifier.model import TargetModel
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.rules import TeacherForcedTarget
from speculant_verifier.rules.follow import follow
from speculant_verifier.speculation.controller import DraftLengthController

FEWEST = 8
"""Requests from which on an interval is asked for. Of fewer the mean decides: an interval would refuse nearly all."""
MOST_LOSS = 0.02
"""Share of the tokens a pass that may be lost on requests that were no failures."""
MOST_REQUESTS = 100
"""Requests of either kind that are replayed: more would make the interval little narrower, and take minutes."""
DRAFT_SHARE = 1 / 8
"""What a pass of the draft model is taken to cost, in passes of the target."""
DRAFT = DraftConfig(strategy="model")
"""How a replay drafts: without n-grams, which would hide what the model learned."""
_CURVE = CURVES["dense"]
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """The same requests before and after. Tokens a pass are means over requests."""

    num_requests: int
    tokens_per_pass_before: float
    tokens_per_pass_after: float
    interval_after_minus_before: tuple[float, float] | None
    """Holds 95 % of the mean difference when requests are drawn anew; None for fewer than :data:`FEWEST`."""
    tokens_per_s_before: float
    tokens_per_s_after: float

    @property
    def gain(self) -> float:
        """Tokens a pass after, less those before."""
        return self.tokens_per_pass_after - self.tokens_per_pass_before


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's verdict on a candidate."""

    is_better: bool
    """Whether it may be published."""
    reason: str
    """Why, for people."""
    failures: Comparison | None
    """Of what it was trained for; of replay if the training had nothing else. None without a request."""
    replay: Comparison | None
    """Of requests that were no failures; None without one."""

    @property
    def replay_loss(self) -> float | None:
        """Share of their tokens a pass that is lost on requests that were no failures; negative: won."""
        return None if self.replay is None else -self.replay.gain / self.replay.tokens_per_pass_before

    def figures(self) -> dict[str, Any]:
        """Return it as values that JSON has."""
        return asdict(self) | {"replay_loss": self.replay_loss}


def judge(
    candidate: Path,
    present: Path | None,
    config: DraftModelConfig,
    records: Sequence[RequestRecord],
) -> Verdict:
    """Compare a candidate with what serves now.

    Args:
        candidate: the adapter.
        present: the one that serves; None: the model without any.
        config: the draft model.
        records: requests that neither was trained on.

    Raises:
        ConfigError: the model can't be loaded, or the present adapter is not of it.
    """
    timed = [record for record in records if record.pass_s > 0.0]  # others came without a pass
    replay = [record for record in timed if not record.is_failure][:MOST_REQUESTS]
    failures = [record for record in timed if record.is_failure][:MOST_REQUESTS]
    if not failures:
        failures, replay = replay, []
    if not failures:
        return Verdict(False, "no request was held out to judge by", None, None)
    pass_s = sum(record.pass_s for record in failures + replay) / len(failures + replay)
    before, after = (Replay(_load_adapted(config, each), pass_s) for each in (present, candidate))
    compared = compare(before, after, failures)
    remembered = compare(before, after, replay) if replay else None
    reason = objection(compared, remembered)
    return Verdict(not reason, reason or "tokens a pass rise and tokens a second do not fall", compared, remembered)


def compare(before: Replay, after: Replay, records: Sequence[RequestRecord]) -> Comparison:
    """Replay requests with both; at least one request."""
    runs = [[each.run(record) for each in (before, after)] for record in records]
    sizes = np.array([len(record.output) for record in records])
    num_passes, seconds = (np.array([[run[part] for run in pair] for pair in runs]) for part in (0, 1))
    per_pass, per_s = sizes[:, None] / num_passes, (sizes.sum() / seconds.sum(0)).tolist()
    differences = per_pass[:, 1] - per_pass[:, 0]
    interval = None
    if len(records) >= FEWEST:
        drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, len(records))).mean(1)
        low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
        interval = (low, high)
    before_per_pass, after_per_pass = per_pass.mean(0).tolist()
    return Comparison(
        num_requests=len(records),
        tokens_per_pass_before=before_per_pass,
        tokens_per_pass_after=after_per_pass,
        interval_after_minus_before=interval,
        tokens_per_s_before=per_s[0],
        tokens_per_s_after=per_s[1],
    )


def objection(failures: Comparison, replay: Comparison | None) -> str:
    """Return why a candidate is refused; empty if it is not."""
    interval = failures.interval_after_minus_before
    if failures.gain <= 0.0:
        return "tokens a pass do not rise"
    if interval is not None and interval[0] <= 0.0:
        return f"tokens a pass rise by {failures.gain:.3f}, which may be chance"
    if failures.tokens_per_s_after < failures.tokens_per_s_before:
        return "tokens a second fall"
    if replay is not None and -replay.gain > MOST_LOSS * replay.tokens_per_pass_before:
        return f"more than {MOST_LOSS:.0%} of the tokens a pass are lost on requests that went well"
    return ""


def _curve(pass_s: float) -> CostCurve:
    """Return what passes cost if one over a single token takes so many seconds."""
    return CostCurve(_CURVE.tokens, tuple(1e3 * pass_s * each / _CURVE.ms[0] for each in _CURVE.ms))


class Replay:
    """One draft model that learns online from request to request, as it does where it serves."""

    def __init__(
        self, model: TargetModel, pass_s: float, draft: DraftConfig = DRAFT, draft_share: float = DRAFT_SHARE
    ) -> None:
        """Begin without experience.

        Args:
            model: what drafts.
            pass_s: mean seconds of a pass of the target.
            draft: how to draft.
            draft_share: what a pass of the draft model costs, in passes of the target.
        """
        budget = StepBudget(_curve(pass_s))
        passes = TimedPasses(model, draft_share * pass_s)
        self._drafter = ModelDrafter(
            passes, DraftPrice(budget, _curve(draft_share * pass_s)), draft, clock=passes.clock
        )
        self._controller = DraftLengthController(budget, has_predictions=True)
        # Of a target it asks for lengths alone; where the draft model ends, there is no draft.
        self._drafting = Drafting(model, self._drafter, self._controller, draft, EngineTotals())

    def run(self, record: RequestRecord) -> tuple[int, float]:
        """Replay a request that was written in some seconds a pass; return passes of the target, and all seconds."""
        config = GenerationConfig(max_tokens=len(record.output), ignore_end_tokens=True)
        sequence = ActiveSequence(Request(0, record.prompt, config), token_ids=list(record.prompt), has_session=True)
        sequence.history = self._controller.new_history()
        self._drafter.open(sequence.session_id)
        seconds = 0.0
        while sequence.num_remaining:
            [draft] = self._drafting.drafts([sequence])
            depths = depths_of(draft)
            verdict = follow(draft, TeacherForcedTarget(record.output[sequence.num_emitted :], [0, *depths]), float)
            sequence.num_steps += 1
            sequence.token_ids += verdict.token_ids
            self._drafting.observe(sequence, draft, depths, len(verdict.path))
            pass_s = record.pass_s * _CURVE.relative(1 + len(draft))
            seconds += pass_s + self._drafter.observe(PassReport(pass_s))
        self._drafter.finish(sequence.session_id)
        return sequence.num_steps, seconds


class TimedPasses(DraftPasses):
    """Passes that take equally long by a clock of their own."""

    def __init__(self, model: TargetModel, pass_s: float) -> None:
        """Take the model and how long they take."""
        super().__init__(model, 1)
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


def _load_adapted(config: DraftModelConfig, adapter: Path | None) -> TargetModel:
    """Load a draft model, with an adapter added to its weights or without."""
    model, fingerprint = load_base(config)
    if adapter is not None:
        model, _ = with_adapter(model, config.name, adapter)
    return TargetModel(model, None, config.name, fingerprint)
