"""KV caches for ragged batches, with exact rollback of drafts."""

from speculant_verifier.cache.pass_layout import CacheLayout, ForwardPlan
from speculant_verifier.cache.slots import SlotCache

__all__ = ["CacheLayout", "ForwardPlan", "SlotCache"]
