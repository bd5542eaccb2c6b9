"""Strategies of papers, for comparison: NASD, and the trees of SpecExec and of a beam. Nothing else needs them."""
