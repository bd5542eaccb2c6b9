"""Detailed mode: whole requests in a database, for people who look for where drafts fail, and for training."""
