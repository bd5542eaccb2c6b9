"""Sampling: turns logits into tokens with a request's own settings and random stream."""

from speculant_verifier.sampling.distribution import Distribution, top_logprobs, top_tokens
from speculant_verifier.sampling.row_target import RowContext, RowTarget, targets_of
from speculant_verifier.sampling.sampler import Sampler, check_settings, end_token_ids_of, processors_of

__all__ = [
    "Distribution",
    "RowContext",
    "RowTarget",
    "Sampler",
    "check_settings",
    "end_token_ids_of",
    "processors_of",
    "targets_of",
    "top_logprobs",
    "top_tokens",
]
