"""A real browser without a window, for tests of pages."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium: apt-get install chromium")
_QUIET = ("background-networking", "component-update", "sync", "gpu")
PATIENCE_MS = 60_000
expect.set_options(timeout=PATIENCE_MS)  # five seconds are too few for the first look on a busy machine


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the browser that is installed."""
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in _QUIET)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1280, height: int = 900, **settings: Any) -> Iterator[Page]:
    """Open a page in a profile of its own; it must not complain, nor ask for anything elsewhere.

    Args:
        browser: where.
        url: of the page.
        width: of the window, in pixels.
        height: of the window, in pixels.
        settings: more of the profile, such as ``color_scheme``.
    """
    complaints: list[str] = []
    origin = "/".join(url.split("/")[:3])
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # What a refused request makes the browser say is not the page's.
    page.on("console", lambda said: "Failed to load resource" in said.text or complaints.append(said.text))
    page.on("request", lambda request: request.url.startswith(f"{origin}/") or complaints.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert not complaints


def settled(page: Page) -> None:
    """Wait until the explorer shows what was asked of it last."""
    page.wait_for_timeout(50)  # going back begins a moment later
    page.wait_for_selector('main[aria-busy="false"]')


def typed(page: Page, text: str) -> None:
    """Put a text in, and wait for what is known of it."""
    page.fill("#typed", text)
    settled(page)
