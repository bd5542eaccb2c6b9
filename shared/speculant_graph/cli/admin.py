"""``speculant admin``: manages one or several running sidecars, and the draft-model adapters of verifiers."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.config import ClientConfig
from speculant_graph.errors import ConfigError
from speculant_graph.file_names import json_text
from speculant_graph.settings import CommandSettings, load_settings
from speculant_graph.terminal import printable

if TYPE_CHECKING:
    from google.protobuf.message import Message

    from speculant_graph.rpc.channel import Endpoint

Action = Literal["list", "reload", "adapter"]


class AdminSettings(CommandSettings):
    """Manage running sidecars, or verifiers with a draft model.

    For sidecars, 'list' shows the served graphs, and 'reload' loads the graph NAME, or the default graph, again. For
    verifiers, the actions are 'adapter list', 'adapter load NAME' and 'adapter rollback'.
    """

    action: CliPositionalArg[Action]
    """Action."""
    name: CliPositionalArg[str] = ""
    """After 'reload', the name of the graph to load again from its file. After 'adapter', one of 'list', 'load' and
    'rollback'."""
    adapter: CliPositionalArg[str] = ""
    """After 'adapter load', the adapter's name in draft_model.adapters; "" loads the draft model without an adapter."""
    address: str = ""
    """Admin addresses, separated by commas: server.admin_listen of each sidecar, or service.admin_listen of each
    verifier."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Maximum time to wait for the answer of each server, in seconds. The time limit must allow for loading a graph or
    adapter, which reads a whole file."""
    client: ClientConfig = ClientConfig()
    """Token and certificates for the admin addresses; other client settings have no effect on this command."""


def run(arguments: Sequence[str]) -> int:
    """Run the action on the server at every address; return 1 if it failed on any server.

    Raises:
        ConfigError: the command line, an address or a credential is wrong. This error is raised before any server is
            contacted.
    """
    settings = load_settings(AdminSettings, "admin", arguments)
    is_adapter = settings.action == "adapter"
    stub, method, request = _request(settings)
    from speculant_graph.rpc.addresses import reachable_addresses
    from speculant_graph.rpc.channel import Endpoint

    if not settings.address:
        raise ConfigError("name the server's admin address by --address, such as unix:///run/speculant/admin.sock")
    addresses = reachable_addresses(settings.address)
    endpoints = [Endpoint.of(address, settings.client, host_name) for address, host_name in addresses.items()]
    answers: list[dict[str, Any]] = []
    for endpoint in endpoints:
        answer = _ask(endpoint, stub, method, request, settings.timeout_s)
        answers.append({"address": endpoint.address, **answer})
        if "error" in answer:
            sys.stderr.write(f"speculant: admin: {endpoint.address}: {printable(answer['error'])}\n")
    action = f"adapter {settings.name}" if is_adapter else settings.action
    report = {"action": action, "verifiers" if is_adapter else "sidecars": answers}
    sys.stdout.write(json_text(report, indent=2) + "\n")
    return int(any("error" in answer for answer in answers))


def _request(settings: AdminSettings) -> tuple[type[Any], str, Message]:
    """Return the gRPC stub class, the method name and the request message for the chosen action.

    Raises:
        ConfigError: the action lacks an argument or has one too many, or there is no such action.
    """
    from speculant_graph.rpc.v1 import drafter_pb2, drafter_pb2_grpc, verifier_pb2, verifier_pb2_grpc

    graphs, adapters = drafter_pb2_grpc.DrafterAdminServiceStub, verifier_pb2_grpc.VerifierAdminServiceStub
    adapter = [settings.adapter] if "adapter" in settings.model_fields_set else []  # "" is the model without an adapter
    match [settings.action, settings.name, *adapter]:
        case ["list", ""]:
            return graphs, "ListGraphs", drafter_pb2.ListGraphsRequest()
        case ["reload", name]:
            return graphs, "ReloadGraph", drafter_pb2.ReloadGraphRequest(name=name)
        case ["adapter", "list"]:
            return adapters, "ListAdapters", verifier_pb2.ListAdaptersRequest()
        case ["adapter", "load", name]:
            return adapters, "LoadAdapter", verifier_pb2.LoadAdapterRequest(name=name)
        case ["adapter", "rollback"]:
            return adapters, "RollbackAdapter", verifier_pb2.RollbackAdapterRequest()
    raise ConfigError(
        "no such action; write 'list', 'reload [NAME]', 'adapter list', 'adapter load NAME' or 'adapter rollback'",
        fix="see speculant admin --help",
    )


def _ask(endpoint: Endpoint, stub: type[Any], method: str, request: Message, timeout_s: float) -> dict[str, Any]:
    """Call a server, and return its response or its error as a dict of plain values."""
    import grpc

    from speculant_graph.rpc.status import from_status

    with endpoint.connect() as channel:
        try:
            return _plain(getattr(stub(channel), method)(request, timeout=timeout_s, metadata=endpoint.metadata))
        except grpc.RpcError as error:  # a call's RpcError is the call itself
            return {"error": str(from_status(error.code(), error.details()))}


def _plain(message: Any) -> dict[str, Any]:
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _plain_value(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _plain_value(value: Any) -> Any:
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, str | int | float):
        return value
    if hasattr(value, "ToTimedelta"):
        return value.ToTimedelta().total_seconds()
    return _plain(value) if hasattr(value, "DESCRIPTOR") else [_plain_value(item) for item in value]
