"""Verification rules: pure functions that accept a part of a draft. All are lossless."""

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
    "gumbel": follow,  # the paper's name; both rules use coupled drafts
    "token": token,
    "block": block,
    "nasd": nasd,
    "tree-wor": tree_without_replacement,
    "tree-iid": tree_independent,
}
"""All verification rules, by name."""

WANTS_PROPOSALS: frozenset[RuleName] = frozenset(("token", "block", "tree-wor", "tree-iid"))
"""Rules that use the draft distribution q. If a draft has no q, these rules are still lossless, but accept fewer
tokens. If a draft has q, the decision to cut it must not depend on its tokens, and drafter and rule must not share
random numbers. Rules that ignore q choose tokens with noise that a drafter may share (coupled drafts). Drafts for rules
that ignore q may be cut at any node."""

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
