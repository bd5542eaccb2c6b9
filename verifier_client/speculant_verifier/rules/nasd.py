"""*NASD*: the model's own choice at every position must be the draft's first, most probable token.

The match of n-gram assisted speculative decoding, which looks at one token per position. There, a mismatch is
followed by a second, fresh draw. That is biased: a drafted token of probability p then comes with probability
``p + (1 - p) p``, .75 instead of .5. Here the choice that did not match is itself the token to go on with, so the
output is the same as by *follow*, which also looks at the other branches.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.target import DraftTarget, UniformStream, Verdict


def nasd(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the first children of the draft while they are what the model chose.

    Args:
        draft: a chain, or a tree with the most probable child of every node first; other children are not looked at.
        target: the model.
        uniforms: not used.

    Returns:
        The accepted path and the emitted tokens; always one more token than accepted nodes.
    """
    del uniforms
    first_children: dict[int, int] = {}
    for node, parent in enumerate(draft.parents):
        first_children.setdefault(parent, node)
    path: list[int] = []
    token_ids = [target.choice_after(0)]
    node_below = first_children.get(0)
    while node_below is not None and draft.token_ids[node_below] == token_ids[-1]:
        path.append(node_below)
        token_ids.append(target.choice_after(node_below + 1))
        node_below = first_children.get(node_below + 1)
    return Verdict(tuple(path), tuple(token_ids))
