"""Training of the draft model: LoRA adapters from recorded requests. The engine knows nothing of it."""
