"""A small language model that drafts, alone or with n-grams, in the verifier's process."""

from speculant_verifier.draft_model.drafter import ModelDrafter

__all__ = ["ModelDrafter"]
