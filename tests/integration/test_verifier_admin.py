"""The verifier's admin service on real sockets: adapters are swapped under load, refused, and for administrators."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from speculant_graph.config import DraftConfig, GenerationConfig, ServiceConfig, VerifierConfig
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.rpc.v1.verifier_pb2_grpc import VerifierAdminServiceStub, VerifierServiceStub
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.draft_model.adapter_files import read_adapter
from speculant_verifier.model import TargetModel
from speculant_verifier.service.server import VerifierServer
from support.adapters import NUM_ROWS, adapted_decoder, adapter_folders
from support.http_api import entry, policy, tiny_decoder
from support.tiny_models import tiny_model
from support.training import write_adapter
from support.verifier import running_verifier

Scenario = Callable[[Any, Any, VerifierServer, SpeculativeDecoder], Awaitable[None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def folders(folder: Path) -> dict[str, Path]:
    return adapter_folders(folder)


def play(path: Path, make: Callable[[], SpeculativeDecoder], scenario: Scenario, **settings: Any) -> None:
    """Serve, and play a scenario of (admin's stub, stub, server, decoder)."""
    fields = {"listen": f"unix://{path}/v.sock", "admin_listen": f"unix://{path}/a.sock", "http": "", **settings}
    decoders: list[SpeculativeDecoder] = []

    def made() -> SpeculativeDecoder:
        decoders.append(make())
        return decoders[0]

    async def everything() -> None:
        server = VerifierServer(
            ServiceConfig.model_validate(fields), GenerationConfig(max_tokens=20, speculation="on"), made, NUM_ROWS
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
            (str(folders["random"]), "there is no adapter of this name"),  # whoever calls names no folders
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
        {"max_tokens": 100, "ignore_end_tokens": True, "seed": index, "temperature": 0.9 * (index % 2)}
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
    access = tmp_path / "access.toml"
    policy(access, entry("ann", "ann") + "\nadmin = true", entry("bob", "bob"))

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
        # Not served where everybody's requests come in.
        async with grpc.aio.insecure_channel(server.addresses[0]) as channel:
            other = VerifierAdminServiceStub(channel)
            call = other.ListAdapters(pb.ListAdaptersRequest(), metadata=metadata)
            assert (await refused(call))[0] is grpc.StatusCode.UNIMPLEMENTED

    play(tmp_path, lambda: adapted_decoder(folder, folders), scenario, access_file=access)


def test_without_a_draft_model(tmp_path: Path) -> None:
    async def scenario(admin: Any, _stub: Any, _server: Any, _decoder: Any) -> None:
        code, details = await refused(admin.ListAdapters(pb.ListAdaptersRequest()))
        assert (code, "start it with --draft-model" in details) == (grpc.StatusCode.UNIMPLEMENTED, True)

    play(tmp_path, tiny_decoder, scenario)


@pytest.mark.slow
def test_the_command_with_a_real_process(tmp_path: Path) -> None:
    config = VerifierConfig(model_name=str(MODEL_FOLDER), device="cpu", num_threads=1)
    model = TargetModel.load(config).model
    small = write_adapter(tmp_path / "small", model, MODEL_FOLDER.name, std=0.001)
    address = f"unix://{tmp_path}/admin.sock"

    def admin(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "speculant", "admin", "adapter", *arguments, "--address", address]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)

    options = ("--draft-model", str(MODEL_FOLDER), "--draft-model.adapters", f"small={small}", "--strategy", "tree")
    with running_verifier(tmp_path, *options, "--admin-listen", address) as verifier:
        listed = admin("list")
        assert (listed.returncode, listed.stderr) == (0, "")
        assert json.loads(listed.stdout)["verifiers"][0]["state"]["names"] == ["small"]
        loaded = admin("load", "small")
        assert loaded.returncode == 0, loaded.stderr
        report = json.loads(loaded.stdout)
        assert report["action"] == "adapter load"
        [answer] = report["verifiers"]
        assert (answer["state"]["present"]["name"], answer["state"]["previous"]["name"]) == ("small", "")
        assert answer["state"]["acceptance"] is None
        assert answer["state"]["present"]["sha256"] == read_adapter(small).digest
        metrics = verifier.metrics
        digest = read_adapter(small).digest
        assert metrics[f'speculant_verifier_draft_model_info{{adapter="small",sha256="{digest}"}}'] == 1
        wrong = admin("load", "none")
        assert wrong.returncode == 1
        assert "INVALID_ARGUMENT: there is no adapter of this name" in wrong.stderr
        back = admin("rollback")
        assert back.returncode == 0, back.stderr
        assert [line.split()[1:] for line in back.stdout.splitlines()[1:]] == [["(none)", "small"]]
        assert admin("rollback").returncode == 1
        assert f"admin on {address}" in verifier.log
