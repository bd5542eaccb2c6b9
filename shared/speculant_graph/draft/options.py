"""What one request may choose of how drafts are made; the rest is in :class:`~speculant_graph.config.DraftConfig`."""

from __future__ import annotations

from dataclasses import dataclass

from speculant_graph.types import CouplingName, MixingName, SiblingsName, StrategyName


@dataclass(frozen=True, slots=True)
class DraftOptions:
    """How to draft; defaults leave the choice to the configuration."""

    strategy: StrategyName | None = None
    """None for the configured one."""
    max_candidates: int = 0
    """Cap of q's support; 0, as below, for the configured one."""
    omit_proposals: bool = False
    """Leave the distributions q out."""
    max_depth: int = 0
    """Longest path of a tree."""
    max_branches: int = 0
    """Most children of a node; never more than configured."""
    beam_width: int = 0
    """``specexec`` and ``beam``: nodes expanded at once."""
    min_path_probability: float = 0.0
    """Paths less probable than this are not drafted, where the strategy has probabilities."""
    mixing: MixingName | None = None
    """Combination of orders, for ``greedy`` and ``sampling``; None for the configured one."""
    coupling: CouplingName | None = None
    """How ``sampling`` draws; None for the configured way."""
    siblings: SiblingsName = "none"
    """Whether ``sampling`` draws trees. Without the distributions q, which rules for trees need, it never does."""


DEFAULT_OPTIONS = DraftOptions()
"""All left to the configuration."""
