"""``speculant view``: the explorer's page in one file, with the response to one query."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from speculant_graph.cli.view import run
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.view.snapshot import render_snapshot
from support.browser import chromium, needs_chromium, opened, settled

NASTY = (
    "</script><script>alert(1)</script>",
    "<!-- <script>",
    "icon.svg </body> page.css",
    "&lt;\u2028\u2029\\\"'",
    "]]> \U0001f600 日本\n",
)


class Elements(HTMLParser):
    """Collects elements, and fails if one is not closed."""

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
        if tag in ("dt", "dd", "option"):
            while self.open[-1] != tag:
                self.open.pop()
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == self.found[-1][0]:
            self.texts[len(self.found) - 1] = self.texts.get(len(self.found) - 1, "") + data


def parse(page: str) -> tuple[Elements, dict[str, Any]]:
    """Return the elements of a page and its embedded data."""
    elements = Elements()
    elements.feed(page)
    elements.close()
    assert not elements.open
    [index] = [index for index, (_, attributes) in enumerate(elements.found) if attributes.get("id") == "saved"]
    return elements, json.loads(elements.texts[index])


def nasty_page() -> str:
    tokens = [{"id": index, "text": text} for index, text in enumerate(NASTY)]
    return render_snapshot({"glyphs": {}}, {"tokens": tokens}, "</title><script>alert(2)</script>")


def test_a_page_holds_the_values_and_no_text_breaks_out() -> None:
    page = nasty_page()
    elements, data = parse(page)
    assert tuple(token["text"] for token in data["answer"]["tokens"]) == NASTY
    tags = [tag for tag, _ in elements.found]
    assert tags.count("script") == page.lower().count("<script") == page.lower().count("</script") == 2
    assert tags.count("title") == 1
    assert "alert(1)" in page
    assert "<!--" not in page
    assert "\u2028" not in page
    assert page.startswith("<!doctype html>")


def test_a_page_needs_nothing_but_itself() -> None:
    elements, _ = parse(nasty_page())
    for tag, attributes in elements.found:
        assert not {"style", "srcset", "action"} & set(attributes)
        linked = {attributes.get("src"), attributes.get("href")} - {None, "#next"}
        assert all((address or "").startswith("data:image/svg+xml;base64,") for address in linked), tag
        assert not any(name.startswith("on") for name in attributes)
    [policy] = [
        attributes["content"] or ""
        for _, attributes in elements.found
        if attributes.get("http-equiv") == "Content-Security-Policy"
    ]
    assert policy.startswith("default-src 'none';")
    for index, (tag, attributes) in enumerate(elements.found):
        if tag in ("style", "script") and "id" not in attributes:
            content = elements.texts[index]
            digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
            assert f"{tag}-src 'sha256-{digest}'" in policy, "the browser runs this and nothing else"
            assert "import " not in re.sub(r"//.*", "", content)


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory, tokenizer_folder: Path) -> Path:
    tokenizer = CorpusTokenizer.load(tokenizer_folder)
    text = "The parties agree to the terms.\nThe agreement ends when the parties agree.\n" * 3
    path = tmp_path_factory.mktemp("graph") / "small.pkl"
    build_from_token_ids(tokenizer.encode(text), tokenizer.fingerprint, max_order=3).save(path)
    return path


@needs_chromium
@pytest.mark.slow
def test_a_page_shows_what_it_was_saved_with(tmp_path: Path, graph_file: Path) -> None:
    output = tmp_path / "page.html"
    run([str(graph_file), "--prompt", "when the parties", "--nodes", "5", "-o", str(output)])
    answer = parse(output.read_text("utf-8"))[1]["answer"]
    with chromium() as browser, opened(browser, output.as_uri()) as page:
        settled(page)
        assert page.input_value("#typed") == "when the parties"
        assert page.locator("#tree .step").count() == len(answer["draft"]["nodes"]) + 1
        assert page.locator("#successors button").count() == len(answer["blend"]["successors"])
        page.click("#matches label:has(input[value='1'])")
        expect(page.locator("#next-note")).to_contain_text("followed the last token.")
        page.click("#tree .step >> nth=1")
        page.hover("#tree .step >> nth=2")
        expect(page.locator("#node")).to_contain_text("order")
        assert page.input_value("#typed") == "when the parties", "nothing can be asked"
        for control in ("#graph", "#most", "#strategy", "#budget", "#back", "#clear"):
            expect(page.locator(control)).to_be_disabled()
        expect(page.locator("#problem")).to_be_hidden()


def test_the_command_writes_a_page(
    tmp_path: Path, graph_file: Path, tokenizer_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "page.html"
    output.write_text("older", "utf-8")
    arguments = ["--prompt", "when the parties", "--nodes", "4", "--strategy", "greedy", "--successors", "1"]
    assert run([str(graph_file), *arguments, "-o", str(output), "--json"]) == 0
    line, last = capsys.readouterr().out.splitlines()
    summary = json.loads(last)
    _, data = parse(output.read_text("utf-8"))
    answer = data["answer"]
    assert (summary["nodes"], summary["order"]) == (len(answer["draft"]["nodes"]), 3) == (4, 3)
    assert (answer["draft"]["strategy"], answer["draft"]["budget"]) == ("greedy", 4)
    assert [len(order["successors"]) for order in answer["orders"]] == [1, 1, 1]
    assert summary["file_bytes"] == output.stat().st_size
    assert line == f"{output}: after the last 3 of {summary['prompt_tokens']} prompt tokens, a draft of 4 nodes"
    assert answer["text"] == "when the parties"
    assert data["list"]["graphs"][0]["name"] == "small"
    assert data["list"]["graphs"][0]["tokenizer"] == tokenizer_folder.name
    assert str(tokenizer_folder.parent) not in output.read_text("utf-8"), "a page is shared with others"
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
