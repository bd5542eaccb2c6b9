"""*Follow*: the model chooses its own token at every node, and the draft is walked while it contains that token.

The noise of a choice depends only on seed, position and token, so the output never depends on the draft; only the
number of tokens per pass does. Greedy decoding is the special case without randomness.

*NASD*, the match of n-gram assisted speculative decoding, compares one token per position: the draft's first, most
probable one. The paper draws again after a mismatch. That is biased: a drafted token of probability p is then emitted
with probability ``p + (1 - p) p``, .75 instead of .5. Here the choice that did not match is emitted itself, so the
output is the same as with *follow*, which also compares the other branches.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.draft_target import DraftTarget, UniformStream, Verdict


def follow(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the draft while it contains the model's choices.

    Args:
        draft: the proposed tree.
        target: the model; its choices after visited nodes are made one after another.
        uniforms: not used.

    Returns:
        The accepted path and the emitted tokens; always one more token than accepted nodes.
    """
    del uniforms
    children: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(draft.parents, draft.token_ids, strict=True)):
        children.setdefault(key, node)  # siblings drawn independently may repeat a token
    path: list[int] = []
    token_ids = [target.choice_after(0)]
    position = 0
    while (below := children.get((position, token_ids[-1]))) is not None:
        path.append(below)
        position = below + 1
        token_ids.append(target.choice_after(position))
    return Verdict(tuple(path), tuple(token_ids))


def nasd(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the first children of the draft while they equal the model's choices.

    Args:
        draft: a chain, or a tree with the most probable child of every node first; other children are ignored.
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
