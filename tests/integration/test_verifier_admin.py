"""The verifier's admin service on real sockets: adapter swaps under load, refusals, and access."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from speculant_graph.config import AccessConfig, DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierAdminServiceStub, VerifierServiceStub
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapter_files import read_adapter
from speculant_verifier.service.server import VerifierServer
from support.access import access_file, entry
from support.adapters import NUM_ROWS, adapted_decoder, adapter_folders
from support.tiny_models import tiny_model

Scenario = Callable[[Any, Any, VerifierServer, SpeculativeDecoder], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def folders(folder: Path) -> dict[str, Path]:
    return adapter_folders(folder)


def play(path: Path, make: Callable[[], SpeculativeDecoder], scenario: Scenario, file: Path | None = None) -> None:
    """Start a server, and run a scenario with (admin stub, stub, server, decoder)."""
    fields = {"listen": f"unix://{path}/v.sock", "admin_listen": f"unix://{path}/a.sock", "http": ""}
    decoders: list[SpeculativeDecoder] = []

    def made() -> SpeculativeDecoder:
        decoders.append(make())
        return decoders[0]

    async def everything() -> None:
        server = VerifierServer(
            ServiceConfig.model_validate(fields),
            GenerationConfig(max_tokens=20, speculation="on"),
            made,
            NUM_ROWS,
            access=AccessConfig(file=file),
        )
        async with (
            server,
            grpc.aio.insecure_channel(server.admin_addresses[0]) as admin,
            grpc.aio.insecure_channel(server.addresses[0]) as channel,
        ):
            await scenario(VerifierAdminServiceStub(admin), VerifierServiceStub(channel), server, decoders[0])

    asyncio.run(asyncio.wait_for(everything(), 240))


async def refused(call: Any) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await call
    return caught.value.code(), str(caught.value.details())


def test_list_load_and_roll_back(folder: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    digest = bytes.fromhex(read_adapter(folders["small"]).digest)

    async def scenario(admin: Any, _stub: Any, _server: Any, _decoder: Any) -> None:
        state = (await admin.ListAdapters(pb.ListAdaptersRequest())).state
        assert list(state.names) == ["small", "random", "other"]
        assert (state.present, state.HasField("previous"), state.HasField("acceptance")) == (pb.Adapter(), False, False)
        state = (await admin.LoadAdapter(pb.LoadAdapterRequest(name="small"))).state
        assert state.present == pb.Adapter(name="small", sha256=digest)
        assert state.HasField("previous")
        assert state.previous == pb.Adapter()
        for name, complaint in (
            ("other", "is for the model 'another'"),
            ("none", "there is no adapter of this name; those of the settings are: small, random, other"),
            (str(folders["random"]), "there is no adapter of this name"),  # callers can't name folders
        ):
            code, details = await refused(admin.LoadAdapter(pb.LoadAdapterRequest(name=name)))
            assert code is grpc.StatusCode.INVALID_ARGUMENT
            assert complaint in details
        assert (await admin.ListAdapters(pb.ListAdaptersRequest())).state == state
        state = (await admin.RollbackAdapter(pb.RollbackAdapterRequest())).state
        assert (state.present, state.HasField("previous")) == (pb.Adapter(), False)
        code, details = await refused(admin.RollbackAdapter(pb.RollbackAdapterRequest()))
        assert (code, "no adapter to go back to" in details) == (grpc.StatusCode.INVALID_ARGUMENT, True)

    play(tmp_path, lambda: adapted_decoder(folder, folders), scenario)


def test_swaps_under_sixteen_streams(folder: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    options = [
        {"max_tokens": 60, "ignore_end_tokens": True, "seed": index, "temperature": 0.9 * (index % 2)}
        for index in range(NUM_ROWS)
    ]
    prompts = [[*range(5 + index, 30)] for index in range(NUM_ROWS)]
    verifier = VerifierConfig(device="cpu", num_threads=1, measure_costs=False, max_batch_size=NUM_ROWS)
    with SpeculativeDecoder(target=tiny_model("llama"), verifier_config=verifier, draft_config=DraftConfig(k=0)) as own:
        expected = [
            list(each.token_ids) for each in own.generate(prompts, [GenerationConfig(**each) for each in options])
        ]
    swapped: list[str] = []

    async def scenario(admin: Any, stub: Any, _server: Any, decoder: SpeculativeDecoder) -> None:
        async def text(index: int) -> list[int]:
            request = pb.GenerateRequest(
                prompt_tokens=pb.TokenSequence(token_ids=prompts[index]),
                sampling=pb.SamplingOptions(**options[index]),
            )
            return [token async for each in stub.Generate(request) for token in each.token_ids]

        async def swap() -> None:
            while decoder.engine.num_running < NUM_ROWS:
                await asyncio.sleep(0.005)
            while True:
                for name in ("small", "random"):
                    state = (await admin.LoadAdapter(pb.LoadAdapterRequest(name=name))).state
                    swapped.append(state.present.name)
                await admin.RollbackAdapter(pb.RollbackAdapterRequest())
                swapped.append("back")

        swapping = asyncio.create_task(swap())
        found = await asyncio.gather(*map(text, range(NUM_ROWS)))
        assert not swapping.done(), "no swap failed"
        swapping.cancel()
        assert found == expected
        assert decoder.adapters is not None
        assert decoder.adapters.state.num_passes > 20
        assert decoder.totals.accepted_by_source["model"] > 0

    play(tmp_path, lambda: adapted_decoder(folder, folders), scenario)
    assert len(swapped) >= 3, swapped


def test_who_may(folder: Path, folders: dict[str, Path], tmp_path: Path) -> None:
    access = access_file(tmp_path / "access.toml", entry("ann", "ann", "admin = true"), entry("bob", "bob"))

    async def scenario(admin: Any, stub: Any, server: VerifierServer, decoder: SpeculativeDecoder) -> None:
        assert decoder.adapters is not None
        for key, expected in (("", "UNAUTHENTICATED"), ("cid", "UNAUTHENTICATED"), ("bob", "PERMISSION_DENIED")):
            metadata = (("authorization", f"Bearer {key}"),) if key else ()
            for call in (
                admin.ListAdapters(pb.ListAdaptersRequest(), metadata=metadata),
                admin.LoadAdapter(pb.LoadAdapterRequest(name="small"), metadata=metadata),
                admin.RollbackAdapter(pb.RollbackAdapterRequest(), metadata=metadata),
            ):
                assert (await refused(call))[0].name == expected
        assert decoder.adapters.state.present.name == ""
        metadata = (("authorization", "Bearer ann"),)
        answer = await admin.LoadAdapter(pb.LoadAdapterRequest(name="small"), metadata=metadata)
        assert answer.state.present.name == "small"
        # The public address does not serve it.
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            other = VerifierAdminServiceStub(channel)
            call = other.ListAdapters(pb.ListAdaptersRequest(), metadata=metadata)
            assert (await refused(call))[0] is grpc.StatusCode.UNIMPLEMENTED

    play(tmp_path, lambda: adapted_decoder(folder, folders), scenario, file=access)
