"""The cost of speculation on this machine: measured once, cached, and used to decide which drafts pay off."""

from speculant_verifier.speculation.costs import CostPoint, CostTable
from speculant_verifier.speculation.measurement import batches_up_to, load_or_measure, measure_costs
from speculant_verifier.speculation.observed import ObservedCosts

__all__ = ["CostPoint", "CostTable", "ObservedCosts", "batches_up_to", "load_or_measure", "measure_costs"]
