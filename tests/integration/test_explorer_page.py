"""The explorer's page in a real browser, used with mouse, keyboard and phone."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from support.access import access_file, entry
from support.browser import chromium, needs_chromium, opened, settled, typed
from support.explorer import Explored, exploring, text_graph, tokenizer_in

pytestmark = [needs_chromium, pytest.mark.slow]
TOKEN = "a key that nobody guesses"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as running:
        yield running


@pytest.fixture(scope="module")
def explored(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Explored]:
    folder = tmp_path_factory.mktemp("explored")
    path = text_graph(folder / "text.pkl", tokenizer_in(folder / "tokenizer"))
    with exploring(path, folder, draft={"strategy": "tree", "k": 12}) as running:
        running.asker.look(text="The")  # the first lookup takes longer
        yield running


@pytest.fixture
def page(browser: Browser, explored: Explored) -> Iterator[Page]:
    with opened(browser, explored.url) as page:
        settled(page)
        yield page


def successors(page: Page) -> list[str]:
    return page.locator("#successors button").evaluate_all("all => all.map(one => one.getAttribute('aria-label'))")


def levels(page: Page) -> list[int]:
    levels = page.locator("#tree .step").evaluate_all("all => all.map(one => one.getAttribute('aria-level'))")
    return [int(level) for level in levels]


def focused(page: Page) -> str:
    return str(page.evaluate("document.activeElement.getAttribute('aria-label') ?? document.activeElement.id"))


def test_a_context_is_found_in_the_corpus(page: Page, explored: Explored) -> None:
    assert page.is_disabled("#find"), "there is no text yet"
    typed(page, "The parties agree to t")
    page.click("#find")
    expect(page.locator("#places-note")).to_contain_text("4 places in the corpus files; counted 4 times.")
    first = page.locator("#places li").first
    expect(first).to_contain_text(re.compile(r"text\.txt:1:51 .*agree to talk"))
    page.click("#matches label:has(input[value='1'])")
    expect(page.locator("#places li")).to_have_count(0)
    page.click("#find")
    expect(page.locator("#places-note")).to_contain_text("20 places in the corpus files")
    expect(page.locator("#places-note")).to_contain_text("there may be more")
    typed(page, "The parties agree to x")
    expect(page.locator("#places li")).to_have_count(0)


def test_a_text_is_explored_by_mouse(page: Page) -> None:
    expect(page.locator("#told")).to_contain_text("most frequent tokens")
    assert len(successors(page)) == 20
    typed(page, "The parties agree to t")
    expect(page.locator("#told")).to_contain_text("the last 4 are the longest context that the graph knows")
    assert page.locator("#chips .known").count() == 4
    assert page.locator("#matches input").count() == 5
    assert re.fullmatch(r"append (the|a|alk), \d+%", successors(page)[0])
    page.click("#matches label:has(input[value='2'])")
    expect(page.locator("#next-note")).to_contain_text("followed the last 2 tokens")
    assert all(re.fullmatch(r"append .+, .+%, \d+ times?", name) for name in successors(page))
    page.click("#matches label:has(input[value='4'])")
    before = page.input_value("#typed")
    page.click("#successors button >> nth=0")
    settled(page)
    grown = page.input_value("#typed")
    assert grown.startswith(before)
    assert len(grown) > len(before)
    page.click("#back")
    settled(page)
    assert page.input_value("#typed") == before
    page.go_forward()
    page.reload()
    settled(page)
    assert page.input_value("#typed") == grown
    page.click("#clear")
    settled(page)
    assert page.input_value("#typed") == ""


def test_the_draft_is_drawn_as_it_is_made(page: Page, explored: Explored) -> None:
    typed(page, "The parties ")
    page.fill("#budget", "7")
    page.press("#budget", "Enter")
    settled(page)
    asked = explored.asker.look(text="The parties ", strategy="tree", budget=7).json
    nodes = asked["draft"]["nodes"]
    assert page.locator("#tree .step").count() == len(nodes) + 1 == page.locator("#tree .edge").count() + 1 == 8
    expected = [1]
    for node in nodes:
        expected.append(expected[node["parent"]] + 1)
    assert levels(page) == expected
    page.hover("#tree .step >> nth=3")
    expect(page.locator("#node")).to_contain_text("path ")
    page.select_option("#strategy", "sampling")
    settled(page)
    expect(page.locator("#seed")).to_be_visible()
    assert max(levels(page)) == 8
    page.click("#tree .step >> nth=2")
    settled(page)
    assert page.input_value("#typed").startswith("The parties ")
    assert len(page.input_value("#typed")) > len("The parties ")


def test_everything_can_be_done_by_keyboard(page: Page) -> None:
    page.keyboard.press("Escape")
    page.keyboard.press("/")
    assert focused(page) == "typed"
    page.keyboard.type("The parties agree")
    settled(page)
    page.keyboard.press("Escape")
    page.keyboard.press("m")
    page.keyboard.press("ArrowDown")
    expect(page.locator("#matches input[value='4']")).to_be_checked()
    for _ in range(3):  # to a context with several successors
        page.keyboard.press("ArrowDown")
    page.keyboard.press("n")
    first = focused(page)
    page.keyboard.press("ArrowDown")
    second = focused(page)
    assert [first, second] == successors(page)[:2]
    page.keyboard.press("Home")
    page.keyboard.press("Enter")
    settled(page)
    assert len(page.input_value("#typed")) > len("The parties agree")
    assert focused(page) == successors(page)[0], "and so on"
    page.keyboard.press("b")
    settled(page)
    assert page.input_value("#typed") == "The parties agree"
    page.keyboard.press("t")
    assert focused(page) == "end of the text"
    for key in ("ArrowRight", "ArrowDown", "ArrowUp", "ArrowRight"):
        page.keyboard.press(key)
    level = page.evaluate("document.activeElement.getAttribute('aria-level')")
    assert level == "3"
    page.keyboard.press("Enter")
    settled(page)
    assert len(page.input_value("#typed")) >= len("The parties agree") + 2
    page.keyboard.press("?")
    expect(page.locator("#keys")).to_be_visible()
    page.keyboard.press("Escape")
    expect(page.locator("#keys")).to_be_hidden()


def test_text_is_never_markup(page: Page) -> None:
    typed(page, "<img src=x onerror=alert(1)><b>The parties")
    assert page.locator("main img, main b").count() == 0
    assert "<" in "".join(page.locator("#chips .token").all_text_contents())


def test_what_is_wrong_is_said(browser: Browser, graph_path: Path, tmp_path: Path) -> None:
    with exploring(graph_path, tmp_path) as running, opened(browser, running.url) as page:
        settled(page)
        page.click("text=Token ids")
        typed(page, "1 99")
        expect(page.get_by_role("alert").first).to_contain_text("0 to 49; send ids")
        typed(page, "1 9")
        expect(page.locator("#problem")).to_be_hidden()
        running.sidecar.kill()
        typed(page, "1 9 4")
        expect(page.get_by_role("alert").first).to_contain_text("check that it is running")
        expect(page.locator("#told")).to_contain_text("No answer for this text")
        page.click("#retry")
        expect(page.locator("#told")).to_contain_text("No answer for this text")
        with exploring(graph_path, tmp_path / "again", metrics_listen=running.asker.address):
            # The page repeats the request by itself.
            expect(page.locator("#told")).to_contain_text("3 tokens")
            expect(page.locator("#problem")).to_be_hidden()


def test_a_key_is_asked_for(browser: Browser, graph_path: Path, tmp_path: Path) -> None:
    access = access_file(tmp_path / "access.toml", entry("me", TOKEN))
    with exploring(graph_path, tmp_path, access={"file": access}) as running, opened(browser, running.url) as page:
        expect(page.locator("#door")).to_be_visible()
        assert focused(page) == "token"
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.locator("#refused")).to_contain_text("does not know this client")
        page.keyboard.type(TOKEN)
        page.keyboard.press("Enter")
        expect(page.locator("#successors button").first).to_be_visible()
        page.reload()
        expect(page.locator("#successors button").first).to_be_visible()
        expect(page.locator("#door")).to_be_hidden()
        assert TOKEN not in page.url
        assert TOKEN not in running.sidecar.log


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [320, 375, 1280])
def test_it_fits_and_can_be_read(browser: Browser, explored: Explored, scheme: Any, width: int) -> None:
    with opened(browser, explored.url, width, 812, color_scheme=scheme) as page:
        settled(page)
        typed(page, "The parties agree to talk. In case of doubt the parties")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        pale = page.evaluate(CONTRAST)
        assert not pale
        assert not page.evaluate(SMALL_TARGETS)


def test_everything_has_a_name(page: Page) -> None:
    typed(page, "The parties agree")
    tree = page.context.new_cdp_session(page).send("Accessibility.getFullAXTree")
    named = {"button", "textbox", "combobox", "spinbutton", "radio", "radiogroup", "tree", "treeitem", "list", "region"}
    found = [
        (node["role"]["value"], node.get("name", {}).get("value", ""))
        for node in tree["nodes"]
        if not node.get("ignored") and node["role"]["value"] in named
    ]
    assert {role for role, _ in found} >= named - {"list", "region"}
    assert not [role for role, name in found if not name.strip()]


CONTRAST = """() => {
    const channels = (colour) => {
        const canvas = document.createElement('canvas').getContext('2d');
        canvas.fillStyle = colour;
        canvas.fillRect(0, 0, 1, 1);
        return [...canvas.getImageData(0, 0, 1, 1).data];
    };
    const light = (colour) => {
        const [r, g, b] = channels(colour).map((part) => part / 255)
            .map((part) => (part <= 0.04045 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4));
        return 0.2126 * r + 0.7152 * g + 0.0722 * b;
    };
    const back = (element) => {
        for (let at = element; at; at = at.parentElement) {
            const colour = getComputedStyle(at).backgroundColor;
            if (channels(colour)[3] === 255) return colour;
        }
        return 'white';
    };
    return [...document.querySelectorAll('body *')].filter((element) => {
        const words = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
        const isOther = element.closest('svg, script, noscript, option, :disabled') || !element.checkVisibility();
        if (!words || isOther) return false;
        const [a, b] = [light(getComputedStyle(element).color), light(back(element))].sort((one, two) => one - two);
        return (b + 0.05) / (a + 0.05) < 4.5;
    }).map((element) => element.outerHTML.slice(0, 120));
}"""

SMALL_TARGETS = """() => {
    const isSmall = (box) => box.width < 24 || box.height < 24;
    return [...document.querySelectorAll('button, select, textarea, input[type=number], .match, .switch span')]
        .filter((element) => element.checkVisibility() && isSmall(element.getBoundingClientRect()))
        .map((element) => element.outerHTML.slice(0, 120));
}"""
