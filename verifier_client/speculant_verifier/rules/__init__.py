"""Verification rules: they accept a part of a draft. All are pure functions and leave the output exact."""

from __future__ import annotations

from collections.abc import Callable

from speculant_graph.types import Draft, RuleName
from speculant_verifier.rules.chains import block, token
from speculant_verifier.rules.draft_target import DraftTarget, TargetDistribution, UniformStream, Verdict
from speculant_verifier.rules.follow import follow, nasd
from speculant_verifier.rules.teacher_forcing import TeacherForcedTarget, teacher_forced
from speculant_verifier.rules.trees import tree_independent, tree_without_replacement

Rule = Callable[[Draft, DraftTarget, UniformStream], Verdict]

RULES: dict[RuleName, Rule] = {
    "follow": follow,
    "gumbel": follow,  # the paper's name; drafts are coupled under both names
    "token": token,
    "block": block,
    "nasd": nasd,
    "tree-wor": tree_without_replacement,
    "tree-iid": tree_independent,
}
"""Every rule by its name."""

WANTS_PROPOSALS: frozenset[RuleName] = frozenset(("token", "block", "tree-wor", "tree-iid"))
"""Rules that use q. Without q they are exact, too, but accept less. With q, a draft must not be cut depending on its
tokens, and its tokens must be drawn with random numbers that the rule does not use. The other rules choose with noise
that a drafter may share: their drafts may be cut, and are coupled."""

__all__ = [
    "RULES",
    "WANTS_PROPOSALS",
    "DraftTarget",
    "Rule",
    "TargetDistribution",
    "TeacherForcedTarget",
    "UniformStream",
    "Verdict",
    "teacher_forced",
]
