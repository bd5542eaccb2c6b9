"""Generates the table of strategies in docs/drafting.md from their records; ``make tables`` writes it."""

from __future__ import annotations

import re
from typing import get_args

from speculant_graph.strategies import STRATEGIES, StrategyName
from support.pages import ROOT

_HEAD = "| strategy | drafts | from |\n| --- | --- | --- |\n"


def with_table(page: str) -> str:
    """Return the page with the table generated from the records."""
    records = [(name, STRATEGIES[name]) for name in get_args(StrategyName)]
    rows = "".join(f"| `{name}` | {each.summary} | {each.evidence} |\n" for name, each in records)
    replaced, number = re.subn(re.escape(_HEAD) + r"(\|.*\n)*", lambda _: _HEAD + rows, page)
    assert number == 1, "the page has one table of strategies"
    return replaced


if __name__ == "__main__":
    path = ROOT / "docs/drafting.md"
    path.write_text(with_table(path.read_text(encoding="utf-8")), encoding="utf-8")
