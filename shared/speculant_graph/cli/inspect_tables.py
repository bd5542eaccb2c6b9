"""The tables of ``speculant inspect``; nothing in them is read as markup or reaches the terminal as it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speculant_graph.cli.terminal import printable
from speculant_graph.view.formatting import counted


class InspectPrinter:
    """Prints reports of :mod:`~speculant_graph.cli.inspect_report` for people."""

    def __init__(self) -> None:
        """Print to standard output."""
        self._console = Console(highlight=False, soft_wrap=True, markup=False)

    def show_graph(self, report: dict[str, Any], tokenizer_problem: str) -> None:
        """Print what the graph holds and where it comes from."""
        self._say(report["path"], style="bold")
        kept = "all" if report["min_count"] == 1 else f"those seen at least {report['min_count']} times"
        borders = "none across document borders" if report["document_boundaries"] else "also across document borders"
        revision = f", revision {report['tokenizer_revision'][:12]}" if report["tokenizer_revision"] else ""
        corpus = counted(report["corpus_files"], "file") if report["corpus_files"] else "token ids"
        for name, text in {
            "size": f"{report['file_bytes'] / 1e6:.1f} MB, {counted(report['tokens'], 'token')}, "
            f"{counted(report['nodes'], 'n-gram')}, {report['bytes_per_node']} bytes per n-gram, "
            f"{report['bytes_per_token']} per token",
            "built": f"{report['built_at']} by speculant-graph {report['library_version']} "
            f"in {report['build_seconds']:.1f} s",
            "corpus": f"{corpus} ({report['corpus_bytes'] / 1e6:.1f} MB), {counted(report['documents'], 'document')}, "
            f"special tokens: {report['special_tokens']}",
            "n-grams": f"{kept}, {borders}",
            "calibration": f"{report['calibration_bytes']:,} bytes",
            "tokenizer": f"{report['tokenizer']} ({report['vocabulary_size']:,} ids, "
            f"{report['tokenizer_sha256'][:12]}{revision})",
        }.items():
            self._say(f"{name:<12} {text}")
        if tokenizer_problem:
            self._say(f"no texts, only token ids: {tokenizer_problem}", style="yellow")
        if report["verified"]:
            self._say("verified: all arrays have their checksums and fit together", style="green")
        rows = zip(report["nodes_per_level"], [*report["contexts_per_order"], ""], strict=True)
        self._show(
            ("length", "n-grams", "of these contexts"),
            [(length, nodes, contexts) for length, (nodes, contexts) in enumerate(rows, start=1)],
        )
        self._show(
            ("length", "count", "most frequent n-grams", "token ids"),
            [
                (length, ngram["count"], _quoted(ngram["text"]), " ".join(map(str, ngram["token_ids"])))
                for length, ngrams in enumerate(report["top_ngrams"], start=1)
                for ngram in ngrams
            ],
        )

    def show_prompt(self, report: dict[str, Any]) -> None:
        """Print the draft after the prompt and what each order knows."""
        drafted = counted(len(report["draft_token_ids"]), "token")
        self._console.print()
        self._say(f"after {report['prompt']!r} it drafts {drafted}: {report['draft_text']!r}", style="green")
        rows = []
        for order in report["orders"]:
            shown = repr(order["context"]) if order["context_token_ids"] else "(longer than the prompt)"
            parts = [f"{item['text']!r} {item['probability']:.1%}" for item in order["successors"]]
            rows.append((order["order"], shown, order["count"], order["num_successors"], "  ".join(parts)))
        self._show(("order", "context", "seen", "successors", "goes on with"), rows)

    def show_coverage(self, report: dict[str, Any]) -> None:
        """Print how much of a text is known."""
        coverage = report["coverage"]
        self._console.print()
        self._say(
            f"{coverage['path']}: {counted(coverage['tokens'], 'token')}; some context is known at "
            f"{coverage['known']:.1%} of the positions, and the longest one's most frequent successor is right at "
            f"{coverage['right']:.1%}"
        )
        names = ("known", "right_of_known", "longest", "right_of_longest")
        self._show(
            ("order", "known", "of these right", "longest known", "of these right"),
            [(each["order"], *(f"{each[name]:.1%}" for name in names)) for each in coverage["orders"]],
        )

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(Text(printable(line), style))

    def _show(self, names: tuple[str, ...], rows: Sequence[tuple[int | str, ...]]) -> None:
        """Print a table below an empty line, if it has rows; numbers and shares stand to the right."""
        if not rows:
            return
        table = Table(box=None, pad_edge=False)
        for name, value in zip(names, rows[0], strict=True):
            is_number = isinstance(value, int) or value.endswith("%")
            table.add_column(name, justify="right" if is_number else "left", header_style="bold")
        for row in rows:
            table.add_row(*(f"{value:,}" if isinstance(value, int) else Text(value) for value in row))
        self._console.print()
        self._console.print(table)


def _quoted(text: str | None) -> str:
    return "" if text is None else repr(text)
