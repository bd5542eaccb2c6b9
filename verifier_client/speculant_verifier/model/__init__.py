"""The target model and its tokenizer: supported models, loading, and forward passes over a slot cache."""

from speculant_verifier.model.target import PREFILL_CHUNK, TargetModel

__all__ = ["PREFILL_CHUNK", "TargetModel"]
