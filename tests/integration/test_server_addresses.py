"""The addresses of a sidecar: used exclusively, and released at the end."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import grpc
import pytest

from speculant_drafter.server import DrafterServer
from speculant_graph.config import DraftConfig, ServerConfig
from speculant_graph.errors import ConfigError
from support.server import PATIENCE_S, SERVICE, Serve, connected, run_in_loop, step_of


@pytest.mark.parametrize(
    ("address", "reason"),
    [
        ("127.0.0.1:{taken}", "another program listens there; stop it"),
        ("192.0.2.1:5000", "it is not an address of this machine"),
        ("unix://{folder}/file/drafter.sock", "File exists: .*/file; choose another path"),
    ],
)
def test_why_an_address_can_not_be_listened_on_is_said(
    graph_path: Path, tmp_path: Path, address: str, reason: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("nowhere")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        wanted = address.format(taken=taken.getsockname()[1], folder=tmp_path)

        async def start() -> None:
            async with DrafterServer(ServerConfig(graph=graph_path, listen=wanted), DraftConfig()):
                pass

        # Promised behaviour: the message contains the system's reason.
        with pytest.raises(ConfigError, match=rf"can't listen on {wanted}: .*({reason}).* with server.listen$"):
            run_in_loop(start())


def test_of_two_that_start_at_the_same_time_one_serves(graph_path: Path, tmp_path: Path) -> None:
    async def race() -> list[object]:
        config = ServerConfig(listen=f"unix://{tmp_path}/drafter.sock", graph=graph_path)
        servers = [DrafterServer(config, DraftConfig()) for _ in range(3)]
        results = await asyncio.gather(*(server.start() for server in servers), return_exceptions=True)
        for server, result in zip(servers, results, strict=True):
            if result is not None:  # the refused servers stop first, and must not remove the socket
                await server.stop()
        async with grpc.aio.insecure_channel(config.listen) as channel:
            call = channel.unary_unary(f"/{SERVICE}/Draft")
            await call(step_of(0, [1]).SerializeToString(), timeout=PATIENCE_S)
        for server, result in zip(servers, results, strict=True):
            if result is None:
                await server.stop()
        return results

    results = run_in_loop(race())
    assert sum(result is None for result in results) == 1
    assert sum(isinstance(result, ConfigError) for result in results) == 2


def test_the_socket_of_a_killed_server_is_replaced(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left_behind:
        left_behind.bind(str(tmp_path / "drafter.sock"))
    serve().drafter.Draft(step_of(0, [1]))


def test_the_socket_of_another_program_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as another:
        another.bind(str(tmp_path / "drafter.sock"))
        another.listen()
        with pytest.raises(ConfigError) as caught:
            serve()
        assert caught.value.field == "server.listen"
        assert (tmp_path / "drafter.sock").is_socket()


def test_sockets_and_their_folder_are_private(serve: Serve, tmp_path: Path) -> None:
    serve(listen=f"unix://{tmp_path}/new folder/drafter.sock").drafter.Draft(step_of(0, [1]))
    assert (tmp_path / "new folder").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "new folder" / "drafter.sock").stat().st_mode & 0o077 == 0


def test_what_is_no_socket_is_left_alone(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "drafter.sock").write_text("mine", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        serve()
    assert caught.value.field == "server.listen"
    assert (tmp_path / "drafter.sock").read_text(encoding="utf-8") == "mine"


def test_several_addresses_are_one_server(serve: Serve, tmp_path: Path) -> None:
    server = serve(listen=f"unix://{tmp_path}/drafter.sock,127.0.0.1:0, [::1]:0")
    session_id = server.open()
    for position, address in enumerate(server.server.addresses):
        with connected(address) as wire:
            answer = wire.drafter.Draft(step_of(session_id, [1], position))
            assert list(answer.next_positions) == [position + 1]
