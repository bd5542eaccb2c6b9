"""Addresses, certificates and tokens: mistakes show when a client is made, and say what to do."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from loguru import logger

from speculant_graph.client import AsyncDrafterClient, DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import AccessError, ConfigError, DrafterUnavailableError
from speculant_graph.rpc.addresses import split_addresses
from speculant_graph.rpc.channel import Endpoint, connect_channel
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import SequenceStep
from support.dict_drafter import DictDrafter, drafted

SOCKET = "unix:///tmp/d.sock"


def config(address: str = SOCKET, **fields: object) -> ClientConfig:
    return ClientConfig.model_validate({"address": address, **fields})


@pytest.mark.parametrize("kind", [DrafterClient, AsyncDrafterClient])
@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("", "set client.address"),
        (f"{SOCKET},", "is not an address"),
        (f"{SOCKET},drafter", "is not an address"),
        (f"{SOCKET}, {SOCKET}", "name every drafter once"),
    ],
)
def test_addresses_that_are_none_are_refused(kind: Any, address: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kind(config(address), tokenizer=None, draft=DraftConfig())


def test_addresses_are_separated_by_commas() -> None:
    assert split_addresses(f"{SOCKET}, localhost:80,[::1]:81") == (SOCKET, "localhost:80", "[::1]:81")


@pytest.mark.parametrize("address", ["10.0.0.7:50051", "drafter.example:50051", "[2001:db8::1]:50051", "127.evil:1"])
def test_a_token_does_not_travel_unencrypted(address: str) -> None:
    with pytest.raises(ConfigError, match=r"client.token would travel .* unencrypted; set client.tls"):
        Endpoint.of(address, config(token="secret"))
    assert Endpoint.of(address, config(token="secret", tls=True)).metadata == (("authorization", "Bearer secret"),)


@pytest.mark.parametrize("address", [SOCKET, "localhost:50051", "127.0.0.1:50051", "[::1]:50051"])
def test_a_token_may_travel_within_this_machine(address: str) -> None:
    endpoint = Endpoint.of(address, config(token="secret"))
    assert endpoint.metadata == (("authorization", "Bearer secret"),)
    assert "secret" not in repr(endpoint)


@pytest.mark.parametrize("token", ["", "two words", "line\n", "gr\N{LATIN SMALL LETTER U WITH DIAERESIS}n"])
def test_tokens_that_no_header_can_hold_are_refused(token: str) -> None:
    with pytest.raises(ConfigError, match=r"client.token must be visible ASCII"):
        Endpoint.of(SOCKET, config(token=token))


@pytest.mark.parametrize("setting", ["tls_ca", "tls_certificate", "tls_key"])
def test_certificates_that_can_not_be_read_are_named(setting: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("nothing", encoding="utf-8")
    others = {"tls_certificate": tmp_path / "file", "tls_key": tmp_path / "file"} if setting != "tls_ca" else {}
    fields: dict[str, object] = {**others, setting: tmp_path / "missing.pem"}
    with pytest.raises(ConfigError, match=rf"client.{setting}: can't read .*missing.pem \(No such file"):
        Endpoint.of("localhost:1", config(**fields))


def test_certificates_that_are_none_are_named(tmp_path: Path) -> None:
    path = tmp_path / "file.pem"
    path.write_text("nothing", encoding="utf-8")
    with pytest.raises(ConfigError, match=r"client.tls_ca holds no usable certificate"):
        Endpoint.of("localhost:1", config(tls_ca=path))
    with pytest.raises(ConfigError, match=r"client.tls_certificate .* are no pair"):
        Endpoint.of("localhost:1", config(tls_certificate=path, tls_key=path))
    with pytest.raises(ConfigError, match="set both or neither"):
        Endpoint.of("localhost:1", config(tls_certificate=path))


class Handlers(grpc.GenericRpcHandler):
    """An obvious drafter behind a real server, which asks for a token."""

    def __init__(self) -> None:
        self.drafter = DictDrafter()

    def service(self, details: grpc.HandlerCallDetails) -> Any:
        method = details.method.rpartition("/")[2]
        is_stream = method == "StreamDraft"
        if ("authorization", "Bearer secret") not in tuple(map(tuple, details.invocation_metadata)):
            if is_stream:
                return grpc.stream_stream_rpc_method_handler(self._refuse_stream)
            return grpc.unary_unary_rpc_method_handler(self._refuse)
        if is_stream:
            return grpc.stream_stream_rpc_method_handler(lambda requests, _: map(self.drafter.answer, requests))
        if method == "OpenSession":
            return grpc.unary_unary_rpc_method_handler(
                lambda request, _: self.drafter.open(request),
                pb.OpenSessionRequest.FromString,
                pb.OpenSessionResponse.SerializeToString,
            )
        return grpc.unary_unary_rpc_method_handler(lambda payload, _: b"")

    @staticmethod
    def _refuse(_: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        return b""

    @staticmethod
    def _refuse_stream(_: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
        context.abort(grpc.StatusCode.UNAUTHENTICATED, "who are you?")
        yield b""


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture(scope="module")
def files(authority: trustme.CA, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Certificate files of a client."""
    folder = tmp_path_factory.mktemp("certificates")
    mine = authority.issue_cert("verifier.example")
    for name, blob in (
        ("ca", authority.cert_pem),
        ("certificate", mine.cert_chain_pems[0]),
        ("key", mine.private_key_pem),
        ("stranger", trustme.CA().cert_pem),
    ):
        blob.write_to_path(folder / f"{name}.pem")
    return {name: folder / f"{name}.pem" for name in ("ca", "certificate", "key", "stranger")}


@pytest.fixture(scope="module")
def address(authority: trustme.CA) -> Iterator[str]:
    """A server that has a certificate and wants one."""
    pair = authority.issue_cert("drafter.example")
    credentials = grpc.ssl_server_credentials(
        [(pair.private_key_pem.bytes(), b"".join(blob.bytes() for blob in pair.cert_chain_pems))],
        authority.cert_pem.bytes(),
        require_client_auth=True,
    )
    server = grpc.server(ThreadPoolExecutor(8), handlers=(Handlers(),))
    port = server.add_secure_port("127.0.0.1:0", credentials)
    server.start()
    yield f"127.0.0.1:{port}"
    server.stop(0).wait()


STEP = SequenceStep(1, [1, 2, 3], 4)


def secured(address: str, files: dict[str, Path], **fields: object) -> ClientConfig:
    given: dict[str, object] = {
        "tls_ca": files["ca"],
        "tls_certificate": files["certificate"],
        "tls_key": files["key"],
        "tls_server_name": "drafter.example",
        "token": "secret",
        "deadline_ms": 5_000,
        "open_deadline_ms": 5_000,
    }
    return config(address, **(given | fields))


def test_certificates_and_tokens_travel_with_every_call(address: str, files: dict[str, Path]) -> None:
    with DrafterClient(secured(address, files), tokenizer=None, draft=DraftConfig(), strict=True) as client:
        client.open(1)
        assert client.draft([STEP])[0].token_ids == drafted(STEP.token_ids, 4)


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"tls_ca": "stranger"}, DrafterUnavailableError, "UNAVAILABLE.*(?i:certificate|handshake|ssl)"),
        ({"tls_server_name": "other.example"}, DrafterUnavailableError, "UNAVAILABLE.*Hostname"),
        ({"token": "wrong"}, AccessError, "UNAUTHENTICATED: who are you"),
        ({"tls_certificate": None, "tls_key": None}, DrafterUnavailableError, "UNAVAILABLE"),
    ],
)
def test_wrong_credentials_do_not_look_like_a_slow_server(
    address: str, files: dict[str, Path], fields: dict[str, Any], kind: type[Exception], message: str
) -> None:
    fields = {name: files.get(value, value) if isinstance(value, str) else value for name, value in fields.items()}
    texts: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda line: texts.append(line.record["message"]), level="WARNING")
    with DrafterClient(secured(address, files, **fields), tokenizer=None, draft=DraftConfig(), strict=True) as client:
        with pytest.raises(kind, match=message):
            client.open(1)
        assert not client.draft([STEP])[0]
        assert client.state == "unavailable"
    logger.remove(sink)
    assert len(texts) == 1
    assert "secret" not in texts[0]


def test_channels_of_both_kinds_have_the_same_options() -> None:
    options = dict(Endpoint.of(SOCKET).options)
    assert options["grpc.max_reconnect_backoff_ms"] == 200
    with connect_channel(SOCKET) as channel:
        assert isinstance(channel, grpc.Channel)
