"""Weights that do not fit into memory, read from the checkpoint while the model computes (SpecExec's offloading)."""

from speculant_verifier.offload.offload import OFFLOAD, Offload, OffloadStatistics
from speculant_verifier.offload.plan import SMALLER, Plan, plan_for

__all__ = ["OFFLOAD", "SMALLER", "Offload", "OffloadStatistics", "Plan", "plan_for"]
