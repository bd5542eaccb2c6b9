"""From logits to tokens, by a request's own settings and random stream."""

from speculant_verifier.sampling.choice import choose, inverse_cumulative
from speculant_verifier.sampling.provisional import RowContext, RowTarget, Sampler, make_sampler, targets_of

__all__ = ["RowContext", "RowTarget", "Sampler", "choose", "inverse_cumulative", "make_sampler", "targets_of"]
