"""Key-value caches for ragged rows that roll back drafts exactly."""

from speculant_verifier.cache.pass_layout import CacheLayout, ForwardPlan
from speculant_verifier.cache.slots import SlotCache

__all__ = ["CacheLayout", "ForwardPlan", "SlotCache"]
