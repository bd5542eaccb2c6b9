"""*tree-iid*: trees whose siblings were drawn independently (SpecInfer's multi-step sampling, Miao et al. 2023).

Every sibling was drawn from the same q, so tokens may repeat, which wastes nodes: prefer *tree-wor* above width 2.
Siblings drawn without replacement would be accepted too often.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.siblings import walk
from speculant_verifier.rules.target import DraftTarget, UniformStream, Verdict


def tree_independent(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Accept independently drawn children, in their order; see :func:`speculant_verifier.rules.siblings.walk`."""
    return walk(draft, target, uniforms, lambda q, _: q)
