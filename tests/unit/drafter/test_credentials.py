"""TLS settings, tested with real handshakes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest

from speculant_graph.config import AccessConfig
from speculant_graph.errors import ConfigError
from speculant_graph.serving.listening import certificate_names, server_credentials
from support.access import Certificates

PATIENCE_S = 10.0


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    return Certificates(tmp_path_factory.mktemp("tls"))


def client_credentials(authority: Path, pair: dict[str, Path]) -> grpc.ChannelCredentials:
    key, chain = (pair[name].read_bytes() if pair else None for name in ("tls_key", "tls_certificate"))
    return grpc.ssl_channel_credentials(authority.read_bytes(), key, chain)


def ask_names(config: AccessConfig, connect: Callable[[str], grpc.aio.Channel]) -> list[str] | grpc.StatusCode:
    """Serve with the configuration; return the names that the server sees, or the status of the failed call."""

    async def names(payload: bytes, context: Any) -> bytes:
        return "\n".join(certificate_names(context.auth_context())).encode()

    async def exchange() -> list[str] | grpc.StatusCode:
        server = grpc.aio.server()
        handler = grpc.unary_unary_rpc_method_handler(names)
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("test", {"Names": handler}),))
        credentials = server_credentials(config)
        assert credentials is not None
        port = server.add_secure_port("127.0.0.1:0", credentials)
        await server.start()
        try:
            async with connect(f"localhost:{port}") as channel:
                answer = await channel.unary_unary("/test/Names")(b"", timeout=PATIENCE_S)
                return answer.decode().splitlines()
        except grpc.aio.AioRpcError as error:
            return error.code()
        finally:
            await server.stop(None)

    return asyncio.run(exchange())


def test_a_client_without_certificate_has_no_names(files: Certificates) -> None:
    config = AccessConfig(**files.server)
    for pair in ({}, files.client):  # a certificate that the server did not request proves nothing
        credentials = client_credentials(files.ca, pair)
        assert ask_names(config, lambda target, made=credentials: grpc.aio.secure_channel(target, made)) == []
    assert ask_names(config, grpc.aio.insecure_channel) is grpc.StatusCode.UNAVAILABLE


def test_names_of_a_verified_certificate(files: Certificates, tmp_path: Path) -> None:
    config = AccessConfig(**files.server, tls_client_ca=files.ca)

    def ask(pair: dict[str, Path]) -> list[str] | grpc.StatusCode:
        credentials = client_credentials(files.ca, pair)
        return ask_names(config, lambda target: grpc.aio.secure_channel(target, credentials))

    assert ask(files.client) == ["search", "search.internal", "other.internal"]
    assert ask({}) is grpc.StatusCode.UNAVAILABLE
    assert ask(Certificates(tmp_path).client) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_half_of_the_settings_is_refused(files: Certificates, name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        server_credentials(AccessConfig.model_validate({name: files.ca}))
    assert caught.value.field == "access.tls_certificate"


@pytest.mark.parametrize("setting", ["tls_certificate", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", b"\xff\x00", "other"])
def test_wrong_files_are_named(files: Certificates, tmp_path: Path, setting: str, content: bytes | str | None) -> None:
    settings = {**files.server, "tls_client_ca": files.ca}
    wrong = tmp_path / "wrong.pem"
    if content == "other":  # right format, but it belongs to another certificate
        wrong.write_bytes(files.client["tls_key"].read_bytes())
    elif isinstance(content, bytes):
        wrong.write_bytes(content)
    with pytest.raises(ConfigError) as caught:
        server_credentials(AccessConfig.model_validate(settings | {setting: wrong}))
    assert caught.value.field == f"access.{setting}"
    assert "\n" not in str(caught.value)


def test_an_encrypted_key_is_refused_without_asking_the_terminal(files: Certificates, tmp_path: Path) -> None:
    encrypted = tmp_path / "key.pem"
    command = [
        "openssl",
        "pkey",
        "-aes256",
        "-passout",
        "pass:secret",
        "-in",
        str(files.server["tls_key"]),
        "-out",
        str(encrypted),
    ]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with pytest.raises(ConfigError) as caught:
        server_credentials(AccessConfig(tls_certificate=files.server["tls_certificate"], tls_key=encrypted))
    assert caught.value.field == "access.tls_key"
