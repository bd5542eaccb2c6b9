"""``speculant admin``: look after running sidecars, several at once, and verifiers' adapters."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field
from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.config import ClientConfig
from speculant_graph.errors import ConfigError
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    import grpc
    from google.protobuf.message import Message

    from speculant_graph.rpc.channel import Endpoint

Action = Literal["list", "load", "reload", "unload", "save", "statistics", "adapter"]
_OF_ADAPTERS = ("list", "load", "rollback")


class AdminSettings(CommandSettings):
    """Look after running sidecars: list graphs, load NAME PATH, reload NAME [PATH], unload NAME, save, statistics.

    Or after running verifiers with a draft model: adapter list, adapter load NAME, adapter rollback.
    """

    action: CliPositionalArg[Action]
    """What to do."""
    name: CliPositionalArg[str] = ""
    """Name of the graph to load, reload or unload; adapter: list, load or rollback."""
    path: CliPositionalArg[str] = ""
    """Its file, inside the sidecar's graph folder; reload: the same as before if it is not given; adapter load: the
    adapter's name in draft_model.adapters, "" for the draft model without one."""
    address: str = ""
    """Admin addresses, separated by commas: each sidecar's server.admin_listen; adapter:
    service.admin_listen."""
    tenant: str = ""
    """Of 'save': count only this tenant's bytes; all that was learned is saved."""
    timeout_s: Annotated[float, Field(gt=0)] = 600.0
    """Patience with each server; loading reads the whole file."""
    json_output: bool = False
    """Print one JSON object instead of a table."""
    client: ClientConfig = ClientConfig()
    """Token and certificates; the other settings have no effect here."""


def run(arguments: Sequence[str]) -> int:
    """Do it at every address; return 1 if it failed at any.

    Raises:
        ConfigError: the command line, an address or a credential is wrong. Nothing was done then.
    """
    settings = load_settings(AdminSettings, "admin", arguments)
    _require_names(settings)
    from speculant_graph.rpc.addresses import split_addresses
    from speculant_graph.rpc.channel import Endpoint

    if not settings.address:
        raise ConfigError("name the server's admin address by --address, such as unix:///run/speculant/admin.sock")
    endpoints = [Endpoint.of(address, settings.client) for address in split_addresses(settings.address)]
    call = _call(settings)
    answers: list[dict[str, Any]] = []
    for endpoint in endpoints:
        answer, problem = _ask(endpoint, *call, settings.timeout_s)
        if answer is None:
            sys.stderr.write(f"speculant: admin: {endpoint.address}: {printable(problem)}\n")
            answers.append({"address": endpoint.address, "error": problem})
        else:
            answers.append({"address": endpoint.address, **answer})
            if remark := _remark(answer) if settings.action == "list" else "":
                sys.stderr.write(f"speculant: admin: {endpoint.address}: {remark}\n")
    if settings.json_output:
        sys.stdout.write(json.dumps(_report(settings, answers)) + "\n")
    else:
        sys.stdout.write(_table(settings.action, [answer for answer in answers if "error" not in answer]))
    return int(any("error" in answer for answer in answers))


def _report(settings: AdminSettings, answers: list[dict[str, Any]]) -> dict[str, Any]:
    if settings.action == "adapter":
        return {"action": f"adapter {settings.name}", "verifiers": answers}
    return {"action": settings.action, "sidecars": answers}


def _require_names(settings: AdminSettings) -> None:
    if settings.action == "adapter":
        if settings.name not in _OF_ADAPTERS:
            raise ConfigError("'adapter' is followed by list, load NAME or rollback; see speculant admin --help")
        if "path" in settings.model_fields_set and settings.name != "load":
            raise ConfigError(f"'adapter {settings.name}' takes no name; leave it out")
        if "path" not in settings.model_fields_set and settings.name == "load":
            raise ConfigError("'adapter load' needs the name of an adapter; 'adapter list' shows them")
        return
    needed = {"load": ("name", "path"), "reload": ("name",), "unload": ("name",)}.get(settings.action, ())
    allowed = (*needed, "path") if settings.action == "reload" else needed
    for field in ("name", "path"):
        is_given = bool(getattr(settings, field))
        if field in needed and not is_given:
            raise ConfigError(f"'{settings.action}' needs the {field} of a graph; see speculant admin --help")
        if is_given and field not in allowed:
            raise ConfigError(f"'{settings.action}' takes no {field}; leave it out")


def _call(settings: AdminSettings) -> tuple[type[Any], str, Message]:
    """Return the stub, the method and its request."""
    from speculant_graph.rpc.v1 import drafter_pb2 as pb
    from speculant_graph.rpc.v1 import verifier_pb2
    from speculant_graph.rpc.v1.drafter_pb2_grpc import DrafterAdminServiceStub
    from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierAdminServiceStub

    make: dict[str, Callable[[], tuple[str, Message]]] = {
        "list": lambda: ("ListGraphs", pb.ListGraphsRequest()),
        "load": lambda: ("LoadGraph", pb.LoadGraphRequest(name=settings.name, path=settings.path)),
        "reload": lambda: ("ReloadGraph", pb.ReloadGraphRequest(name=settings.name, path=settings.path)),
        "unload": lambda: ("UnloadGraph", pb.UnloadGraphRequest(name=settings.name)),
        "save": lambda: ("SaveLearnedState", pb.SaveLearnedStateRequest(tenant=settings.tenant)),
        "statistics": lambda: ("GetStatistics", pb.GetStatisticsRequest()),
    }
    of_adapters: dict[str, Callable[[], tuple[str, Message]]] = {
        "list": lambda: ("ListAdapters", verifier_pb2.ListAdaptersRequest()),
        "load": lambda: ("LoadAdapter", verifier_pb2.LoadAdapterRequest(name=settings.path)),
        "rollback": lambda: ("RollbackAdapter", verifier_pb2.RollbackAdapterRequest()),
    }
    if settings.action == "adapter":
        return (VerifierAdminServiceStub, *of_adapters[settings.name]())
    return (DrafterAdminServiceStub, *make[settings.action]())


def _ask(
    endpoint: Endpoint, stub: type[Any], method: str, request: Message, timeout_s: float
) -> tuple[dict[str, Any] | None, str]:
    """Return a server's answer as plain values, or None and what went wrong."""
    import grpc

    from speculant_graph.rpc.status import from_status

    with endpoint.connect() as channel:
        try:
            answer = getattr(stub(channel), method)(request, timeout=timeout_s, metadata=endpoint.metadata)
        except grpc.RpcError as error:
            # A call's RpcError is the call itself.
            return None, str(from_status(error.code(), error.details()))
        state = {"is_loading": _is_loading(channel, endpoint, timeout_s)} if method == "ListGraphs" else {}
    return {**_plain(answer), **state}, ""


def _is_loading(channel: grpc.Channel, endpoint: Endpoint, timeout_s: float) -> bool:
    """Return whether graphs of a sidecar's settings are still to come; not if it does not say."""
    import grpc
    from grpc_health.v1 import health_pb2, health_pb2_grpc

    from speculant_graph.rpc.v1 import drafter_pb2 as pb

    request = health_pb2.HealthCheckRequest(service=pb.DESCRIPTOR.services_by_name["DrafterAdminService"].full_name)
    try:
        answer = health_pb2_grpc.HealthStub(channel).Check(request, timeout=timeout_s, metadata=endpoint.metadata)
    except grpc.RpcError:
        return False
    return bool(answer.status == health_pb2.HealthCheckResponse.NOT_SERVING)


def _remark(answer: dict[str, Any]) -> str:
    """Return what a list alone does not tell."""
    if answer["is_loading"]:
        num_served = len(answer["graphs"])
        return f"it is still loading graphs (or about to end), {num_served} are served now; ask again in a moment"
    return "" if answer["graphs"] else "no graph is served; load one by 'speculant admin load NAME PATH'"


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


def _table(action: Action, answers: Sequence[dict[str, Any]]) -> str:
    """Return answers as aligned columns, a line for every graph, adapter or sidecar; numbers stand to the right."""
    if action in ("list", "load", "reload"):
        rows = [
            {"address": answer["address"], **graph}
            for answer in answers
            for graph in (answer["graphs"] if action == "list" else [answer["graph"]])
        ]
    elif action == "adapter":
        rows = [row for answer in answers for row in _adapter_rows(answer["address"], answer["state"])]
    else:
        rows = list(answers)
    if not rows:
        return ""
    names = [name for name in rows[0] if name != "tokenizer_sha256"]
    columns = [[name.replace("_", " "), *(_cell(row[name]) for row in rows)] for name in names]
    is_number = [not isinstance(rows[0][name], str) for name in names]
    widths = [max(map(len, column)) for column in columns]
    lines = []
    for cells in zip(*columns, strict=True):
        placed = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(cells, widths, is_number, strict=True)
        ]
        lines.append("  ".join(placed).rstrip() + "\n")
    return "".join(lines)


def _adapter_rows(address: str, state: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line for every adapter of a verifier: what drafts, what did before, and what may be loaded."""
    present, previous = state["present"], state["previous"]
    names = dict.fromkeys([present["name"], *([] if previous is None else [previous["name"]]), *state["names"]])
    rows = []
    for name in names:
        row = {"address": address, "adapter": name or "(none)", "state": "", "acceptance": "", "sha256": ""}
        for adapter, what, share in (
            (previous, "previous", state["previous_acceptance"]),
            (present, "drafts", state["acceptance"]),
        ):
            if adapter is not None and adapter["name"] == name:
                row |= {"state": what, "acceptance": "" if share is None else f"{share:.1%}"}
                row["sha256"] = adapter["sha256"][:12]
        rows.append(row)
    return rows


def _cell(value: str | float) -> str:
    return printable(value) if isinstance(value, str) else f"{value:,}"
