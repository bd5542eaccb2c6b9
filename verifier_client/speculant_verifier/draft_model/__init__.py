"""Drafting with a small language model in the verifier's process, alone or with n-grams."""

from speculant_verifier.draft_model.drafter import ModelDrafter

__all__ = ["ModelDrafter"]
