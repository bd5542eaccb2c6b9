"""From logits to tokens, by a request's own settings and random stream."""

from speculant_verifier.sampling.choice import choose, inverse_cumulative

__all__ = ["choose", "inverse_cumulative"]
