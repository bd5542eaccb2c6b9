"""*Follow*: the target chooses a token at each node; the rule walks down while the draft contains the choice.

The noise in the target's choice depends only on seed, position and token. The draft therefore never changes the output,
only the number of tokens per pass. Greedy decoding is the special case of *follow* without noise.

*NASD* is the matching rule of n-gram assisted speculative decoding. At each position, *NASD* compares the target's
choice only with the draft's first token, which is the most probable. After a mismatch, the paper's rule samples again,
which biases the output. In the paper, a drafted token of probability p is therefore emitted with probability ``p + (1 -
p) p``, for example .75 instead of .5. This implementation of *NASD* emits the target's choice after a mismatch. The
output therefore equals that of *follow*, which also compares the other branches.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.draft_target import DraftTarget, UniformStream, Verdict


def follow(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk down the draft while it contains the target's choices.

    Args:
        draft: the proposed tree.
        target: the model, which chooses a token at each visited node.
        uniforms: not used.

    Returns:
        The accepted path, and the emitted tokens: the accepted ones, and one more from the target.
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
    """Walk down the draft's first children while they equal the target's choices.

    Args:
        draft: a chain, or a tree with the most probable child of every node first; other children are ignored.
        target: the model.
        uniforms: not used.

    Returns:
        The accepted path, and the emitted tokens: the accepted ones, and one more from the target.
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
