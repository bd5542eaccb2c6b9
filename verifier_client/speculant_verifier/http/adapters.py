"""The endpoints of those who look after the draft model's adapters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import FastAPI, Request
from pydantic import Field

from speculant_graph.errors import DraftLimitError, DraftRequestError, UnservedRequestError
from speculant_graph.serving.access import EVERYBODY
from speculant_graph.serving.http_gate import PRINCIPAL
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import Adapter, Adapters
from speculant_verifier.draft_model.administration import adapters_of, load_adapter, rollback_adapter
from speculant_verifier.http.answers import AdapterInfo, DraftModelState, ErrorAnswer
from speculant_verifier.http.errors import ApiError, too_busy
from speculant_verifier.http.schemas import Schema


class AdapterRequest(Schema):
    """An adapter to draft with."""

    adapter: Annotated[str, Field(max_length=256)]
    """One of the settings' names; empty: the draft model without an adapter."""


def add_adapter_endpoints(
    app: FastAPI, decoder: SpeculativeDecoder, with_key: Sequence[Any], errors: dict[int | str, dict[str, Any]]
) -> None:
    """Add them to an application.

    Args:
        app: behind the gate, which says who sends a request.
        decoder: decodes.
        with_key: dependencies of endpoints that want a key.
        errors: what all such endpoints may answer.
    """
    responses: dict[int | str, dict[str, Any]] = {
        **errors,
        403: {"model": ErrorAnswer, "description": "The access file does not call the client an administrator."},
        404: {"model": ErrorAnswer, "description": "There is no draft model."},
    }

    def adapters_for(connection: Request) -> Adapters:
        principal = connection.scope[PRINCIPAL]
        # Without an access file this API is for everybody who reaches it, and adapters are not.
        if principal is EVERYBODY or not principal.is_admin:
            raise ApiError(
                403, "adapters are for administrators; set admin = true for the client in the server's access file"
            )
        try:
            return adapters_of(decoder)
        except UnservedRequestError as error:
            raise ApiError(404, str(error)) from error

    @app.get("/admin/adapters", dependencies=with_key, responses=responses)
    async def list_adapters(connection: Request) -> DraftModelState:
        """Say what drafts, how it does, and which adapters may be loaded."""
        return _state(adapters_for(connection))

    @app.post(
        "/admin/adapters/load",
        dependencies=with_key,
        responses={**responses, 429: {"model": ErrorAnswer, "description": "Another adapter is being loaded."}},
    )
    async def load(request: AdapterRequest, connection: Request) -> DraftModelState:
        """Load an adapter and draft with it; it goes on if the client leaves."""
        adapters = adapters_for(connection)
        try:
            await load_adapter(adapters, request.adapter)
        except DraftLimitError as error:
            raise too_busy("another adapter is being loaded") from error
        except DraftRequestError as error:
            raise ApiError(400, str(error), param="adapter") from error
        return _state(adapters)

    @app.post("/admin/adapters/rollback", dependencies=with_key, responses=responses)
    async def rollback(connection: Request) -> DraftModelState:
        """Bring back what drafted before the latest load, once."""
        adapters = adapters_for(connection)
        try:
            rollback_adapter(adapters)
        except DraftRequestError as error:
            raise ApiError(400, str(error)) from error
        return _state(adapters)


def _state(adapters: Adapters) -> DraftModelState:
    state = adapters.state
    return DraftModelState(
        names=list(adapters.names),
        present=_info(state.present),
        previous=None if state.previous is None else _info(state.previous),
        acceptance=state.acceptance,
        judged_tokens=state.num_judged,
        previous_acceptance=state.previous_acceptance,
        automatic_rollbacks=state.num_rollbacks,
        passes=state.num_passes,
        passes_s=state.passes_s,
    )


def _info(adapter: Adapter) -> AdapterInfo:
    return AdapterInfo(name=adapter.name, sha256=adapter.digest)
