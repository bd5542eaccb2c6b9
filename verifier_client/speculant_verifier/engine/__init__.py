"""Continuous batching: requests join and leave a running batch; every step drafts, verifies and emits for all of it."""

from speculant_verifier.engine.engine import ActiveSequence, Emission, Engine

__all__ = ["ActiveSequence", "Emission", "Engine"]
