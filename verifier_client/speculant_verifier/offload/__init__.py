"""Offloading as in SpecExec: weights that do not fit into memory are read from the checkpoint while the model runs."""

from speculant_verifier.offload.offload import OFFLOAD, Offload
from speculant_verifier.offload.placement import SMALLER, Plan, plan_for

__all__ = ["OFFLOAD", "SMALLER", "Offload", "Plan", "plan_for"]
