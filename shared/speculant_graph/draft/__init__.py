"""Drafts tokens from n-gram graphs and from accepted text."""
