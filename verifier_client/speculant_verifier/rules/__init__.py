"""Verification rules: how much of a draft the model agrees with. Pure functions; every one leaves the output exact."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from speculant_graph.types import Draft, RuleName
from speculant_verifier.rules.block import block
from speculant_verifier.rules.follow import follow
from speculant_verifier.rules.nasd import nasd
from speculant_verifier.rules.target import DraftTarget, Numbers, TargetDistribution, Verdict
from speculant_verifier.rules.token import token
from speculant_verifier.rules.tree_independent import tree_independent
from speculant_verifier.rules.tree_without_replacement import tree_without_replacement

Rule = Callable[[Draft, DraftTarget, Numbers], Verdict]

RULES: dict[RuleName, Rule] = {
    "follow": follow,
    "gumbel": follow,  # what differs is how the model chooses
    "token": token,
    "block": block,
    "nasd": nasd,
    "tree-wor": tree_without_replacement,
    "tree-iid": tree_independent,
}
"""Every rule by its name."""


@dataclass(frozen=True, slots=True)
class RuleTraits:
    """What a rule makes of a draft, for whoever asks for drafts."""

    wants_proposals: bool
    """Whether it makes use of q. Without q every rule is exact, too, and accepts what it can."""
    trees: Literal["whole", "first path", "followed"]
    """What it makes of a tree: it looks at all children of a node, at the first one, or leaves trees to *follow*."""


TRAITS: dict[RuleName, RuleTraits] = {
    "follow": RuleTraits(wants_proposals=False, trees="whole"),
    "gumbel": RuleTraits(wants_proposals=False, trees="whole"),
    "token": RuleTraits(wants_proposals=True, trees="followed"),
    "block": RuleTraits(wants_proposals=True, trees="followed"),
    "nasd": RuleTraits(wants_proposals=False, trees="first path"),
    "tree-wor": RuleTraits(wants_proposals=True, trees="whole"),
    "tree-iid": RuleTraits(wants_proposals=True, trees="whole"),
}
"""Traits of every rule."""

__all__ = [
    "RULES", "TRAITS", "DraftTarget", "Numbers", "Rule", "RuleTraits", "TargetDistribution", "Verdict",
]  # fmt: skip
