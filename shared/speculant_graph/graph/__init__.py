"""The n-gram graph: counting, lookup, its file, and its export."""
