"""Key-value caches that hold ragged rows and take drafts back exactly."""

from speculant_verifier.cache.slots import ForwardPlan, SlotCache

__all__ = ["ForwardPlan", "SlotCache"]
