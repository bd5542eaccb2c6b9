"""Decides whether drafts pay, by pass cost and required token rate, and chooses the nodes to verify.

Drafters return path probabilities; they do not know the cost of verifying a node.
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
