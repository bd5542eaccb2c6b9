"""No block of a page is forgotten: each is run by a test, looked at by one, or listed as output."""

from __future__ import annotations

import ast
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


def source_reached(test: str) -> str:
    """Return the source of a test ``FILE::NAME``, and of what it uses of its file: fixtures, helpers, constants."""
    file, _, name = test.partition("::")
    defined: dict[str, ast.stmt] = {}
    for node in ast.parse((ROOT / file).read_text(encoding="utf-8")).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            defined[node.name] = node
        elif isinstance(node, ast.Assign):
            targets = [each for target in node.targets for each in ast.walk(target)]
            defined |= {each.id: node for each in targets if isinstance(each, ast.Name)}
    assert name in defined, f"{test} is no test"
    reached, ahead = {name}, [name]
    while ahead:
        for node in ast.walk(defined[ahead.pop()]):
            used = node.id if isinstance(node, ast.Name) else node.arg if isinstance(node, ast.arg) else ""
            if used in defined and used not in reached:
                reached.add(used)
                ahead.append(used)
    return "\n".join(ast.unparse(defined[each]) for each in sorted(reached))


@pytest.mark.parametrize("test", sorted({*ELSEWHERE.values(), *BY_LINE.values()}))
def test_what_claims_a_block_reads_its_page(test):
    source = source_reached(test)
    for claims in (ELSEWHERE, BY_LINE):
        for (page, what), by in claims.items():
            if by == test:
                name = Path(page).name
                is_named = f"/{name}'" in source or f"'{name}'" in source or f"'{Path(page).stem}'" in source
                assert is_named, f"{test} does not read {page}"
                assert claims is BY_LINE or f"'{what}'" in source, f"{test} takes no blocks of {what}"
