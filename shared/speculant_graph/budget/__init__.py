"""The decision whether drafts pay: cost of passes, required rate of tokens, and choice of verified nodes.

Drafters return path probabilities and do not know costs.
"""

from speculant_graph.budget.choice import chosen_nodes
from speculant_graph.budget.learned import LearnedCost
from speculant_graph.budget.neural_choice import NeuralChoice
from speculant_graph.budget.pass_cost import CURVES, CostCurve, PassCost, RowCurve, curve_of
from speculant_graph.budget.step_budget import StepBudget, StepPrices

__all__ = [
    "CURVES",
    "CostCurve",
    "LearnedCost",
    "NeuralChoice",
    "PassCost",
    "RowCurve",
    "StepBudget",
    "StepPrices",
    "chosen_nodes",
    "curve_of",
]
