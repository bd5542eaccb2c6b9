"""What papers describe and the main road does without: NASD as its own loop, and SpecExec's cache of logits."""
