"""Learning from accepted text, in memory and on disk."""
