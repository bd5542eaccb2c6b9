"""The target model and its tokenizer: supported models, loading, and one pass over the slots of a cache."""

from speculant_verifier.model.target import PREFILL_CHUNK, TargetModel

__all__ = ["PREFILL_CHUNK", "TargetModel"]
