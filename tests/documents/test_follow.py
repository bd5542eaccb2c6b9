"""Runs pages from top to bottom like a reader: every block of bash and Python, in order, in one folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from documents.claims import ELSEWHERE, EXPECTED, NOT_RUN, SLOW
from support.pages import Block, all_blocks, pages, read_page
from support.reader import Reader, make_folder

EVERY = [(page, block) for page in pages() for block in all_blocks(read_page(page))]


def followed(page: str) -> list[Block]:
    """Return the blocks of a page that are run or saved here."""
    claimed = ELSEWHERE.keys() | NOT_RUN
    return [
        block
        for at, block in EVERY
        if at == page and block.language and not {(page, block.language), (page, block.first_line)} & claimed
    ]


def test_no_claim_is_out_of_date():
    there = {(page, at) for page, block in EVERY for at in (block.language, block.first_line)}
    assert ELSEWHERE.keys() | NOT_RUN <= there
    assert SLOW | EXPECTED.keys() <= set(pages())


@pytest.fixture(scope="session")
def graph(tmp_path_factory):
    """Return a graph of the reader's text, built once."""
    folder = tmp_path_factory.mktemp("reader")
    make_folder(folder, None)
    return folder / "graph.pkl"


@pytest.fixture
def reader(tmp_path, graph):
    folder = Path(tmp_path / "reader")
    folder.mkdir()
    make_folder(folder, graph)
    reading = Reader(folder)
    yield reading
    reading.leave()


@pytest.mark.parametrize(
    "page",
    [pytest.param(page, marks=[pytest.mark.slow] * (page in SLOW)) for page in pages() if followed(page)],
)
def test_the_page_can_be_followed(page, reader):
    for block in followed(page):
        is_ours = block.file_name or block.language in ("bash", "python")
        assert is_ours, f"{page}, line {block.line}, '{block.language}': name it in tests/documents/claims.py"
    printed = "".join(reader.follow(page, block) for block in followed(page))
    assert EXPECTED[page], "say in tests/documents/claims.py what the page's blocks print"
    for pattern in EXPECTED[page]:
        assert re.search(pattern, printed), f"{page}: nothing printed is like '{pattern}':\n{printed[-8000:]}"
