"""Takes the pictures of docs/explorer.md from the real page; run by ``make pictures``."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from playwright.sync_api import Browser, Page

from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.corpus import training_files
from support.browser import CHROMIUM, chromium, opened, settled, typed
from support.explorer import exploring

DOCS = Path(__file__).parents[2] / "docs"
TOKENIZER = Path(__file__).parents[2] / "verifier_client" / "speculant_verifier" / "demo" / "model"
"""Size limit of a committed picture."""
_TEXT = "    def __init__(self, address"


def take_pictures(folder: Path, max_files: int | None = None) -> list[Path]:
    """Build the demo's graph, serve it, and take two pictures: on a wide screen, and in dark mode on a phone.

    Args:
        folder: folder for the pictures.
        max_files: maximum number of files of the corpus; None: all files, as for the documentation.
    """
    with tempfile.TemporaryDirectory() as temporary:
        graph_path = Path(temporary) / "stdlib.pkl"
        builder = GraphBuilder(tokenizer_name=str(TOKENIZER), max_order=5)
        builder.build_from_files([str(path) for path in training_files()[0][:max_files]])
        builder.save(graph_path)
        draft = {"strategy": "tree", "k": 16}
        with exploring(graph_path, Path(temporary), draft=draft) as running, chromium() as browser:
            running.asker.look("stdlib", text="")  # its process takes a moment to start
            return [
                _take(browser, running.url, folder / "explorer.png", 1280, 800, color_scheme="light"),
                _take(browser, running.url, folder / "explorer-phone.png", 375, 812, color_scheme="dark"),
            ]


def _take(browser: Browser, url: str, path: Path, width: int, height: int, **settings: object) -> Path:
    with opened(browser, url, width, height, **settings) as page:
        settled(page)
        typed(page, _TEXT)
        _point_at_the_third_step(page)
        page.screenshot(path=path, full_page=True)
    return path


def _point_at_the_third_step(page: Page) -> None:
    page.keyboard.press("Escape")
    for key in ("t", "ArrowRight", "ArrowRight", "ArrowRight"):
        page.keyboard.press(key)
    page.evaluate("window.scrollTo(0, 0)")


if __name__ == "__main__":
    if CHROMIUM is None:
        sys.exit("pictures are taken by Chromium, which is not here; install it: apt-get install chromium")
    for picture in take_pictures(Path(sys.argv[1]) if len(sys.argv) > 1 else DOCS):
        sys.stdout.write(f"{picture}: {picture.stat().st_size:,} bytes\n")
