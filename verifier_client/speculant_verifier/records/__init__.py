"""Detailed mode: whole requests in files, for people who look for where drafts fail, and for training."""
