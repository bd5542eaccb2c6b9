"""What speculation costs on this machine: measured once, kept, and asked for whenever a draft must earn its price."""

from speculant_verifier.speculation.costs import CostPoint, CostTable
from speculant_verifier.speculation.measurement import batches_up_to, load_or_measure, measure_costs
from speculant_verifier.speculation.observed import ObservedCosts

__all__ = ["CostPoint", "CostTable", "ObservedCosts", "batches_up_to", "load_or_measure", "measure_costs"]
