"""TLS settings against real handshakes."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
import trustme

from speculant_graph.config import AccessConfig
from speculant_graph.errors import ConfigError
from speculant_graph.serving.credentials import certificate_names, server_credentials

PATIENCE_S = 10.0


class Files:
    """Certificates of one authority, as files."""

    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.server = self.authority.issue_cert("localhost", "127.0.0.1")
        self.client = self.authority.issue_cert("search.internal", "other.internal", common_name="search")
        self.ca, self.certificate, self.key = (folder / name for name in ("ca.pem", "certificate.pem", "key.pem"))
        self.authority.cert_pem.write_to_path(str(self.ca))
        for part in self.server.cert_chain_pems:
            part.write_to_path(str(self.certificate), append=True)
        self.server.private_key_pem.write_to_path(str(self.key))


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return Files(tmp_path_factory.mktemp("tls"))


def client_credentials(authority: trustme.CA, leaf: trustme.LeafCert | None) -> grpc.ChannelCredentials:
    if leaf is None:
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    chain = b"".join(part.bytes() for part in leaf.cert_chain_pems)
    return grpc.ssl_channel_credentials(authority.cert_pem.bytes(), leaf.private_key_pem.bytes(), chain)


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


def test_a_client_without_certificate_has_no_names(files: Files) -> None:
    config = AccessConfig(tls_certificate=files.certificate, tls_key=files.key)
    for leaf in (None, files.client):  # one that nobody asked for proves nothing
        credentials = client_credentials(files.authority, leaf)
        assert ask_names(config, lambda target, made=credentials: grpc.aio.secure_channel(target, made)) == []
    assert ask_names(config, grpc.aio.insecure_channel) is grpc.StatusCode.UNAVAILABLE


def test_names_of_a_verified_certificate(files: Files) -> None:
    config = AccessConfig(tls_certificate=files.certificate, tls_key=files.key, tls_client_ca=files.ca)

    def ask(leaf: trustme.LeafCert | None) -> list[str] | grpc.StatusCode:
        credentials = client_credentials(files.authority, leaf)
        return ask_names(config, lambda target: grpc.aio.secure_channel(target, credentials))

    assert ask(files.client) == ["search", "search.internal", "other.internal"]
    assert ask(None) is grpc.StatusCode.UNAVAILABLE
    assert ask(trustme.CA().issue_cert("search.internal")) is grpc.StatusCode.UNAVAILABLE


@pytest.mark.parametrize("name", ["tls_certificate", "tls_key", "tls_client_ca"])
def test_half_of_the_settings_is_refused(files: Files, name: str) -> None:
    with pytest.raises(ConfigError, match=r"access\.tls_certificate and access\.tls_key belong together"):
        server_credentials(AccessConfig.model_validate({name: files.ca}))


@pytest.mark.parametrize("setting", ["tls_certificate", "tls_key", "tls_client_ca"])
@pytest.mark.parametrize("content", [None, b"", b"no PEM", b"\xff\x00", "other"])
def test_wrong_files_are_named(files: Files, tmp_path: Path, setting: str, content: bytes | str | None) -> None:
    settings = {"tls_certificate": files.certificate, "tls_key": files.key, "tls_client_ca": files.ca}
    wrong = tmp_path / "wrong.pem"
    if content == "other":  # of the right kind of file, but another's
        wrong.write_bytes(files.client.private_key_pem.bytes())
    elif isinstance(content, bytes):
        wrong.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"access\.{setting}: '{wrong}'") as caught:
        server_credentials(AccessConfig.model_validate(settings | {setting: wrong}))
    assert "\n" not in str(caught.value)


def test_an_encrypted_key_is_refused_without_asking_the_terminal(files: Files, tmp_path: Path) -> None:
    encrypted = tmp_path / "key.pem"
    command = ["openssl", "pkey", "-aes256", "-passout", "pass:secret", "-in", str(files.key), "-out", str(encrypted)]
    try:
        subprocess.run(command, check=True, capture_output=True, timeout=PATIENCE_S)
    except FileNotFoundError:
        pytest.skip("openssl is not installed")
    with pytest.raises(ConfigError, match=r"access\.tls_key: .* is not the unencrypted private key"):
        server_credentials(AccessConfig(tls_certificate=files.certificate, tls_key=encrypted))
