"""Pictures of a graph: the values they show, the page, the drawings, and the command."""

from __future__ import annotations

import base64
import hashlib
import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.cli.view import run
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphFileError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.view.glyphs import visible
from speculant_graph.view.neighbourhood import Neighbourhood, Step, explore
from speculant_graph.view.page import render_page
from speculant_graph.view.picture import draw_picture
from support.graphs import graph_of
from support.oracle import OracleGraph

VOCABULARY_SIZE = 50

streams = st.lists(st.integers(0, 4), min_size=1, max_size=60)
prompts = st.lists(st.one_of(st.integers(0, 4), st.just(77)), max_size=6)


def spell(token_ids: Sequence[int]) -> str:
    return "".join(f"<{token_id}>" for token_id in token_ids)


def walk(steps: Sequence[Step], path: tuple[int, ...] = ()) -> Iterator[tuple[tuple[int, ...], Step]]:
    for step in steps:
        yield (*path, step.token_id), step
        yield from walk(step.children, (*path, step.token_id))


def obvious(
    slow: OracleGraph, prompt: Sequence[int], depth: int, branches: int
) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
    """Yield every path of at most ``depth`` likeliest successors with the facts of its last token."""
    start = slow.longest_context(prompt)
    unigrams = {ngram[0]: count for ngram, count in slow.ngram_counts.items() if len(ngram) == 1}

    def follow(path: tuple[int, ...], probability: float) -> Iterator[tuple[tuple[int, ...], dict[str, Any]]]:
        context = slow.longest_context([*prompt, *path])
        successors = slow.context_index[context] if context else {}
        if not path and start is None:
            successors = unigrams
        ranked = sorted(successors, key=lambda token_id: (-successors[token_id], token_id))[:branches]
        for token_id in ranked:
            after = slow.longest_context([*prompt, *path, token_id])
            share = successors[token_id] / sum(successors.values())
            facts = {
                "count": successors[token_id],
                "probability": share,
                "order": len(context) if context else 0,
                "path_probability": probability * share,
                "num_successors": len(slow.context_index[after]) if after else 0,
                "text": f"<{token_id}>",
            }
            yield (*path, token_id), facts
            if len(path) + 1 < depth:
                yield from follow((*path, token_id), probability * share)

    return follow((), 1.0)


@given(
    token_ids=streams,
    max_order=st.integers(1, 4),
    prompt=prompts,
    depth=st.integers(1, 4),
    branches=st.integers(1, 4),
    max_steps=st.integers(1, 40),
)
def test_tree_is_the_obvious_one(
    token_ids: list[int], max_order: int, prompt: list[int], depth: int, branches: int, max_steps: int
) -> None:
    graph, slow = graph_of([token_ids], max_order, VOCABULARY_SIZE), OracleGraph([token_ids], max_order)
    every = dict(obvious(slow, prompt, depth, branches))
    found = explore(graph, prompt, spell, depth=depth, branches=branches, max_steps=10_000)
    shown = dict(walk(found.steps))
    assert list(shown) == list(every), "the same paths in the same order"
    for path, facts in every.items():
        step = shown[path]
        assert {name: getattr(step, name) for name in facts} == facts
    assert found.num_steps == len(every)

    cut = explore(graph, prompt, spell, depth=depth, branches=branches, max_steps=max_steps)
    kept = dict(walk(cut.steps))
    assert cut.num_steps == len(kept) == min(max_steps, len(every))
    assert [path for path in every if path in kept] == list(kept)
    left_out = [facts["path_probability"] for path, facts in every.items() if path not in kept]
    assert min(step.path_probability for step in kept.values()) >= max(left_out, default=0.0)


@given(token_ids=streams, max_order=st.integers(1, 4), prompt=prompts, branches=st.integers(1, 4))
def test_orders_and_context(token_ids: list[int], max_order: int, prompt: list[int], branches: int) -> None:
    graph, slow = graph_of([token_ids], max_order, VOCABULARY_SIZE), OracleGraph([token_ids], max_order)
    found = explore(graph, prompt, spell, branches=branches)
    context = slow.longest_context(prompt)
    assert tuple(token.token_id for token in found.context) == (context or ())
    assert [token.token_id for token in (*found.unused, *found.context)] == prompt[-max_order:]
    assert found.num_prompt_tokens == len(prompt)
    assert found.num_successors == (len(slow.context_index[context]) if context else len(set(token_ids)))
    assert [summary.order for summary in found.orders] == list(range(1, max_order + 1))
    for summary in found.orders:
        end = tuple(prompt[-summary.order :]) if summary.order <= len(prompt) else ()
        successors = slow.context_index.get(end, {})
        assert tuple(token.token_id for token in summary.context) == end
        assert summary.num_successors == len(successors)
        assert summary.count == sum(successors.values())
        ranked = sorted(successors, key=lambda token_id: (-successors[token_id], token_id))[:branches]
        assert [(top.token_id, top.count, top.probability) for top in summary.successors] == [
            (token_id, successors[token_id], successors[token_id] / summary.count) for token_id in ranked
        ]


def test_invisible_characters_are_shown() -> None:
    assert visible(" the\n\t\r\x00\x7f\u00a0") == "·the↵⇥␍␀␡⍽"
    assert visible("naïve 日本") == "naïve·日本"


# ---------------------------------------------------------------------- the page

NASTY = {
    0: "</script><script>alert(1)</script>",
    1: "<!-- <script>",
    2: "{{script}}{{data}}",
    3: "&lt;\u2028\u2029\\\"'",
    4: "]]> \ud83d\ude00 日本\n",
}


class Elements(HTMLParser):
    """Collects elements and complains about any that is not closed."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[int, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "br", "input", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == self.found[-1][0]:
            self.texts[len(self.found) - 1] = self.texts.get(len(self.found) - 1, "") + data


def parse(page: str) -> tuple[Elements, dict[str, Any]]:
    """Return the elements of a page and the content of its data."""
    elements = Elements()
    elements.feed(page)
    elements.close()
    assert not elements.open
    [place] = [number for number, (_, attributes) in enumerate(elements.found) if attributes.get("id") == "data"]
    return elements, json.loads(elements.texts[place])


def nasty_page() -> tuple[NgramGraph, Neighbourhood, str]:
    graph = graph_of([[0, 1, 2, 3, 4, 0, 1, 2, 4, 3]], 3, VOCABULARY_SIZE)
    found = explore(graph, [0, 1], lambda token_ids: NASTY[token_ids[0]])
    return graph, found, render_page(found, graph.metadata, "</title><script>alert(2)</script>.pkl")


def test_page_holds_the_values_and_no_text_breaks_out() -> None:
    graph, found, page = nasty_page()
    elements, data = parse(page)
    assert data["neighbourhood"] == json.loads(json.dumps(asdict(found)))
    assert data["graph"]["num_transitions"] == sum(graph.metadata.transitions_per_order)
    assert {child["text"] for child in data["neighbourhood"]["steps"]} == {NASTY[2]}
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == page.lower().count("<script") == page.lower().count("</script") == 2
    assert tags.count("title") == 1
    assert "alert(1)" in page
    assert "<!--" not in page
    assert "\u2028" not in page
    assert page.startswith("<!doctype html>")


def test_page_needs_nothing_but_itself() -> None:
    elements, _ = parse(nasty_page()[2])
    for _, attributes in elements.found:
        assert not {"src", "href", "style", "srcset", "action"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    [policy] = [
        attributes["content"] or ""
        for _, attributes in elements.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    for number, (tag, attributes) in enumerate(elements.found):
        if tag in ("style", "script") and "id" not in attributes:
            content = elements.texts[number]
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy, "the browser runs this and nothing else"
            assert not re.search(r"url\(|@import|fetch\(|XMLHttp|innerHTML|insertAdjacent|document\.write", content)
            assert set(re.findall(r"https?://[^\"' ]+", content)) <= {"http://www.w3.org/2000/svg"}


# ---------------------------------------------------------------------- drawings


def test_drawings_show_text_as_it_is(tmp_path: Path) -> None:
    texts = {0: "$x$", 1: " the\n", 2: "日本", 3: "<&>", 4: "a" * 100}
    graph = graph_of([[0, 1, 2, 3, 4, 0, 1, 2, 4, 3]], 3, VOCABULARY_SIZE)
    found = explore(graph, [], lambda token_ids: texts[token_ids[0]], depth=2)
    draw_picture(found, "$name$.pkl", tmp_path / "picture", "svg")
    root = ET.parse(tmp_path / "picture").getroot()
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    shown = {"".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"$name$.pkl", "anywhere", "$x$", "·the↵", "日本", "<&>", "a" * 30 + "…", "20%"} <= shown
    draw_picture(found, "name", tmp_path / "picture", "png")
    content = (tmp_path / "picture").read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([0], "1 different token seen after the last token; 1 shown with what follows"),
        ([0, 1, 2], "2 different tokens seen after the last 3 tokens; 2 shown with what follows"),
        ([], "no prompt: its most frequent tokens; 6 shown with what follows"),
    ],
)
def test_drawings_count_well(tmp_path: Path, prompt: list[int], said: str) -> None:
    graph = graph_of([[9, 0, 1, 2, 3, 4, 0, 1, 2, 4, 3]], 3, VOCABULARY_SIZE)
    draw_picture(explore(graph, prompt, spell, depth=1), "name", tmp_path / "picture", "svg")
    assert f">{said}<" in (tmp_path / "picture").read_text("utf-8")


@pytest.mark.slow
@pytest.mark.parametrize("file_format", ["png", "svg"])
def test_drawings_of_little_and_of_much(tmp_path: Path, file_format: Any) -> None:
    little = graph_of([[7]], 1, VOCABULARY_SIZE)
    draw_picture(explore(little, [7], spell), "little", tmp_path / "little", file_format)
    much = graph_of([[token_id for pair in range(1500) for token_id in (0, pair)]], 1, 2000)
    found = explore(much, [0], spell, depth=1, branches=1200, max_steps=1200)
    assert found.num_steps == 1200
    draw_picture(found, "much", tmp_path / "much", file_format)
    if file_format == "png":
        height = int.from_bytes((tmp_path / "much").read_bytes()[20:24], "big")
        assert height == pytest.approx(30_000, abs=2), "no larger than what viewers open"


# ---------------------------------------------------------------------- the command


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    text = "The parties agree to the terms.\nThe agreement ends when the parties agree.\n" * 3
    path = tmp_path_factory.mktemp("graph") / "small.pkl"
    build_from_token_ids(tokenizer.encode(text), tokenizer.fingerprint, max_order=3).save(path)
    return path


def test_command_writes_a_page(
    tmp_path: Path, graph_file: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "page.html"
    output.write_text("older", "utf-8")
    assert run([str(graph_file), "--prompt", "when the parties", "--depth", "5", "-o", str(output), "--json"]) == 0
    line, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    _, data = parse(output.read_text("utf-8"))
    around = data["neighbourhood"]
    assert summary["nodes"] == around["num_steps"] == sum(1 for _ in nodes_of(around["steps"])) >= 5
    assert summary["order"] == 3
    assert summary["file_bytes"] == output.stat().st_size
    assert line == (f"{output}: {summary['nodes']} nodes, after the last 3 of {summary['prompt_tokens']} prompt tokens")
    assert "".join(token["text"] for token in around["context"]) in "when the parties"
    assert data["graph"]["name"] == "small.pkl"
    assert data["graph"]["tokenizer"] == tokenizer_folder.name
    assert str(tokenizer_folder.parent) not in output.read_text("utf-8"), "a page is shared with others"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


def nodes_of(steps: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    for step in steps:
        yield step
        yield from nodes_of(step["children"])


def test_command_obeys_its_limits(tmp_path: Path, graph_file: Path) -> None:
    output = tmp_path / "page.html"
    arguments = [str(graph_file), "-o", str(output)]
    run([*arguments, "--depth", "2", "--branches", "3"])
    steps = parse(output.read_text("utf-8"))[1]["neighbourhood"]["steps"]
    assert len(steps) == 3
    assert all(len(step["children"]) <= 3 for step in nodes_of(steps))
    assert any(step["children"] for step in steps)
    assert not any(child["children"] for step in steps for child in step["children"])
    run([*arguments, "--max-nodes", "5"])
    assert parse(output.read_text("utf-8"))[1]["neighbourhood"]["num_steps"] == 5


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([], "the graph's most frequent tokens; no prompt"),
        (["--prompt", ""], "the graph's most frequent tokens; no prompt"),
        (["--prompt", "ZZZ"], "the graph's most frequent tokens; no end of the prompt is in it"),
    ],
)
@pytest.mark.parametrize("ending", ["html", "svg", "PNG"])
def test_command_without_a_known_prompt(
    tmp_path: Path, graph_file: Path, capsys: pytest.CaptureFixture[str], prompt: list[str], said: str, ending: str
) -> None:
    output = tmp_path / f"out.{ending}"
    assert run([str(graph_file), *prompt, "-o", str(output)]) == 0
    assert capsys.readouterr().out.endswith(f" nodes, {said}\n")
    content = output.read_bytes()
    if ending == "html":
        around = parse(content.decode())[1]["neighbourhood"]
        assert around["context"] == []
        assert [step["order"] for step in around["steps"]] == [0] * 6
        assert math.fsum(step["probability"] for step in around["steps"]) < 1
        counts = [step["count"] for step in around["steps"]]
        assert counts == sorted(counts, reverse=True)
    else:
        assert content.startswith(b"\x89PNG" if ending == "PNG" else b"<?xml")


def test_command_refuses_what_is_wrong(
    tmp_path: Path, graph_file: Path, make_tokenizer: Callable[..., Path], tokenizer_folder: Path
) -> None:
    page = str(tmp_path / "page.html")
    with pytest.raises(ConfigError, match=r"page\.pdf ends in none of \.html, \.png, \.svg; choose"):
        run([str(graph_file), "-o", str(tmp_path / "page.pdf")])
    with pytest.raises(GraphFileError, match="check the path"):
        run([str(tmp_path / "none.pkl"), "-o", page])
    other = make_tokenizer(vocabulary_size=300)
    with pytest.raises(TokenizerMismatchError, match="tokenizer"):
        run([str(graph_file), "-o", page, "--tokenizer", str(other)])
    with pytest.raises(ConfigError, match="--depth"):
        run([str(graph_file), "-o", page, "--depth", "0"])
    with pytest.raises(ConfigError, match="not valid UTF-8"):
        run([str(graph_file), "-o", page, "--prompt", "\udcff"])
    with pytest.raises(GraphFileError, match="can't be written"):
        run([str(graph_file), "-o", str(tmp_path / "none" / "page.html")])
    assert list(tmp_path.iterdir()) == []
    assert run([str(graph_file), "-o", page, "--tokenizer", str(tokenizer_folder)]) == 0


def test_a_missing_library_is_named_and_an_older_picture_stays(
    tmp_path: Path, graph_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from speculant_graph.cli.main import missing_extra

    output = tmp_path / "picture.png"
    output.write_bytes(b"older")
    for name in [name for name in sys.modules if name.split(".")[0] == "matplotlib"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ModuleNotFoundError, match=r'drawing pictures needs: pip install "speculant-graph\[viz\]"') as e:
        run([str(graph_file), "-o", str(output)])
    assert missing_extra(e.value, "viz") == ('matplotlib is not installed; run: pip install "speculant-graph[viz]"')
    assert output.read_bytes() == b"older"
    assert [path.name for path in tmp_path.iterdir()] == ["picture.png"]
