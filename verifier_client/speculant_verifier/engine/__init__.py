"""Continuous batching: requests join and leave a running batch; every step drafts, verifies and emits for all rows."""

from speculant_verifier.engine.engine import Engine
from speculant_verifier.engine.sequence import ActiveSequence, Request, StepOutput

__all__ = ["ActiveSequence", "Engine", "Request", "StepOutput"]
