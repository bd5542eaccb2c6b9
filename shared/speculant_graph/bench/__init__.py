"""Measurements that anyone can repeat: each against the obvious alternative, in one run."""
