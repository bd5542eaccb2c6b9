"""What ``speculant bench replay`` is asked for, checked before any work is done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.bench.plot import check_plot as check_plot
from speculant_graph.bench.replay_baselines import PROMPT_LOOKUP
from speculant_graph.draft import strategies as draft_strategies
from speculant_graph.errors import ConfigError

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve

STRATEGIES = (*draft_strategies.STRATEGIES, PROMPT_LOOKUP)
"""What can be replayed."""

_MOST_NODES = 2_048
_MOST_DIGITS = 9


def parse_strategies(text: str) -> list[str]:
    """Return the strategies of a list with commas, each once.

    Raises:
        ConfigError: there is no such strategy.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    for name in names:
        if name not in STRATEGIES:
            raise ConfigError(f"--strategy: there is no strategy '{name}'; choose from {', '.join(STRATEGIES)}")
    return names


def parse_budgets(text: str) -> list[int]:
    """Return the budgets of a list with commas, each once, ascending.

    Raises:
        ConfigError: one is no whole number, or too small or large.
    """
    budgets = set()
    for item in text.split(","):
        number = item.strip()
        if not (number.isascii() and number.removeprefix("-").isdigit()):
            raise ConfigError(f"--budget: '{number}' is no whole number; write numbers such as 8,16,32")
        if len(number) > _MOST_DIGITS or not 1 <= int(number) <= _MOST_NODES:
            raise ConfigError(f"--budget: {number} is too small or large; write numbers from 1 to {_MOST_NODES:,}")
        budgets.add(int(number))
    return sorted(budgets)


def load_cost(name: str) -> CostCurve:
    """Return the curve of a name, or of a file.

    Raises:
        ConfigError: there is neither a curve nor a file of this name, or the file holds no curve.
    """
    from speculant_graph.draft.cost import COST_CURVES, CostCurve

    if name in COST_CURVES:
        return COST_CURVES[name]
    if not Path(name).is_file():
        raise ConfigError(
            f"--cost: there is no curve and no file '{name}'; choose from {', '.join(COST_CURVES)}, or name a file"
        )
    return CostCurve.from_file(Path(name))


def check_graphless(strategies: Sequence[str]) -> None:
    """Refuse strategies that would draft nothing without a graph.

    Raises:
        ConfigError: there is one.
    """
    from speculant_graph.draft.strategies import FROM_GRAPH

    for name in strategies:
        if name in FROM_GRAPH:
            raise ConfigError(
                f"--strategy: '{name}' drafts from a graph alone; give --corpus or --graph, or leave it out"
            )
