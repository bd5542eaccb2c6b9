"""*Follow*: the target chooses a token at every node, and the rule walks the draft while it contains these tokens.

The noise of a choice depends only on seed, position and token. So the draft never changes the output, only the number
of tokens per pass. Greedy decoding is the special case without noise.

*NASD* is the matching rule of n-gram assisted speculative decoding. It compares one token per position: the first, most
probable one in the draft. The paper samples again after a mismatch. That is biased: a drafted token of probability p is
then emitted with probability ``p + (1 - p) p``, which is .75 instead of .5. Here the mismatching choice itself is
emitted, so the output equals that of *follow*, which also compares the other branches.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.draft_target import DraftTarget, UniformStream, Verdict


def follow(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the draft while it contains the target's choices.

    Args:
        draft: the proposed tree.
        target: the target; it makes its choices at the visited nodes one by one.
        uniforms: not used.

    Returns:
        The accepted path and the emitted tokens; always one more token than accepted nodes.
    """
    del uniforms
    children: dict[tuple[int, int], int] = {}
    for node, key in enumerate(zip(draft.parents, draft.token_ids, strict=True)):
        children.setdefault(key, node)  # independently sampled siblings may repeat a token
    path: list[int] = []
    token_ids = [target.choice_after(0)]
    position = 0
    while (below := children.get((position, token_ids[-1]))) is not None:
        path.append(below)
        position = below + 1
        token_ids.append(target.choice_after(position))
    return Verdict(tuple(path), tuple(token_ids))


def nasd(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the first children of the draft while they equal the target's choices.

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
