"""N-gram storages for callers that hold tensors: the batched interface of assisted generation."""

from __future__ import annotations

import torch
from torch import Tensor

from speculant_graph.draft.ngram_storage import NGramStorageBase
from speculant_graph.errors import DraftRequestError


class TensorNGramStorage:
    """A storage whose sequences and answers are integer tensors ``[batch, length]``.

    Padding is not supported: every token of a row belongs to its sequence. Sequences of different lengths go through
    the storage itself, or one by one.
    """

    def __init__(self, storage: NGramStorageBase) -> None:
        """Wrap a storage, which can be used directly, too."""
        self.storage = storage

    def initialize(self, input_ids: Tensor) -> None:
        """Learn every n-gram of the sequences; what was learned before stays.

        Args:
            input_ids: ``[batch, length]``, any integer type, any device.

        Raises:
            DraftRequestError: the tensor has another shape or type, or an id is outside the vocabulary.
        """
        self.storage.initialize(_rows("input_ids", input_ids))

    def next_token(self, input_ids: Tensor) -> tuple[Tensor, Tensor]:
        """Predict the next token of every sequence.

        Args:
            input_ids: ``[batch, length]``, any integer type, any device.

        Returns:
            On the same device, the tokens, int64 ``[batch, 1]``, and whether each context was known, bool
            ``[batch, 1]``. Tokens of unknown contexts are random, but the same for the same seed and length.

        Raises:
            DraftRequestError: the tensor has another shape or type.
        """
        ends = _rows("input_ids", input_ids, self.storage.n - 1)
        token_ids, known = self.storage.next_token(ends, position=input_ids.shape[1])
        return (
            torch.tensor(token_ids, dtype=torch.int64, device=input_ids.device).reshape(-1, 1),
            torch.tensor(known, dtype=torch.bool, device=input_ids.device).reshape(-1, 1),
        )

    def update(self, input_ids: Tensor, next_tokens: Tensor) -> None:
        """Count each of a row's next tokens once as a successor of the row's context.

        Args:
            input_ids: contexts, ``[batch, length]``, any integer type, any device.
            next_tokens: alternatives for the token that follows, such as the indices of a top-k, ``[batch, k]``.

        Raises:
            DraftRequestError: a tensor has another shape or type, the batches differ, or an id is outside the
                vocabulary; nothing was learned.
        """
        self.storage.update(_rows("input_ids", input_ids, self.storage.n - 1), _rows("next_tokens", next_tokens))


def _rows(name: str, tensor: Tensor, num_tokens: int | None = None) -> list[list[int]]:
    """Return the last tokens of every row, or all of them."""
    is_integer = not (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool)
    if tensor.ndim != 2 or not is_integer:
        shape = list(tensor.shape)
        raise DraftRequestError(f"{name} is {tensor.dtype} {shape}; give token ids as integers [batch, length]")
    rows: list[list[int]] = (tensor if num_tokens is None else tensor[:, -num_tokens:]).tolist()
    return rows
