"""Steps of batches: the core answers them, here they are counted.

Runs on the event loop: a draft takes less time than handing it to a thread would.
"""

from __future__ import annotations

import itertools

from speculant_drafter.counts import ServerCounts
from speculant_drafter.graphs import GraphRegistry, ServedGraph
from speculant_drafter.sessions import LIMITS, Limits, SessionStore
from speculant_graph import _core
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.draft.options import changed
from speculant_graph.errors import UnknownGraphError
from speculant_graph.rpc import convert
from speculant_graph.rpc.status import to_status
from speculant_graph.serving.access import ALL, ANONYMOUS, Principal
from speculant_graph.serving.calls import log_failure

_ANY_CONFIG = DraftConfig()


class StepAnswerer:
    """Answers steps from sessions and graphs."""

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        graphs: GraphRegistry,
        sessions: SessionStore,
        counts: ServerCounts,
        limits: Limits = LIMITS,
    ) -> None:
        """Make one.

        Args:
            config: the largest message.
            draft: what a request leaves to the server.
            graphs: what is served.
            sessions: what is open.
            counts: where steps are counted.
            limits: of a message.
        """
        self._graphs = graphs
        self._sessions = sessions
        self._counts = counts
        self._draft_ids = itertools.count(1)
        self._core = _core.StepAnswerer(
            sessions.table,
            max_sequences=limits.max_sequences,
            max_tokens=limits.max_tokens,
            max_nodes=limits.max_nodes,
            max_step_nodes=limits.max_step_nodes,
            max_message_bytes=config.max_message_bytes,
            budget=min(draft.k, limits.max_nodes),
        )

    def answer_enveloped(self, payload: bytes, principal: Principal) -> bytes:
        """Return the StreamDraftResponse to a StreamDraftRequest; a step that is refused is part of it.

        Raises:
            DraftRequestError: it is no such message.
        """
        try:
            return self._answer(payload, principal, is_enveloped=True)
        except Exception as error:
            step_id = convert.read_step_id(payload)
            self._counts.failed_steps[log_failure("StreamDraft", error).name] += 1
            return convert.encode_step_failure(step_id, error)

    def answer(self, payload: bytes, principal: Principal) -> bytes:
        """Return the DraftResponse to a DraftRequest.

        Raises:
            SpeculantError: the step is refused.
        """
        try:
            return self._answer(payload, principal, is_enveloped=False)
        except Exception as error:
            self._counts.failed_steps[to_status(error)[0].name] += 1
            raise

    def _answer(self, payload: bytes, principal: Principal, *, is_enveloped: bool) -> bytes:
        tenants = None if principal is ANONYMOUS or ALL in principal.tenants else list(principal.tenants)
        try:
            answer, num_sequences, num_nodes, num_empty, elapsed_ns = self._core.answer(
                payload, is_enveloped, tenants, next(self._draft_ids), self._sessions.now_ns(), self, principal
            )
        finally:
            self._sessions.resolve_ended()
        self._counts.observe_step(elapsed_ns * 1e-9, num_sequences)
        self._counts.drafted_nodes += num_nodes
        self._counts.empty_drafts += num_empty
        return answer

    # What the core calls.

    def check_options(self, options: bytes) -> None:
        """Look at a StrategyOptions.

        Raises:
            DraftRequestError: it asks for what is not served, or is out of bounds.
        """
        changed(_ANY_CONFIG, convert.decode_options(options))

    def default_generation(self) -> int:
        """Return the default graph's generation, for an answer that no graph gave.

        Raises:
            DrafterUnavailableError: graphs are still being loaded.
        """
        return self._graphs.get("").generation

    def graph_for(self, name: str, principal: Principal) -> ServedGraph:
        """Return a graph that the client may use; one that it may not is as unknown as one that is not there.

        Raises:
            UnknownGraphError: there is none of this name for it.
            DrafterUnavailableError: graphs are still being loaded.
        """
        graph = self._graphs.get(name)
        if principal is not ANONYMOUS and not principal.may_use_graph(graph.name):
            raise UnknownGraphError("no graph of this name is served to this client; ask for one that is")
        return graph
