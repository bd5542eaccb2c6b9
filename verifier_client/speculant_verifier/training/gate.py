"""Decides whether a trained adapter may be published, by replaying held-out requests.

The draft model replays the same requests twice: with the present adapter, if any, and with the candidate. The target
model does not run. Each step drafts as in the engine, accepts the draft tokens that match the target's recorded text,
and adds one more token of this text. With a running target, the rule ``follow`` accepts the same tokens, so a replay
has the same tokens per pass as the engine. A candidate must raise tokens per pass and must not lower tokens per second.
On requests that were not failures, the candidate may lose at most the share :data:`MOST_LOSS` of the tokens per pass.

The time of a replay is computed from its passes. A target pass over one token takes the recorded time, and longer
target passes take more by a typical cost curve. A pass of the draft model is assumed to take a fixed share of the mean
recorded time. Two replays of one model therefore give the same figures, and any difference comes from the adapter.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

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
from speculant_verifier.training.examples import documents_of

FEWEST_FAILURES = 30
"""Required number of held-out failures; with fewer, a candidate may look better by chance."""
FEWEST_DOCUMENTS = 10
"""Required number of documents among the held-out failures. Requests of one document are similar, so with fewer
documents the confidence interval is too narrow."""
FEWEST_REPLAY = 60
"""Required number of held-out requests that are not failures, to detect forgetting."""
MOST_LOSS = 0.02
"""Largest allowed loss of tokens per pass on requests that were not failures, as a share."""
MOST_REQUESTS = 100
"""Maximum number of failures to replay, and also of other requests to replay. More requests would take minutes, and
hardly narrow the confidence interval."""
DRAFT_SHARE = 1 / 8
"""Assumed duration of a pass of the draft model, as a share of a target pass."""
DRAFT = DraftConfig(strategy="model")
"""Drafting settings of a replay, without n-grams, because they would hide the draft model's progress."""
_SILENCE_S = 5.0
"""Seconds between two lines of progress."""
_CURVE = CURVES["dense"]
_RESAMPLES = 10_000


@dataclass(frozen=True, slots=True)
class Comparison:
    """Results for the same requests with the present adapter (before) and with the candidate (after).

    Tokens per pass are means over requests.
    """

    num_requests: int
    tokens_per_pass_before: float
    tokens_per_pass_after: float
    num_documents: int
    """Number of documents to which the requests belong."""
    interval_after_minus_before: tuple[float, float]
    """95 % confidence interval of the mean difference, from resampled documents; with a single document, both ends are
    the mean."""
    tokens_per_s_before: float
    tokens_per_s_after: float

    @property
    def gain(self) -> float:
        """Change in tokens per pass (after minus before)."""
        return self.tokens_per_pass_after - self.tokens_per_pass_before


@dataclass(frozen=True, slots=True)
class Verdict:
    """The gate's verdict on a candidate."""

    is_better: bool
    """Whether the candidate may be published."""
    reason: str
    """Reason for the verdict, as text."""
    everything: Comparison | None
    """Comparison over failures and other requests, weighted by their actual shares; None if too few were held out."""
    failures: Comparison | None
    """Comparison over failures; None if too few were held out."""
    replay: Comparison | None
    """Comparison over requests that were not failures; None if too few were held out."""

    @property
    def replay_loss(self) -> float | None:
        """Loss of tokens per pass on requests that were not failures, as a share; negative for a gain."""
        return None if self.replay is None else -self.replay.gain / self.replay.tokens_per_pass_before

    def figures(self) -> dict[str, Any]:
        """Return the verdict as JSON values."""
        return asdict(self) | {"replay_loss": self.replay_loss}


def judge(
    candidate: Path,
    present: Path | None,
    config: DraftModelConfig,
    records: Sequence[RequestRecord],
    report: Callable[[str], object] = lambda _line: None,
) -> Verdict:
    """Compare a candidate with the present adapter.

    Args:
        candidate: folder of the trained adapter.
        present: folder of the present adapter; None: the base model without an adapter.
        config: settings of the draft model.
        records: requests on which neither adapter was trained.
        report: called with lines of text that show the progress.

    Raises:
        ConfigError: the model can't be loaded, or the present adapter is for another model.
    """
    if too_few := shortage(records):
        return Verdict(False, too_few, None, None, None)
    failures, replay = _judges(records)
    pass_s = sum(record.pass_s for record in failures + replay) / len(failures + replay)
    judges = failures + replay
    # One after the other, because both models together may not fit into memory.
    # The candidate comes first, because it may be unusable.
    after = _replayed(config, candidate, judges, pass_s, lambda line: report(f"gate, new adapter: {line}"))
    before = _replayed(config, present, judges, pass_s, lambda line: report(f"gate, as now: {line}"))
    runs = list(zip(before, after, strict=True))
    everything = compare(judges, runs, weights_of(records, failures, replay))
    num_failures = len(failures)
    compared, remembered = compare(failures, runs[:num_failures]), compare(replay, runs[num_failures:])
    reason = objection(everything, compared, remembered)
    why = reason or "tokens per pass rise and tokens per second do not fall"
    return Verdict(not reason, why, everything, compared, remembered)


def weights_of(
    records: Sequence[RequestRecord], failures: Sequence[RequestRecord], replay: Sequence[RequestRecord]
) -> NDArray[np.float64]:
    """Return how many requests each replayed request represents, failures first.

    Failures are requests for which the present adapter drafted badly. On failures alone, any other model would
    therefore look better, and on all other requests worse (regression to the mean). The mean over failures and other
    requests is unbiased if each kind is weighted by its share of all requests. All failures are recorded; of the other
    requests, only the ones with the smallest keys are recorded. The largest key among m replayed requests that are not
    failures is therefore about m / (m + 1) of the recorded share of these requests.

    Args:
        records: all held-out requests.
        failures: the replayed failures.
        replay: the replayed requests that are not failures.
    """
    num_failures = sum(record.is_failure for record in records)
    largest, num_others = max(record.reservoir_key for record in replay), len(records) - num_failures
    kept_share = min(1.0, largest * (len(replay) + 1) / len(replay))
    weights = num_failures / len(failures), num_others / max(kept_share, 1e-9) / len(replay)
    return np.repeat(weights, (len(failures), len(replay)))


def compare(
    records: Sequence[RequestRecord],
    runs: Sequence[tuple[tuple[int, float], tuple[int, float]]],
    weights: NDArray[np.float64] | None = None,
) -> Comparison:
    """Compare replays, with a confidence interval from a bootstrap over documents.

    Args:
        records: at least one request.
        runs: for each request, the number of passes and the seconds, with the present adapter and with the candidate.
        weights: number of requests that each request represents; None: 1 for each.
    """
    weights = np.ones(len(records)) if weights is None else weights
    sizes = np.array([len(record.output) for record in records])
    num_passes, seconds = (np.array([[run[part] for run in pair] for pair in runs]) for part in (0, 1))
    per_pass, per_s = sizes[:, None] / num_passes, (weights @ sizes / (weights @ seconds)).tolist()
    differences = per_pass[:, 1] - per_pass[:, 0]
    documents = documents_of(records)
    before_per_pass, after_per_pass = np.average(per_pass, 0, weights).tolist()
    return Comparison(
        num_requests=len(records),
        tokens_per_pass_before=before_per_pass,
        tokens_per_pass_after=after_per_pass,
        num_documents=len(set(documents)),
        interval_after_minus_before=interval_of(differences, documents, weights),
        tokens_per_s_before=per_s[0],
        tokens_per_s_after=per_s[1],
    )


def interval_of(
    differences: NDArray[np.float64],
    documents: Sequence[str],
    weights: NDArray[np.float64],
    num_draws: int = _RESAMPLES,
) -> tuple[float, float]:
    """Return the 95 % confidence interval of the mean, by resampling documents with all their requests.

    Requests of a document are similar, so resampling single requests would make the interval too narrow. See Davison
    and Hinkley 1997, "Bootstrap Methods and their Application", section 3.8.

    Args:
        differences: change in tokens per pass of each request.
        documents: document of each request.
        weights: number of requests that each request represents.
        num_draws: number of resamples.
    """
    names, which = np.unique(documents, return_inverse=True)
    sums, sizes = np.bincount(which, weights * differences), np.bincount(which, weights)
    drawn = np.random.default_rng(0).integers(len(names), size=(num_draws, len(names)))
    low, high = np.percentile(sums[drawn].sum(1) / sizes[drawn].sum(1), (2.5, 97.5)).tolist()
    return low, high


def shortage(records: Sequence[RequestRecord]) -> str:
    """Return why there are too few held-out requests to judge; empty if there are enough."""
    failures, replay = _judges(records)
    num_documents = len(set(documents_of(failures)))
    enough = (FEWEST_FAILURES, FEWEST_DOCUMENTS, FEWEST_REPLAY)
    if all(found >= least for found, least in zip((len(failures), num_documents, len(replay)), enough, strict=True)):
        return ""
    return (
        f"the gate needs {FEWEST_FAILURES} failures of {FEWEST_DOCUMENTS} documents and {FEWEST_REPLAY} other requests "
        f"that are held out, and has {len(failures)} of {num_documents} and {len(replay)}"
    )


def _judges(records: Sequence[RequestRecord]) -> tuple[list[RequestRecord], list[RequestRecord]]:
    """Return the failures and the other requests to replay."""
    timed = [record for record in records if record.pass_s > 0.0]  # the others needed no pass
    kinds = [record for record in timed if record.is_failure], [record for record in timed if not record.is_failure]
    chosen = random.Random(0)
    failures, replay = (chosen.sample(kind, min(len(kind), MOST_REQUESTS)) for kind in kinds)
    return failures, replay


def objection(everything: Comparison, failures: Comparison, replay: Comparison) -> str:
    """Return why a candidate is rejected; empty if it is accepted."""
    if min(everything.gain, failures.gain) <= 0.0:
        return "tokens per pass do not rise"
    if everything.interval_after_minus_before[0] <= 0.0:
        return f"tokens per pass rise by {everything.gain:.3f}, which may be chance"
    if everything.tokens_per_s_after < everything.tokens_per_s_before:
        return "tokens per second fall"
    if -replay.gain > MOST_LOSS * replay.tokens_per_pass_before:
        return f"more than {MOST_LOSS:.0%} of the tokens per pass are lost on requests that went well"
    return ""


def _curve(pass_s: float) -> CostCurve:
    """Return the cost curve of passes if a pass over one token takes ``pass_s`` seconds."""
    return CostCurve(_CURVE.tokens, tuple(1e3 * pass_s * each / _CURVE.ms[0] for each in _CURVE.ms))


class Replay:
    """Replays requests with one draft model, whose drafter learns online across requests, as in the verifier."""

    def __init__(
        self, model: TargetModel, pass_s: float, draft: DraftConfig = DRAFT, draft_share: float = DRAFT_SHARE
    ) -> None:
        """Start with a drafter that has not learned anything yet.

        Args:
            model: the draft model.
            pass_s: mean duration of a pass of the target, in seconds.
            draft: drafting settings.
            draft_share: duration of a pass of the draft model, as a share of a target pass.
        """
        budget = StepBudget(_curve(pass_s))
        passes = TimedPasses(model, draft_share * pass_s)
        self._drafter = ModelDrafter(
            passes, DraftPrice(budget, _curve(draft_share * pass_s)), draft, clock=passes.clock
        )
        self._controller = DraftLengthController(budget, has_predictions=True)
        # Only the context length matters here: beyond the draft model's length there is no draft.
        self._drafting = Drafting(model, self._drafter, self._controller, draft, EngineTotals())

    def run(self, record: RequestRecord) -> tuple[int, float]:
        """Replay a request; return the number of target passes and the total seconds."""
        config = GenerationConfig(max_tokens=len(record.output), ignore_end_tokens=True)
        sequence = ActiveSequence(Request(0, record.prompt, config), token_ids=list(record.prompt), has_session=True)
        sequence.history = self._controller.new_history()
        self._drafter.open(sequence.session_id)
        seconds = 0.0
        while len(sequence.token_ids) < sequence.longest:
            [draft] = self._drafting.drafts([sequence])
            depths = depths_of(draft)
            verdict = follow(draft, TeacherForcedTarget(record.output[sequence.num_emitted :], [0, *depths]), float)
            sequence.num_steps += 1
            sequence.token_ids += verdict.token_ids
            if depths:
                self._controller.observe(sequence.history, depths, len(verdict.path), sum(draft.path_probabilities))
            pass_s = record.pass_s * _CURVE.relative(1 + len(draft))
            seconds += pass_s + self._drafter.observe(PassReport(pass_s))
        self._drafter.finish(sequence.session_id)
        return sequence.num_steps, seconds


class TimedPasses(DraftPasses):
    """Passes of a draft model that all take the same time on a simulated clock."""

    def __init__(self, model: TargetModel, pass_s: float) -> None:
        """Set the model and the duration of a pass."""
        super().__init__(model, 1)
        self._pass_s, self._now_s = pass_s, 0.0

    def clock(self) -> float:
        """Return the total simulated seconds of all passes so far."""
        return self._now_s

    def run(
        self, sequences: Sequence[CachedSequence], nodes: Sequence[Sequence[tuple[int, TokenId]]], width: int
    ) -> list[TopRows]:
        """Run one pass and advance the clock; see :class:`DraftPasses`."""
        self._now_s += self._pass_s
        return super().run(sequences, nodes, width)


def _replayed(
    config: DraftModelConfig,
    adapter: Path | None,
    records: Sequence[RequestRecord],
    pass_s: float,
    report: Callable[[str], object],
) -> list[tuple[int, float]]:
    """Return the passes and the seconds of every request, with an adapter or without one."""
    replay, found, due_s = Replay(_load_adapted(config, adapter), pass_s), [], time.monotonic()
    for record in records:
        found.append(replay.run(record))
        if time.monotonic() >= due_s:
            due_s = time.monotonic() + _SILENCE_S
            report(f"{len(found)} of {len(records)} requests replayed")
    return found


def _load_adapted(config: DraftModelConfig, adapter: Path | None) -> TargetModel:
    """Load a draft model, with or without an adapter merged into its weights."""
    model, fingerprint = load_base(config)
    if adapter is not None:
        model, _ = with_adapter(model, config.name, adapter)
    return TargetModel(model, None, config.name, fingerprint)
