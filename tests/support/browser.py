"""A real headless browser, for tests of pages."""

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
expect.set_options(timeout=PATIENCE_MS)  # the default of 5 s is too short for the first page on a busy machine


@contextmanager
def chromium() -> Iterator[Browser]:
    """Run the installed browser."""
    arguments = ["--no-sandbox", "--no-first-run", *(f"--disable-{what}" for what in _QUIET)]
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=arguments)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Browser, url: str, width: int = 1280, height: int = 900, **settings: Any) -> Iterator[Page]:
    """Open a page in a new profile; it must log no errors and send no requests to other origins.

    Args:
        browser: the browser.
        url: address of the page.
        width: width of the window, in pixels.
        height: height of the window, in pixels.
        settings: further settings of the profile, such as ``color_scheme``.
    """
    complaints: list[str] = []
    origin = "/".join(url.split("/")[:3])
    context = browser.new_context(viewport={"width": width, "height": height}, **settings)
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    # The browser logs refused requests itself; these messages do not come from the page.
    page.on("console", lambda said: "Failed to load resource" in said.text or complaints.append(said.text))
    page.on("request", lambda request: request.url.startswith(f"{origin}/") or complaints.append(request.url))
    page.goto(url)
    yield page
    context.close()
    assert not complaints


def settled(page: Page) -> None:
    """Wait until the explorer shows the result of the latest query."""
    page.wait_for_timeout(50)  # navigation back starts with a delay
    page.wait_for_selector('main[aria-busy="false"]')


def typed(page: Page, text: str) -> None:
    """Enter a text and wait for the result."""
    page.fill("#typed", text)
    settled(page)
