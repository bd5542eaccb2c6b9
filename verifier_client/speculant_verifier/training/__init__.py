"""Training of the draft model: LoRA adapters from recorded requests. The engine does not depend on it."""
