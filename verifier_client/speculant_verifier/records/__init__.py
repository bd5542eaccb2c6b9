"""Detailed mode: stores whole requests in a database, for analysing failed drafts and for training."""
