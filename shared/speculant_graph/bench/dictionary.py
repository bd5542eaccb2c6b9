"""The obvious n-gram graph of plain Python, a dict of dicts: what the arrays are measured against."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

Ngram = tuple[int, ...]


class DictionaryGraph:
    """Contexts of 1 to N tokens -> next token -> count."""

    def __init__(self, token_ids: Sequence[int], max_order: int) -> None:
        """Count all n-grams of a list of token ids, shape ``[num_tokens]``, as anybody would write it down."""
        self.max_order = max_order
        self.contexts: defaultdict[Ngram, defaultdict[int, int]] = defaultdict(lambda: defaultdict(int))
        for order in range(1, max_order + 1):
            for end in range(order, len(token_ids)):
                self.contexts[tuple(token_ids[end - order : end])][token_ids[end]] += 1

    def draft(self, context: Sequence[int], k: int) -> list[int]:
        """Draft up to k most frequent successors, as :meth:`~speculant_graph.draft.generator.DraftGenerator.draft`.

        The longest known context first, its order kept to the dead end; of equal counts the lowest id.
        """
        contexts = self.contexts
        tokens = list(context[-self.max_order :])
        num_given = len(tokens)
        while len(tokens) - num_given < k:
            for order in range(min(self.max_order, len(tokens)), 0, -1):
                ngram = tuple(tokens[-order:])
                successors = contexts.get(ngram)
                if successors is not None:
                    break
            else:
                break
            while successors is not None and len(tokens) - num_given < k:
                if len(successors) == 1:
                    (token_id,) = successors
                else:
                    most = max(successors.values())
                    token_id = min(token for token, count in successors.items() if count == most)
                tokens.append(token_id)
                ngram = (*ngram[1:], token_id)
                successors = contexts.get(ngram)
        return tokens[num_given:]


def count_by_iterators(token_ids: Sequence[int], max_order: int) -> dict[Ngram, dict[int, int]]:
    """Return the same counts, made as fast as plain Python can: slices and tuples come from iterators written in C."""
    contexts: dict[Ngram, dict[int, int]] = {}
    for order in range(1, max_order + 1):
        columns = [token_ids[start:] for start in range(order)]
        for context, token_id in zip(zip(*columns, strict=False), token_ids[order:], strict=False):
            successors = contexts.get(context)
            if successors is None:
                contexts[context] = {token_id: 1}
            else:
                successors[token_id] = successors.get(token_id, 0) + 1
    return contexts
