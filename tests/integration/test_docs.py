"""The pages on the sidecar and on clients: all names in them exist, and their examples work."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc.aio
import pytest
from google.protobuf import json_format
from google.protobuf.message import Message

from speculant_drafter.server import DrafterServer
from speculant_graph.config import AccessConfig, DraftConfig, ServerConfig
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.serving.access import AccessPolicy
from speculant_graph.serving.listening import server_credentials
from support.graphs import graph_of
from support.pages import blocks, section

ROOT = Path(__file__).parents[2]
CLIENTS, SIDECAR = ((ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8") for name in ("clients", "sidecar"))
TEXT = [5, 6, 7, 8, 9, 5, 6, 7, 10, 5, 6, 7, 8, 9, 11] * 3
VOCABULARY_SIZE = 4_096
"""Vocabulary size of the tokenizer used for the pages' examples."""


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
    config = AccessConfig(
        tls_certificate=tmp_path / "server.pem", tls_key=tmp_path / "server.key", tls_client_ca=tmp_path / "ca.pem"
    )
    assert server_credentials(config) is not None


def exchanges() -> Iterator[tuple[str, list[Any], list[Any]]]:
    """Yield the page's example calls: method, requests and shown responses."""
    for block in blocks(section(CLIENTS, "By hand"), "console"):
        for method, requests, answers in re.findall(r"^\$ call (\w+) '(.*?)'\n(.*?)(?=^\$|\Z)", block, re.M | re.S):
            yield method, list(objects(requests)), list(objects(answers))


def objects(text: str) -> Iterator[Any]:
    while text := text.strip():
        value, end = json.JSONDecoder().raw_decode(text)
        yield value
        text = text[end:]


def outline(answer: Message) -> dict[str, Any]:
    """Return the fields of a response that do not depend on the graph or the clock."""
    kept = ("stepId", "draft", "error", "sequenceStatuses", "nextPositions", "vocabularySize")
    known = json_format.MessageToDict(answer)
    known["draft"] = {name: value for name, value in known.get("draft", {}).items() if name in kept}
    return {name: value for name, value in known.items() if name in kept}


def test_the_exchange_by_hand_is_what_the_page_shows(tmp_path: Path) -> None:
    service = pb.DESCRIPTOR.services_by_name["DrafterService"]
    shown = list(exchanges())
    assert [method for method, _, _ in shown].count("Draft") == 4

    graph_of([TEXT], 3, VOCABULARY_SIZE).save(tmp_path / "graph.pkl")
    config = ServerConfig(listen=f"unix://{tmp_path}/d.sock", graph=tmp_path / "graph.pkl")

    async def run() -> None:
        async with (
            DrafterServer(config, DraftConfig()) as server,
            grpc.aio.insecure_channel(server.addresses[0]) as channel,
        ):
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
                assert [outline(answer_class.FromString(each)) for each in got] == list(map(outline, expected)), name

    asyncio.run(run())
