"""The algorithm SPECULANT for SGLang, a plug-in that SGLang finds by its entry point. It was never run on a GPU.

.. code-block:: sh

    SPECULANT_CLIENT__ADDRESS=unix:///run/drafter.sock sglang serve MODEL
        --speculative-algorithm SPECULANT --speculative-num-draft-tokens 12 --speculative-ngram-max-bfs-breadth 8

SGLang verifies trees of the same width for every request and step, so smaller drafts are padded.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from speculant_graph._core import RowDrafts
from speculant_graph.types import TokenId

_NAME = "SPECULANT"


def register() -> None:
    """Register the algorithm; SGLang calls this entry point (``sglang.srt.plugins``) in every process."""
    from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
    from sglang.srt.speculative.spec_registry import CustomSpecAlgo, get_spec

    if get_spec(_NAME) is not None:
        return

    class Speculant(CustomSpecAlgo):  # type: ignore[misc]
        """Tells SGLang to treat it like its own NGRAM: trees as masks, and no draft model."""

        def is_ngram(self) -> bool:
            return True

        def has_draft_kv(self) -> bool:
            return False

        def handle_server_args(self, server_args: Any) -> None:
            from sglang.srt.arg_groups.speculative_hook import _handle_ngram

            _handle_ngram(server_args)

    def worker_class(_server_args: Any) -> type:
        from speculant_sglang.worker import SpeculantWorker

        return SpeculantWorker

    SpeculativeAlgorithm.register(_NAME, supports_overlap=True, spec_class=Speculant)(worker_class)


def lay_out(roots: Sequence[TokenId], drafts: RowDrafts, width: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Convert drafts to the format of SGLang's NGRAM.

    Args:
        roots: the last token of every request.
        drafts: their drafts, narrower than ``width``.
        width: nodes of a tree, including the root. Padding is token 0 below the root.

    Returns:
        Token ids, int64 of shape ``[requests * width]``, each root first; and a mask, int64 of shape
        ``[requests * width * width]``: 1 for each node itself and its ancestors.
    """
    tokens = np.zeros((len(roots), width), np.int64)
    ancestors = np.zeros((len(roots), width, width), np.int64)
    ancestors[:, range(width), range(width)] = 1
    ancestors[:, :, 0] = 1
    nodes = zip(drafts.token_ids, drafts.parents, strict=True)
    for row, (root, length) in enumerate(zip(roots, drafts.lengths, strict=True)):
        tokens[row, 0] = root
        for node, (token, parent) in enumerate(islice(nodes, length), start=1):
            tokens[row, node] = token
            ancestors[row, node, :node] = ancestors[row, parent, :node]
    return tokens.reshape(-1), ancestors.reshape(-1)
