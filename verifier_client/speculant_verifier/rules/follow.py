"""*Follow*: the model chooses its own token at every node, and the draft is walked while it offers that token.

The noise of a choice belongs to seed, position and token alone, so what is emitted never depends on the draft, only how
many tokens one pass emits. Greedy decoding is the special case without randomness.
"""

from __future__ import annotations

from speculant_graph.types import Draft
from speculant_verifier.rules.target import DraftTarget, UniformStream, Verdict


def follow(draft: Draft, target: DraftTarget, uniforms: UniformStream) -> Verdict:
    """Walk the draft while it contains what the model chose.

    Args:
        draft: the proposed tree.
        target: the model; its choices after the nodes that are visited are made one after another.
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
