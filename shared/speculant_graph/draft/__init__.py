"""Drafting from a graph."""
