"""What a request asks for beside its text, over HTTP and gRPC alike: its settings, and its session with the drafter."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.serving.access import ALL, Principal
from speculant_graph.types import SessionOptions
from speculant_graph.validation_messages import humanise


def changed(defaults: GenerationConfig, wanted: Mapping[str, Any]) -> GenerationConfig:
    """Return settings with some of them changed.

    Raises:
        GenerationRequestError: a value is not allowed.
    """
    try:
        return GenerationConfig.model_validate(defaults.model_dump() | dict(wanted))
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        name = ".".join(map(str, first["loc"])) or "the settings"
        reason = humanise(first).removeprefix(f"{name} ")
        raise GenerationRequestError(f"{name} {reason}", field=name) from None


def session_options(principal: Principal, tenant: str, graph: str, learn: bool | None) -> SessionOptions | None:
    """Return the options of a request's session with the drafter beside the server's settings; None for nothing.

    Args:
        principal: the caller's name.
        tenant: whose text it is; empty leaves it to what the client may, or to the server's settings.
        graph: name of the graph; empty leaves it to what the client may, or to the server's settings.
        learn: whether later requests of the tenant profit; None leaves it to the server's settings.

    Raises:
        AccessError: tenant or graph is not the client's, or it has several and names none.
    """
    if ALL not in principal.tenants:
        tenant = principal.require_tenant(tenant)
    graph = principal.require_graph(graph)
    if not tenant and not graph and learn is None:
        return None
    return SessionOptions(tenant or None, graph or None, learn)
