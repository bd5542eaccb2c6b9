"""No block of a page is forgotten: each is run by a test, looked at by one, or listed as output."""

from __future__ import annotations

from pathlib import Path

import pytest

from documents.claims import ELSEWHERE, ELSEWHERE_BY_LINE, EXPECTED, NOT_RUN, OUTPUT, SLOW
from support.pages import ROOT, all_blocks, pages, read_page

FOLLOWED = ("bash", "python")
BY_LINE = {**ELSEWHERE_BY_LINE, **NOT_RUN}
EVERY = [(page, block) for page in pages() for block in all_blocks(read_page(page))]


@pytest.mark.parametrize(("page", "block"), EVERY, ids=[f"{page}:{block.line}" for page, block in EVERY])
def test_every_block_is_claimed_once(page, block):
    at = (page, block.first_line)
    claims = [
        (page, block.language) in ELSEWHERE,
        at in BY_LINE,
        at in OUTPUT,
    ]
    is_followed = block.language in FOLLOWED or bool(block.file_name)
    where = f"{page}, line {block.line}, '{block.language}'"
    assert sum(claims) + (is_followed and not any(claims)) == 1, f"{where}: name it in tests/documents/claims.py"
    if at in OUTPUT:
        assert not block.language, f"{where}: what is printed has no language"
    elif at not in BY_LINE:
        assert block.language, f"{where}: what is run has a language"


def test_no_claim_is_out_of_date():
    languages = {(page, block.language) for page, block in EVERY}
    lines = {(page, block.first_line) for page, block in EVERY}
    assert set(ELSEWHERE) <= languages
    assert set(BY_LINE) | OUTPUT <= lines
    assert not set(ELSEWHERE_BY_LINE) & set(NOT_RUN)
    assert SLOW | set(EXPECTED) <= {page for page, _ in EVERY}


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values(), *BY_LINE.values()}))
def test_what_claims_a_block_is_a_test_of_a_file_that_reads_the_page(test):
    file, _, name = test.partition("::")
    source = (ROOT / file).read_text(encoding="utf-8")
    assert f"def {name}(" in source, f"{test} is no test"
    for (page, _), by in (*ELSEWHERE.items(), *BY_LINE.items()):
        assert by != test or Path(page).stem in source, f"{test} does not read {page}"
