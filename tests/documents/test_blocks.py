"""No block of a page is forgotten: each is run by a test, or listed as output."""

from __future__ import annotations

from pathlib import Path

import pytest

from documents.claims import ELSEWHERE, ELSEWHERE_BY_LINE, EXPECTED, OUTPUT, SLOW
from support.pages import ROOT, all_blocks, pages, read_page

FOLLOWED = ("bash", "python")
EVERY = [(page, block) for page in pages() for block in all_blocks(read_page(page))]


@pytest.mark.parametrize(("page", "block"), EVERY, ids=[f"{page}:{block.line}" for page, block in EVERY])
def test_every_block_is_claimed_once(page, block):
    at = (page, block.first_line)
    claims = [
        (page, block.language) in ELSEWHERE,
        at in ELSEWHERE_BY_LINE,
        at in OUTPUT,
    ]
    is_followed = block.language in FOLLOWED or bool(block.file_name)
    where = f"{page}, line {block.line}, '{block.language}'"
    assert sum(claims) + (is_followed and not any(claims)) == 1, f"{where}: name it in tests/documents/claims.py"
    if at in OUTPUT:
        assert not block.language, f"{where}: what is printed has no language"
    elif at not in ELSEWHERE_BY_LINE:
        assert block.language, f"{where}: what is run has a language"


def test_no_claim_is_out_of_date():
    languages = {(page, block.language) for page, block in EVERY}
    lines = {(page, block.first_line) for page, block in EVERY}
    assert set(ELSEWHERE) <= languages
    assert set(ELSEWHERE_BY_LINE) | OUTPUT <= lines
    assert SLOW | set(EXPECTED) <= {page for page, _ in EVERY}


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values(), *ELSEWHERE_BY_LINE.values()}))
def test_what_claims_a_page_reads_it(test):
    text = (ROOT / test).read_text(encoding="utf-8")
    claimed = [page for claims in (ELSEWHERE, ELSEWHERE_BY_LINE) for (page, _), by in claims.items() if by == test]
    for page in claimed:
        stem = Path(page).stem
        assert test == ".ci/run" or page in text or f'"{stem}.md"' in text or f'"{stem}"' in text, f"{test}: {page}"
