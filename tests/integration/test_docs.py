"""The pages for those who run the sidecar and for authors of clients: what they name exists, what they show works."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import io
import json
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message
from pydantic import ByteSize, TypeAdapter

from speculant_drafter.metrics import ServerCounts, ServerState, render_metrics
from speculant_drafter.server import DrafterServer
from speculant_drafter.sessions import Limits
from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc.status import STATUS_OF_ERROR
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.rpc.v1 import verifier_pb2
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.credentials import server_credentials
from speculant_verifier.demo.run import MODEL_FOLDER
from support.graphs import graph_of
from support.pages import blocks, rows, section

ROOT = Path(__file__).parents[2]
CLIENTS, SIDECAR = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("clients", "sidecar"))
FOREIGN = {"RetryInfo", "TokenizerMismatchError", "Fingerprint"}
TEXT = [5, 6, 7, 8, 9, 5, 6, 7, 10, 5, 6, 7, 8, 9, 11] * 3
VOCABULARY_SIZE = 4_096
"""That of the tokenizer with which the pages' examples were made."""


def test_the_table_of_metrics_is_complete() -> None:
    rendered = re.findall(
        r"^# HELP (speculant_drafter_\w+)", render_metrics(ServerCounts(), ServerState()).decode(), re.M
    )
    described = [row[0].strip("`") for row in rows(section(SIDECAR, "Watching")) if "speculant_drafter" in row[0]]
    assert sorted(described) == sorted(rendered)


def test_the_table_of_limits_has_the_defaults() -> None:
    table = rows(section(SIDECAR, "Limits"))
    of_messages = {"sequences": "max_sequences", "context tokens": "max_tokens", "nodes of a sequence": "max_nodes",
                   "nodes of a step": "max_step_nodes",
                   "sessions": "max_sessions", "seconds without a step": "idle_timeout_s"}  # fmt: skip
    for name, default, _ in table:
        if name in of_messages:
            value = getattr(Limits(), of_messages[name])
        else:
            value = getattr(ServerConfig(), name.strip("`").removeprefix("server."))
        assert TypeAdapter(ByteSize).validate_python(default) == value, name
    limits = {f"server.{name}" for name in ServerConfig.model_fields if name.startswith("max_")}
    assert limits <= {name.strip("`") for name, *_ in table}


def test_the_table_of_errors_has_every_status() -> None:
    table = "\n".join(" ".join(row) for row in rows(section(CLIENTS, "Errors")))
    assert {code.name for code in STATUS_OF_ERROR.values()} <= set(re.findall(r"\b[A-Z_]+\b", table))
    statuses = set(pb.SequenceStatus.keys()) - {"SEQUENCE_STATUS_UNSPECIFIED", "SEQUENCE_STATUS_OK"}
    assert statuses <= set(re.findall(r"\bSEQUENCE_STATUS_\w+", table))
    assert all(len(row) == 5 and row[0] and row[4] for row in rows(section(CLIENTS, "Errors")))


def test_elements_of_the_wire_that_are_named_exist() -> None:
    files = (pb.DESCRIPTOR, verifier_pb2.DESCRIPTOR)
    services = [service for file in files for service in file.services_by_name.values()]
    messages = [message for file in files for message in file.message_types_by_name.values()]
    large = {each.name for each in [*services, *messages]} | FOREIGN
    large |= {method.name for service in services for method in service.methods}
    fields = {field.name for message in messages for field in message.fields}
    values = {value for file in files for kind in file.enum_types_by_name.values() for value in kind.values_by_name}
    for name in re.findall(r"`([A-Z][a-z]+[A-Za-z]*)`", CLIENTS):
        assert name in large, name
    for name in re.findall(r"`([a-z]+_[a-z0-9_]+)`", CLIENTS):
        assert name in fields, name
    for name in re.findall(r"`([A-Z]+_[A-Z_]+)`", CLIENTS):
        assert name in values, name


def test_the_access_file_is_one(tmp_path: Path) -> None:
    (example,) = blocks(SIDECAR, "toml")
    path = tmp_path / "access.toml"
    path.write_text(example.replace("…", "ab" * 32), encoding="utf-8")
    path.chmod(0o600)
    assert not AccessPolicy.load(path).is_open


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl")
def test_the_certificates_can_be_served_with(tmp_path: Path) -> None:
    (commands,) = [block for block in blocks(SIDECAR, "bash") if block.startswith("openssl req")]
    subprocess.run(["sh", "-e", "-c", commands], cwd=tmp_path, check=True, capture_output=True)
    config = ServerConfig(
        tls_certificate=tmp_path / "server.pem", tls_key=tmp_path / "server.key", tls_client_ca=tmp_path / "ca.pem"
    )
    assert server_credentials(config) is not None


def served(folder: Path, scenario: Callable[[str], Awaitable[None]]) -> None:
    if not (folder / "graph.pkl").exists():
        graph_of([TEXT], 3, VOCABULARY_SIZE).save(folder / "graph.pkl")
    config = ServerConfig(listen=f"unix://{folder}/d.sock", graph=folder / "graph.pkl")

    async def run() -> None:
        async with DrafterServer(config, DraftConfig()) as server:
            await scenario(server.addresses[0])

    asyncio.run(run())


def test_the_small_client_works(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    [program] = [block for block in blocks(CLIENTS, "python") if block.startswith("import secrets")]
    assert program.count("timeout=0.") == 2
    program = re.sub(r"timeout=0\.\d+", "timeout=30", program)  # a busy machine is no error

    def run() -> str:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(program, "docs/clients.md", "exec"), {"__name__": "__main__"})
        return printed.getvalue()

    async def scenario(address: str) -> None:
        monkeypatch.setattr(sys, "argv", ["client.py", address, *map(str, TEXT)])
        tokens, steps = map(int, re.findall(r"\d+", await asyncio.to_thread(run)))
        assert tokens == len(TEXT) - 2
        assert steps <= tokens // 2

    served(tmp_path, scenario)


def exchanges() -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield what the page sends by hand: method, requests and the answers that it shows."""
    for block in blocks(section(CLIENTS, "By hand"), "console"):
        for method, requests, answers in re.findall(r"^\$ call (\w+) '(.*?)'\n(.*?)(?=^\$|\Z)", block, re.M | re.S):
            yield method, list(objects(requests)), list(objects(answers))


def objects(text: str) -> Iterator[Any]:
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


def outline(answer: Message) -> dict[str, Any]:
    """Return what of an answer does not depend on graph and clock."""
    kept = ("stepId", "draft", "error", "sequenceStatuses", "nextPositions", "vocabularySize")
    known = json_format.MessageToDict(answer)
    known["draft"] = {name: value for name, value in known.get("draft", {}).items() if name in kept}
    return {name: value for name, value in known.items() if name in kept}


def hold_exchange(folder: Path, part: Callable[[Message], dict[str, Any]]) -> None:
    """Send what the page sends; of the answers, this part is as the page shows it."""
    service = pb.DESCRIPTOR.services_by_name["DrafterService"]
    shown = list(exchanges())
    assert [method for method, _, _ in shown].count("Draft") == 4

    async def scenario(address: str) -> None:
        async with grpc.aio.insecure_channel(address) as channel:
            for name, requests, answers in shown:
                method = service.methods_by_name[name]
                ask, answer_class = (getattr(pb, kind.name) for kind in (method.input_type, method.output_type))
                path = f"/{service.full_name}/{name}"
                sent = [json_format.ParseDict(request, ask()).SerializeToString() for request in requests]
                if method.client_streaming:
                    got = [answer async for answer in channel.stream_stream(path)(iter(sent))]
                else:
                    got = [await channel.unary_unary(path)(message) for message in sent]
                expected = [json_format.ParseDict(answer, answer_class()) for answer in answers]
                assert [part(answer_class.FromString(each)) for each in got] == list(map(part, expected)), name

    served(folder, scenario)


def test_the_exchange_by_hand_is_what_the_page_shows(tmp_path: Path) -> None:
    hold_exchange(tmp_path, outline)


def figures(answer: Message) -> dict[str, Any]:
    """Return what of an answer does not depend on the clock and on how many drafts were made before."""
    known = json_format.MessageToDict(answer)
    known |= known.pop("draft", {})
    shares = [round(share, 6) for share in known.get("draftPathProbabilities", ())]
    left_out = ("draftId", "serverTime", "tokenizerName", "draftPathProbabilities")
    return {name: value for name, value in known.items() if name not in left_out} | {"shares": shares}


@pytest.mark.slow
@pytest.mark.skipif(f"Python {platform.python_version()};" not in CLIENTS, reason="the page has another library's text")
def test_the_exchange_by_hand_has_the_figures_of_the_page(tmp_path: Path) -> None:
    [packages] = re.findall(r"import ([a-z, ]+); print", CLIENTS)
    folders = [importlib.import_module(name).__path__[0] for name in packages.split(", ")]
    graph_path = tmp_path / "graph.pkl"
    assert main(["build", *folders, "--tokenizer", str(MODEL_FOLDER), "-o", str(graph_path)]) == 0
    hold_exchange(tmp_path, figures)
    [graph] = json.loads(re.findall(r'^\{"graphs".*?^ .*?$', CLIENTS, re.MULTILINE | re.DOTALL)[0])["graphs"]
    assert abs(int(graph["fileBytes"]) - graph_path.stat().st_size) < 1_024, "but for the names of folders"
    assert int(graph["corpusTokens"]) == NgramGraph.load(graph_path).metadata.num_tokens
