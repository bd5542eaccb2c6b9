"""What speculation costs on this machine: measured once, kept, and asked for whenever a draft must earn its price."""

from speculant_verifier.speculation.costs import CostPoint, CostTable, batches_up_to, load_or_measure, measure_costs

__all__ = ["CostPoint", "CostTable", "batches_up_to", "load_or_measure", "measure_costs"]
