"""Detailed mode: whole requests in a database, for analysis of failed drafts and for training."""
