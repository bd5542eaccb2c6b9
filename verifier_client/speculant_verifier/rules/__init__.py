"""Verification rules: how much of a draft the model agrees with. Pure functions; every one leaves the output exact."""

from __future__ import annotations

from collections.abc import Callable

from speculant_graph.types import Draft, RuleName
from speculant_verifier.rules.follow import follow
from speculant_verifier.rules.target import DraftTarget, Numbers, TargetDistribution, Verdict

Rule = Callable[[Draft, DraftTarget, Numbers], Verdict]

RULES: dict[RuleName, Rule] = {"follow": follow}
"""Every rule by its name."""

TAKES_DRAFTS_AS_THEY_ARE: frozenset[RuleName] = frozenset({"follow", "nasd", "gumbel"})
"""Rules under which nodes of a draft may be dropped after they were seen."""

__all__ = ["RULES", "TAKES_DRAFTS_AS_THEY_ARE", "DraftTarget", "Numbers", "Rule", "TargetDistribution", "Verdict"]
