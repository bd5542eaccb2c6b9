"""Measurements that anybody can repeat: each against the obvious alternative, in one run."""
