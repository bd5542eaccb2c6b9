"""Detailed mode: whole requests in a database, to see where drafts fail, and for training."""
