"""Whether a trained adapter may be published: requests that no training has seen are replayed before and after.

What serves now, the adapter published before or none, and the candidate draft for the same requests, interleaved.
Tokens a pass must rise, seconds must not, and what went well before must go on so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from speculant_graph.config_learning import DraftModelConfig
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.training.replay import Replay, load_adapted, replays_of

FEWEST = 8
"""Requests from which on an interval is asked for. Of fewer the mean decides: an interval would refuse nearly all, and
the verifier takes an adapter back that is worse where it serves."""
MOST_LOSS = 0.02
"""Share of the tokens a pass that may be lost on requests that were no failures."""
MOST_REQUESTS = 100
"""Requests of either kind that are replayed: more would make the interval little narrower, and take minutes."""
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

    def line(self) -> str:
        """Return it in one line."""
        bounds = self.interval_after_minus_before
        interval = "" if bounds is None else f" ({bounds[0]:+.3f} to {bounds[1]:+.3f})"
        return (
            f"tokens a pass {self.tokens_per_pass_before:.3f} -> {self.tokens_per_pass_after:.3f}{interval}, "
            f"tokens/s {self.tokens_per_s_before:.1f} -> {self.tokens_per_s_after:.1f}, {self.num_requests} requests"
        )


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

    def lines(self) -> list[str]:
        """Return it for people."""
        named = (("gate", self.failures), ("gate, replay", self.replay))
        return [f"{name}: {compared.line()}" for name, compared in named if compared is not None]


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
    before, after = replays_of([load_adapted(config, each) for each in (present, candidate)], failures + replay)
    compared = compare(before, after, failures)
    remembered = compare(before, after, replay) if replay else None
    reason = _objection(compared, remembered)
    return Verdict(not reason, reason or "tokens a pass rise and tokens a second do not fall", compared, remembered)


def compare(before: Replay, after: Replay, records: Sequence[RequestRecord]) -> Comparison:
    """Replay requests with both, interleaved, so that a noisy moment hits both; at least one request."""
    pairs = []
    for index, record in enumerate(records):
        order = (before, after) if index % 2 else (after, before)
        found = [each.run(record) for each in order]
        pairs.append(found if index % 2 else found[::-1])
    per_pass = np.array([[each.tokens_per_pass for each in pair] for pair in pairs])
    num_tokens = sum(pair[0].num_tokens for pair in pairs)
    differences = per_pass[:, 1] - per_pass[:, 0]
    interval = None
    if len(records) >= FEWEST:
        drawn = np.random.default_rng(0).choice(differences, (_RESAMPLES, len(records))).mean(1)
        low, high = np.percentile(drawn, (2.5, 97.5)).tolist()
        interval = (low, high)
    before_per_pass, after_per_pass = per_pass.mean(0).tolist()
    before_s, after_s = (sum(pair[side].seconds for pair in pairs) for side in (0, 1))
    return Comparison(
        num_requests=len(records),
        tokens_per_pass_before=before_per_pass,
        tokens_per_pass_after=after_per_pass,
        interval_after_minus_before=interval,
        tokens_per_s_before=num_tokens / before_s,
        tokens_per_s_after=num_tokens / after_s,
    )


def _objection(failures: Comparison, replay: Comparison | None) -> str:
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
