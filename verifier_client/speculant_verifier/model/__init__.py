"""The target model and its tokenizer: which are taken, how they are loaded, and one pass over the slots of a cache."""

from speculant_verifier.model.target import TargetModel

__all__ = ["TargetModel"]
