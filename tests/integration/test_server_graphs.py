"""Several graphs and their administration: loading, replacing, releasing and listing."""

from __future__ import annotations

import gc
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from support.server import (
    LOST,
    OK,
    PATIENCE_S,
    SERVICE,
    SERVING,
    LiveServer,
    Serve,
    Wire,
    code_of,
    connected,
    graph_file,
    refusal,
    serving,
    step_of,
)

INVALID, NOT_FOUND = grpc.StatusCode.INVALID_ARGUMENT, grpc.StatusCode.NOT_FOUND
MISMATCH = grpc.StatusCode.FAILED_PRECONDITION
ADMIN = "speculant_graph.rpc.v1.DrafterAdminService"


def successor_file(path: Path, successor: int, sha256: str = "ab" * 32) -> Path:
    """Write a graph in which one given token always follows token 1."""
    return graph_file(path, [1, successor, successor, successor] * 8, sha256=sha256)


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    successor_file(tmp_path / "two.pkl", 2)
    successor_file(tmp_path / "three.pkl", 3)
    successor_file(tmp_path / "four.pkl", 4, "cd" * 32)
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(tmp_path / "two.pkl", tmp_path, **settings))


def drafted(server: LiveServer, graph: str = "", session_id: int = 0, position: int = 0) -> tuple[int, int]:
    """Return the token drafted after token 1, and the generation that answered."""
    answer = server.drafter.Draft(step_of(session_id, [1], position, 1, graph=graph, strategy=pb.STRATEGY_GREEDY))
    assert list(answer.sequence_statuses) == [OK]
    return answer.draft_tokens[0], answer.graph_generation


def test_graphs_are_found_by_name(serve: Serve, tmp_path: Path) -> None:
    server = serve(graphs={"third": tmp_path / "three.pkl", "other": tmp_path / "four.pkl"})
    assert [drafted(server, name)[0] for name in ("", "two", "third", "other")] == [2, 2, 3, 4]
    for call, request in (
        (server.drafter.Draft, step_of(0, [1], graph="fourth")),
        (server.drafter.OpenSession, pb.OpenSessionRequest(session_id=1, graph="fourth")),
        (server.admin.ReloadGraph, pb.ReloadGraphRequest(name="fourth")),
    ):
        assert code_of(call, request) is NOT_FOUND
    assert server.wire.health(f"{SERVICE}/third") == SERVING


@pytest.mark.parametrize("strategy", [pb.STRATEGY_GREEDY, pb.STRATEGY_SAMPLING, pb.STRATEGY_TREE])
def test_one_step_may_be_of_several_graphs(serve: Serve, tmp_path: Path, strategy: pb.Strategy) -> None:
    server = serve(graphs={"third": tmp_path / "three.pkl"})
    sessions = [server.open(graph=graph) for graph in ("third", "two", "third")]
    answer = server.drafter.Draft(
        pb.DraftRequest(
            session_ids=[sessions[0], 0, sessions[1], 999, sessions[2]],
            context_lengths=[1] * 5,
            context_tokens=[1] * 5,
            node_budgets=[1] * 5,
            options=pb.StrategyOptions(strategy=strategy),
        )
    )
    assert list(answer.draft_tokens) == [3, 2, 2, 3]
    assert list(answer.draft_lengths) == [1, 1, 1, 0, 1]
    assert list(answer.sequence_statuses) == [OK, OK, OK, LOST, OK]
    assert (answer.graph_generation, list(answer.sequence_generations)) == (0, [2, 1, 1, 0, 2])
    assert list(answer.candidate_tokens) == ([3, 2, 2, 3] if strategy == pb.STRATEGY_SAMPLING else [])


def test_a_tokenizer_is_compared_with_that_of_the_graph(serve: Serve, tmp_path: Path) -> None:
    server = serve(graphs={"other": tmp_path / "four.pkl"})
    ours, theirs = bytes.fromhex("ab" * 32), bytes.fromhex("cd" * 32)
    for graph, right, wrong in (("", ours, theirs), ("other", theirs, ours)):
        server.open(graph=graph, tokenizer_sha256=right)
        refused = pb.OpenSessionRequest(session_id=9, graph=graph, tokenizer_sha256=wrong)
        assert code_of(server.drafter.OpenSession, refused) is MISMATCH
    short = pb.OpenSessionRequest(session_id=9, tokenizer_sha256=b"\xab")
    assert code_of(server.drafter.OpenSession, short) is INVALID


def test_a_graph_is_replaced(serve: Serve, tmp_path: Path) -> None:
    server = serve(graphs={"more": tmp_path / "three.pkl"})
    before = server.open(graph="more")
    assert drafted(server, session_id=before) == (3, 2)
    successor_file(tmp_path / "three.pkl", 5)
    assert drafted(server, "more") == (3, 2), "a file that is replaced is not read until it is asked for"
    reloaded = server.admin.ReloadGraph(pb.ReloadGraphRequest(name="more")).graph
    assert (reloaded.name, reloaded.generation, reloaded.corpus_tokens, reloaded.max_order) == ("more", 3, 32, 4)
    assert (reloaded.vocabulary_size, reloaded.tokenizer_name) == (50, "tests/alphabet")
    assert reloaded.file_bytes == (tmp_path / "three.pkl").stat().st_size
    after = server.open(graph="more")
    assert drafted(server, "more") == drafted(server, session_id=after) == (5, 3)
    assert drafted(server, session_id=before, position=1) == (3, 2), "open sessions keep what they have"
    graphs = server.admin.ListGraphs(pb.ListGraphsRequest()).graphs
    assert [(graph.name, graph.generation, graph.open_sessions) for graph in graphs] == [("two", 1, 0), ("more", 3, 1)]
    assert server.admin.ReloadGraph(pb.ReloadGraphRequest()).graph.name == "two", "the default one"


def test_what_is_no_graph_or_of_another_tokenizer_leaves_the_old_one(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    session_id = server.open()
    damaged = bytearray((tmp_path / "three.pkl").read_bytes())
    damaged[300] ^= 1  # the description no longer matches its checksum
    for content, code in ((damaged, INVALID), (b"", INVALID), ((tmp_path / "four.pkl").read_bytes(), MISMATCH)):
        (tmp_path / "new.pkl").write_bytes(content)
        (tmp_path / "new.pkl").rename(tmp_path / "two.pkl")
        error = refusal(server.admin.ReloadGraph, pb.ReloadGraphRequest(name="two"))
        assert (error.code(), "two.pkl" in error.details()) == (code, True), error
    assert drafted(server) == drafted(server, session_id=session_id) == (2, 1)


def test_graphs_of_different_tokenizers_keep_what_they_learned_apart(serve: Serve, tmp_path: Path) -> None:
    settings = {
        "graphs": {"other": tmp_path / "four.pkl"},
        "learned": tmp_path / "learned",
        "draft": {"strategy": "tree"},
    }
    server = serve(**settings)
    texts = {"": [7, 8, 9, 10] * 5, "other": [7, 20, 21, 22] * 5}
    for graph, text in texts.items():
        session_id = server.open(graph=graph, learn=True)
        server.drafter.Draft(step_of(session_id, [6]))
        server.drafter.Draft(step_of(session_id, text, 1))
        server.close(session_id)
    assert server.metrics()["learned_tokens"] > 0
    assert sorted(path.name for path in (tmp_path / "learned").iterdir()) == ["other", "two"]
    server.stop()

    again = serve(**settings)
    for graph, context, following in (("", [9, 10, 7], 8), ("other", [21, 22, 7], 20)):
        session_id = again.open(graph=graph)
        answer = again.drafter.Draft(step_of(session_id, context, 0, 1))
        assert list(answer.draft_tokens) == [following]


def test_reflection_tells_the_services(serve: Serve) -> None:
    def services(address: str) -> set[str]:
        with connected(address) as wire:
            stub = reflection_pb2_grpc.ServerReflectionStub(wire.channel)
            request = reflection_pb2.ServerReflectionRequest(list_services="")
            (answer,) = stub.ServerReflectionInfo(iter([request]))
            return {service.name for service in answer.list_services_response.service}

    server = serve()
    both = {"grpc.health.v1.Health", "grpc.reflection.v1alpha.ServerReflection"}
    assert services(server.address) == {SERVICE} | both
    assert services(server.server.admin_addresses[0]) == {ADMIN} | both
    assert code_of(Wire(server.wire.channel).admin.ListGraphs, pb.ListGraphsRequest()).name == "UNIMPLEMENTED"


def test_steps_never_fail_while_graphs_are_replaced(serve: Serve, tmp_path: Path) -> None:
    server = serve()
    successor_of = {1: 2}  # by generation
    is_done = threading.Event()

    def replace() -> None:
        for successor in itertools.cycle((3, 2)):
            if is_done.is_set():
                return
            successor_file(tmp_path / "two.pkl", successor)
            successor_of[server.admin.ReloadGraph(pb.ReloadGraphRequest(name="two")).graph.generation] = successor

    def call(number: int) -> list[tuple[int, int]]:
        found = []
        with connected(server.address) as wire:
            for turn in range(125):
                if number % 2:
                    answer = wire.drafter.Draft(step_of(0, [1], 0, 1, strategy=pb.STRATEGY_GREEDY))
                else:
                    if turn % 25 == 0:
                        session_id, generations = wire.open(), set()
                    answer = wire.drafter.Draft(step_of(session_id, [1], turn % 25, 1, strategy=pb.STRATEGY_GREEDY))
                    generations.add(answer.graph_generation)
                    assert len(generations) == 1
                assert list(answer.sequence_statuses) == [OK]
                found.append((answer.graph_generation, answer.draft_tokens[0]))
        return found

    with ThreadPoolExecutor(9) as pool:
        replacing = pool.submit(replace)
        calls = [pool.submit(call, number) for number in range(8)]
        try:
            found = [each for one in calls for each in one.result(PATIENCE_S)]
        finally:
            is_done.set()
        replacing.result(PATIENCE_S)
    assert len(found) == 1_000
    assert all(token == successor_of[generation] for generation, token in found)
    assert len({generation for generation, _ in found}) > 3


def test_a_graph_leaves_memory_with_its_last_session(serve: Serve, tmp_path: Path) -> None:
    def is_mapped() -> bool:
        gc.collect()
        return str(tmp_path / "two.pkl (deleted)") in Path("/proc/self/maps").read_text(encoding="utf-8")

    server = serve()
    session_id = server.open(learn=True)
    drafted(server, session_id=session_id)
    successor_file(tmp_path / "two.pkl", 5)
    server.admin.ReloadGraph(pb.ReloadGraphRequest())
    assert is_mapped()
    server.close(session_id)
    assert not is_mapped()


def tokens_after_one(server: LiveServer, graph: str = "", session_id: int = 0) -> set[int]:
    """Return the children of the root of a tree after token 1."""
    answer = server.drafter.Draft(step_of(session_id, [1], 0, 4, graph=graph, strategy=pb.STRATEGY_TREE))
    assert list(answer.sequence_statuses) == [OK]
    return {token for token, parent in zip(answer.draft_tokens, answer.draft_parents, strict=True) if not parent}


def test_graphs_in_layers_are_all_drafted_from(serve: Serve, tmp_path: Path) -> None:
    successor_file(tmp_path / "five.pkl", 5)
    server = serve(graphs={"third": tmp_path / "three.pkl", "fifth": tmp_path / "five.pkl"})
    assert tokens_after_one(server, "third") == {3}
    assert tokens_after_one(server, "two+third") == tokens_after_one(server, "third+two") == {2, 3}
    assert tokens_after_one(server, "two+third+fifth") == {2, 3, 5}
    session = server.open(graph="two+fifth")
    assert tokens_after_one(server, session_id=session) == {2, 5}
    counts = {graph.name: graph.open_sessions for graph in server.admin.ListGraphs(pb.ListGraphsRequest()).graphs}
    assert counts == {"two": 1, "third": 0, "fifth": 1}, "of every layer, sessions are told"
    assert drafted(server, "third+two")[0] == 3, "of equal knowledge the first layer drafts a chain"


def test_layers_are_replaced_with_their_graphs(serve: Serve, tmp_path: Path) -> None:
    server = serve(graphs={"more": tmp_path / "three.pkl"})
    before = server.open(graph="two+more")
    generation = drafted(server, "two+more")[1]
    assert drafted(server, "two+more")[1] == generation, "made once"
    successor_file(tmp_path / "three.pkl", 5)
    server.admin.ReloadGraph(pb.ReloadGraphRequest(name="more"))
    assert tokens_after_one(server, "two+more") == {2, 5}
    assert drafted(server, "two+more")[1] > generation
    assert tokens_after_one(server, session_id=before) == {2, 3}, "open sessions keep what they have"
    assert code_of(server.admin.ReloadGraph, pb.ReloadGraphRequest(name="two+more")) is NOT_FOUND


def test_layers_that_can_be_none_are_refused(serve: Serve, tmp_path: Path) -> None:
    more = {str(number): successor_file(tmp_path / f"{number}.pkl", number) for number in range(10, 14)}
    server = serve(graphs={"other": tmp_path / "four.pkl", **more})
    for graph, status in (
        ("two+two", INVALID),
        ("two+10+11+12+13", INVALID),
        ("two+other", INVALID),  # of another tokenizer
        ("two+nobody", NOT_FOUND),
        ("two+", NOT_FOUND),
        ("+", NOT_FOUND),
    ):
        assert code_of(server.drafter.Draft, step_of(0, [1], graph=graph)) is status, graph
        assert code_of(server.drafter.OpenSession, pb.OpenSessionRequest(session_id=1, graph=graph)) is status, graph
    with pytest.raises(grpc.RpcError) as caught:
        server.drafter.Draft(step_of(0, [1], graph="two+nobody"))
    assert "nobody" in caught.value.details()


def test_sessions_that_name_nothing_draft_from_the_layers_of_their_tenant(serve: Serve, tmp_path: Path) -> None:
    successor_file(tmp_path / "five.pkl", 5)
    server = serve(
        graphs={"third": tmp_path / "three.pkl", "fifth": tmp_path / "five.pkl"},
        default="two+third",
        tenant_graphs={"acme": "fifth+two"},
    )
    assert tokens_after_one(server) == {2, 3}
    assert tokens_after_one(server, session_id=server.open(tenant="other")) == {2, 3}
    assert tokens_after_one(server, session_id=server.open(tenant="acme")) == {2, 5}
    assert tokens_after_one(server, session_id=server.open(tenant="acme", graph="third")) == {3}
    graphs = server.admin.ListGraphs(pb.ListGraphsRequest()).graphs
    assert {each.name: each.open_sessions for each in graphs} == {"two": 2, "third": 2, "fifth": 1}
    assert [server.metrics()[f'open_sessions{{graph="{name}"}}'] for name in ("two", "third", "fifth")] == [2, 2, 1]


@pytest.mark.parametrize(
    "settings",
    [
        {"default": "two+nobody"},
        {"default": "two+"},
        {"default": "two+two"},
        {"default": "two+10+11+12+13"},
        {"default": "two+other"},  # of another tokenizer
        {"tenant_graphs": {"acme": "nobody"}},
        {"tenant_graphs": {"acme": "10+10"}},
    ],
)
def test_layers_of_settings_must_be_served(serve: Serve, tmp_path: Path, settings: dict[str, object]) -> None:
    served = {"other": tmp_path / "four.pkl", **{str(number): tmp_path / "three.pkl" for number in range(10, 14)}}
    with pytest.raises(ConfigError) as refused:
        serve(graphs=served, **settings)
    assert str(refused.value.field).startswith(f"server.{next(iter(settings))}")
