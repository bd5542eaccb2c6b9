"""Trains LoRA adapters for the draft model on recorded requests. The engine does not depend on this package."""
