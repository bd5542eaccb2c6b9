"""Key-value caches that hold ragged rows and take drafts back exactly."""

from speculant_verifier.cache.pass_layout import CacheLayout, ForwardPlan
from speculant_verifier.cache.slots import SlotCache

__all__ = ["CacheLayout", "ForwardPlan", "SlotCache"]
