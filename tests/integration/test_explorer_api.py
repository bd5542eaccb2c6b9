"""The explorer's JSON API over real sockets: its data matches the graph, and no request makes it fail."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.strategies import NGRAM_STRATEGIES, StrategyName
from speculant_graph.view import question as limits
from speculant_graph.view.question import MAX_CHARACTERS
from support.explorer import API, TEXT, Answer, Asker, Explored, exploring, text_graph, tokenizer_in
from support.oracle import OracleGraph
from support.server import connected, step_of

MAX_ORDER = 4
PATIENCE_S = 60.0
EACH_FEW = settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> CorpusTokenizer:
    return tokenizer_in(tmp_path_factory.mktemp("tokenizer"))


@pytest.fixture(scope="module")
def oracle(tokenizer: CorpusTokenizer) -> OracleGraph:
    return OracleGraph([tokenizer.encode(TEXT)], MAX_ORDER)


@pytest.fixture(scope="module")
def explored(
    tokenizer: CorpusTokenizer, graph_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Explored]:
    """Two graphs: ``text`` with its tokenizer, ``small`` without."""
    folder = tmp_path_factory.mktemp("explored")
    path = text_graph(folder / "text.pkl", tokenizer, max_order=MAX_ORDER)
    with exploring(path, folder, graphs={"small": graph_path}, draft={"strategy": "tree", "k": 12}) as running:
        yield running


@pytest.fixture
def asker(explored: Explored) -> Asker:
    return explored.asker


def ask(asker: Asker, method: str, path: str, body: bytes | str, kind: str = "application/json") -> Answer:
    return asker.ask(method, path, body, **{"Content-Type": kind})


def look(asker: Asker, graph: str = "text", /, **question: object) -> Any:
    answer = ask(asker, "POST", f"{API}/{graph}/look", json.dumps(question))
    assert answer.status == 200, answer.body
    return answer.json


def test_places_of_a_context_are_those_of_the_text(asker: Asker) -> None:
    answer = look(asker, text="In parties agree to t", places=3)
    assert answer["places_text"] == "to t"
    assert answer["places_seen"] == TEXT.count("to talk") == 4  # "to the" has other tokens
    places = [(place["line"], place["column"]) for place in answer["places"]]
    assert places == [(1, 51), (2, 51), (3, 51)]
    assert answer["places"][0]["text"] == TEXT.split("\n")[0][20:110]
    assert (answer["places_unsearched"], answer["places_complete"]) == ([], False)
    assert look(asker, text="In parties agree to t", places=100)["places_complete"] is True
    assert "places" not in look(asker, text="In parties agree to t")
    refused = ask(asker, "POST", f"{API}/small/look", json.dumps({"token_ids": [1], "places": 1}))
    assert (refused.status, "tokenizer" in refused.error) == (400, True)


def test_the_list_says_what_there_is(asker: Asker, tokenizer: CorpusTokenizer) -> None:
    answer = asker.get(API)
    assert (answer.status, answer.headers["Content-Type"]) == (200, "application/json")
    about = answer.json
    assert [graph["name"] for graph in about["graphs"]] == ["text", "small"]
    text = about["graphs"][0]
    assert (text["is_default"], text["max_order"], text["generation"]) == (True, MAX_ORDER, 1)
    assert text["num_tokens"] == len(tokenizer.encode(TEXT))
    assert about["defaults"] == {"strategy": "tree", "budget": 12}
    assert set(about["strategies"]) == set(NGRAM_STRATEGIES)
    assert "/" not in text["tokenizer"], "no folder of the machine"


@given(text=st.text(st.sampled_from("The parties agree.\n"), max_size=30) | st.sampled_from([TEXT[:40], TEXT[5:61]]))
@EACH_FEW
def test_orders_are_what_was_counted(
    explored: Explored, tokenizer: CorpusTokenizer, oracle: OracleGraph, text: str
) -> None:
    token_ids = tokenizer.encode(text)
    found = look(explored.asker, text=text, successors=3)
    assert (found["token_ids"], found["num_tokens"], found["text"]) == (token_ids, len(token_ids), text)
    context = oracle.longest_context(token_ids) or ()
    assert found["matched_order"] == len(context)
    assert [summary["order"] for summary in found["orders"]] == [1, 2, 3, 4]
    for summary in found["orders"]:
        order = summary["order"]
        end = tuple(token_ids[-order:]) if order <= len(token_ids) else ()
        assert [token["id"] for token in summary["context"]] == list(end)
        known = oracle.context_index.get(end, {}) if end else {}
        assert (summary["num_successors"], summary["count"]) == (len(known), sum(known.values()))
        best = sorted(known, key=lambda token_id: (-known[token_id], token_id))[:3]
        assert [(each["id"], each["count"]) for each in summary["successors"]] == [(one, known[one]) for one in best]
        for each in summary["successors"]:
            assert each["probability"] == pytest.approx(each["count"] / summary["count"], rel=1e-5)
            assert each["text"] == tokenizer.decode([each["id"]])
    assert bool(found["anywhere"]) == (not context)


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
@pytest.mark.parametrize(("text", "seed"), [("In case of doubt the parties", 3), ("agree. The", 5), ("", 0)])
def test_the_draft_is_the_one_that_would_be_sent(
    explored: Explored, tokenizer: CorpusTokenizer, oracle: OracleGraph, strategy: StrategyName, text: str, seed: int
) -> None:
    token_ids = tokenizer.encode(text)
    shown = look(explored.asker, text=text, strategy=strategy, budget=9, seed=seed)["draft"]
    with connected(explored.sidecar.address) as wire:
        number = pb.Strategy.Value(f"STRATEGY_{strategy.upper()}")
        sent = wire.drafter.Draft(step_of(0, token_ids, 0, 9, number, seed))
    nodes = shown["nodes"]
    assert [node["id"] for node in nodes] == list(sent.draft_tokens)
    assert [node["parent"] for node in nodes] == list(sent.draft_parents)
    told = [node["path_probability"] for node in nodes if node["path_probability"] is not None]
    np.testing.assert_allclose(told, list(sent.draft_path_probabilities), rtol=1e-5)
    assert (shown["strategy"], shown["budget"]) == (strategy, 9)
    paths: list[list[int]] = [token_ids]
    for node in nodes:
        context = paths[node["parent"]]
        orders = [order for order in range(1, MAX_ORDER + 1) if order <= len(context)]
        counts = {order: oracle.ngram_counts[*context[-order:], node["id"]] for order in orders}
        assert node["order"] == max((order for order in orders if counts[order]), default=0)
        if node["order"]:
            assert node["count"] == counts[node["order"]]
            total = sum(oracle.context_index[tuple(context[-node["order"] :])].values())
            assert node["probability"] == pytest.approx(node["count"] / total, rel=1e-5)
        paths.append([*context, node["id"]])


def test_the_blend_is_what_drafts_are_drawn_from(explored: Explored) -> None:
    found = look(explored.asker, text="The parties", strategy="tree", successors=50)
    shares = {each["id"]: each["probability"] for each in found["blend"]["successors"]}
    assert list(shares.values()) == sorted(shares.values(), reverse=True)
    assert 0.0 < sum(shares.values()) <= 1.0
    roots = {node["id"]: node["path_probability"] for node in found["draft"]["nodes"] if not node["parent"]}
    assert roots
    assert all(shares[token_id] == pytest.approx(share, rel=1e-5) for token_id, share in roots.items())


def test_a_graph_without_its_tokenizer_is_shown_by_ids(asker: Asker) -> None:
    found = look(asker, "small", token_ids=[1, 2])
    assert found["text"] is None
    assert {token["text"] for token in found["tokens"]} == {None}
    assert "next to the graph file" in found["text_problem"]
    refused = ask(asker, "POST", f"{API}/small/look", '{"text": "The"}')
    assert (refused.status, refused.error) == (400, found["text_problem"])


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        ("", "the body is empty; send a JSON object"),
        ('{"text": "a", "token_ids": []}', "either"),
        ('{"text": "a", "strategy": "best"}', "'greedy'"),
        ('{"text": "a", "strategy": "nasd"}', "'greedy'"),
        ('{"text": "a", "strategy": "model"}', "'greedy'"),
        ('{"token_ids": [263]}', "0 to 262"),
        ('{"text": "\\ud800"}', "text has half of a surrogate pair"),
        (json.dumps({"text": "a" * (MAX_CHARACTERS + 1)}), "20000"),
    ],
)
def test_bad_questions_are_told_what_to_change(asker: Asker, body: str, hint: str) -> None:
    answer = ask(asker, "POST", f"{API}/text/look", body)
    assert answer.status == 400
    assert hint in answer.error


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
fields = st.sampled_from(["text", "token_ids", "successors", "strategy", "budget", "seed", "graph"])
questions = st.dictionaries(fields, json_values | st.lists(st.integers(-1, 300), max_size=9), max_size=5)
bodies = st.binary(max_size=200) | questions.map(lambda question: json.dumps(question).encode())


@given(body=bodies)
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_no_body_makes_it_fail(explored: Explored, body: bytes) -> None:
    answer = ask(explored.asker, "POST", f"{API}/text/look", body)
    assert answer.status in (200, 400), answer.body
    assert answer.status == 200 or answer.error


def test_nothing_can_be_loaded_from_elsewhere(asker: Asker) -> None:
    folder = Path(limits.__file__).with_name("page")
    answer = asker.get("/explorer/")
    policy = answer.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
    assert "unsafe" not in policy
    assert answer.body == (folder / "index.html").read_bytes()
    assert not re.search(rb"<style|<script(?! type=\"module\" src)| style=| on\w+=", answer.body), "nothing inline"
    assert asker.get("/explorer").headers["Location"] == "/explorer/"
    for file in folder.iterdir():
        if file.suffix in {".html", ".css", ".js", ".svg"}:
            served = asker.get(f"/explorer/{file.name}")
            assert (served.status, served.body) == (200, file.read_bytes())
            assert served.headers["X-Content-Type-Options"] == "nosniff"
            text = served.body.decode().replace("http://www.w3.org/2000/svg", "")
            assert not re.search(r"//[a-z]+\.|https?:|innerHTML|eval\(|@import|url\(", text), file.name
    for name in ("__init__.py", "../explorer.py", "%2e%2e/explorer.py", "nothing.js"):
        assert asker.get(f"/explorer/{name}").status == 404


@pytest.mark.slow
def test_it_shows_the_generation_that_is_served_and_nothing_that_sessions_teach(
    tokenizer: CorpusTokenizer, tmp_path: Path
) -> None:
    path = text_graph(tmp_path / "text.pkl", tokenizer)
    with exploring(path, tmp_path, draft={"strategy": "tree"}) as running:
        before = look(running.asker, text="The parties")
        with connected(running.sidecar.address) as wire:
            teaching, taught = wire.open(learn=True), wire.open()
            prompt, secret = tokenizer.encode("The parties"), tokenizer.encode(" zyxqwv" * 6)
            wire.drafter.Draft(step_of(teaching, prompt))
            wire.drafter.Draft(step_of(teaching, secret, len(prompt)))
            wire.close(teaching)
            begun = [*prompt, *secret[:4]]
            drafted = wire.drafter.Draft(step_of(taught, begun, 0, 8)).draft_tokens
            assert secret[4] in drafted, "sessions profit from it"
        shown = look(running.asker, token_ids=begun, successors=100, strategy="tree", budget=64)
        assert secret[4] not in {node["id"] for node in shown["draft"]["nodes"]}
        assert secret[4] not in {each["id"] for each in shown["blend"]["successors"]}
        assert look(running.asker, text="The parties") == before

        text_graph(path, tokenizer, TEXT + "Parties.")
        assert look(running.asker, text="The parties") == before, "what is open stays as it is"
        give_up_s = time.monotonic() + PATIENCE_S
        running.sidecar.signal(signal.SIGHUP)
        while look(running.asker, text="The")["generation"] != 2:
            assert time.monotonic() < give_up_s
            time.sleep(0.05)
        path.unlink()
        assert look(running.asker, text="The")["generation"] == 2, "what is open needs no file"


@pytest.mark.slow
def test_a_tokenizer_beside_the_graph_is_used_where_it_is_the_graphs(
    tokenizer: CorpusTokenizer, tmp_path: Path
) -> None:
    path = text_graph(tmp_path / "text.pkl", tokenizer_in(tmp_path / "built"))
    (tmp_path / "built" / "tokenizer.json").rename(tmp_path / "tokenizer.json")
    with exploring(path, tmp_path) as running:
        assert look(running.asker, text="The parties")["text"] == "The parties"
