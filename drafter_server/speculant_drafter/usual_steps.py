"""Steps in which nothing is unusual, answered by one kernel; see :mod:`speculant_graph.rpc.kernels.step`."""

from __future__ import annotations

import numpy as np

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import ServedGraph
from speculant_drafter.sessions import SessionStore
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.graph.layout import Int64Array, UInt32Array
from speculant_graph.rpc.convert.requests import COUPLING_NUMBERS, STRATEGY_NUMBERS
from speculant_graph.rpc.kernels import step
from speculant_graph.serving.access import ALL, Principal

_ANY_TENANT = -1


class UsualSteps:
    """Answers what it can."""

    def __init__(
        self, config: ServerConfig, draft: DraftConfig, sessions: SessionStore, counts: ServerCounts, max_bytes: int
    ) -> None:
        """Make one.

        Args:
            config: limits.
            draft: what a request leaves to the server.
            sessions: what is open.
            counts: where steps are counted.
            max_bytes: largest answer.
        """
        self._sessions = sessions
        self._counts = counts
        self._graph: ServedGraph | None = None
        self._out = np.zeros(max_bytes, np.uint8)
        self._settings = settings = np.zeros(step.NUM_SETTINGS, np.int64)
        settings[step.MAX_SEQUENCES] = config.max_sequences
        settings[step.MAX_TOKENS] = config.max_tokens
        settings[step.MAX_NODES] = config.max_nodes
        settings[step.MAX_STEP_NODES] = config.max_step_nodes
        settings[step.BUDGET] = min(draft.k, config.max_nodes)
        settings[step.STRATEGY] = STRATEGY_NUMBERS[draft.strategy]
        settings[step.MAX_CANDIDATES] = draft.max_candidates
        settings[step.COUPLING] = COUPLING_NUMBERS[draft.coupling]

    def answer(self, payload: bytes, principal: Principal, draft_id: int, *, is_enveloped: bool) -> bytes | None:
        """Return the answer to a request, of its kind; None if it must be found by other means.

        Args:
            payload: a StreamDraftRequest, or a DraftRequest.
            principal: who asks.
            draft_id: id of the answer, not used before.
            is_enveloped: whether it is a StreamDraftRequest.
        """
        tenant = self._tenant_of(principal)
        if tenant is None:
            return None
        settings = self._settings
        settings[step.NEXT_DRAFT_ID] = draft_id
        settings[step.ONLY_TENANT] = tenant
        size = self._run(payload, is_enveloped=is_enveloped)
        if size == step.OTHER_GRAPH:
            self._graph = self._sessions.graph_of_generation(int(settings[step.OUT_GENERATION]))
            settings[step.GENERATION] = self._graph.generation
            settings[step.VOCABULARY_SIZE] = self._graph.tokenizer.vocabulary_size
            size = self._run(payload, is_enveloped=is_enveloped)
        if size < 0:
            return None
        count, nodes, empty, elapsed_ns = settings[step.OUT_SEQUENCES : step.OUT_NS + 1].tolist()
        counts = self._counts
        counts.observe_step(elapsed_ns * 1e-9, count)
        counts.drafted_nodes += nodes
        counts.empty_drafts += empty
        return self._out[:size].tobytes()

    def warm_up(self) -> None:
        """Compile or load kernels, so that no step waits for them."""
        self._run(b"", is_enveloped=True)
        self._sessions.table.warm_up()

    def forget(self, graph: ServedGraph) -> None:
        """Let go of a graph that is not used any more."""
        if self._graph is graph:
            self._graph = None
            self._settings[step.GENERATION] = 0

    def _run(self, payload: bytes, *, is_enveloped: bool) -> int:
        # Without a graph the first session's is another one, and nothing of these arrays is looked at.
        trie = _NO_TRIE if self._graph is None else self._graph.trie_arrays
        table = self._sessions.table
        return step.answer_step(
            np.frombuffer(payload, np.uint8),
            is_enveloped,
            *trie,
            table.index,
            table.rows,
            table.handles,
            self._settings,
            self._out,
        )

    def _tenant_of(self, principal: Principal) -> int | None:
        if ALL in principal.tenants:
            return _ANY_TENANT
        if len(principal.tenants) > 1:
            return None
        (tenant,) = principal.tenants
        return self._sessions.tenant_number(tenant)


def _no_trie() -> tuple[UInt32Array, Int64Array]:
    """Return arrays of the type that those of a graph file have, or the kernel would be compiled twice."""
    words, table = np.zeros(1, np.uint32), np.zeros((4, 2), np.int64)
    words.flags.writeable = table.flags.writeable = False
    return words, table


_NO_TRIE = _no_trie()
