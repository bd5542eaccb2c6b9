"""The tables of ``speculant inspect``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speculant_graph.cli.inspect_report import FAN_OUT_CLASSES
from speculant_graph.cli.terminal import printable
from speculant_graph.view.formatting import counted


class InspectPrinter:
    """Prints reports of :mod:`~speculant_graph.cli.inspect_report` for people; nothing in them is read as markup."""

    def __init__(self) -> None:
        """Print to standard output."""
        self._console = Console(highlight=False, soft_wrap=True, markup=False)

    def show_graph(self, report: dict[str, Any], tokenizer_problem: str) -> None:
        """Print what the graph holds and where it comes from."""
        self._say(report["path"], style="bold")
        self._say(
            f"{report['file_bytes'] / 1e6:.1f} MB, {counted(report['tokens'], 'token')}, "
            f"{counted(report['nodes'], 'n-gram')}, "
            f"{report['bytes_per_node']} bytes per n-gram, {report['bytes_per_token']} per token"
        )
        corpus = (
            f"{counted(report['corpus_files'], 'file')} ({report['corpus_bytes'] / 1e6:.1f} MB)"
            if report["corpus_files"]
            else "token ids"
        )
        self._say(
            f"built {report['built_at']} by speculant-graph {report['library_version']} in "
            f"{report['build_seconds']:.1f} s from {corpus}, {counted(report['documents'], 'document')}"
        )
        borders = "stop at" if report["document_boundaries"] else "run across"
        pruned = (
            "all are kept" if report["min_count"] == 1 else f"those seen less than {report['min_count']} times left out"
        )
        special = "special tokens" if report["special_tokens"] == "parse" else "text"
        self._say(f"n-grams {borders} document borders; {pruned}; special tokens spelt out in texts are {special}")
        size = report["calibration_bytes"]
        self._say(f"calibration: learned from the corpus, {size:,} bytes" if size else "calibration: none")
        revision = f", revision {report['tokenizer_revision'][:12]}" if report["tokenizer_revision"] else ""
        self._say(
            f"tokenizer {report['tokenizer']} ({report['vocabulary_size']:,} ids, "
            f"{report['tokenizer_sha256'][:12]}…{revision})"
        )
        if tokenizer_problem:
            self._say(f"no texts, only token ids: {tokenizer_problem}", style="yellow")
        if report["verified"]:
            self._say(
                f"verified: {len(report['bytes_per_level']) + 1} arrays have their checksums and fit together",
                style="green",
            )
        self._console.print("\nn-grams and contexts by length, and the share of contexts with so many successors:")
        self._console.print(_sizes(report))
        if any(report["top_ngrams"]):
            self._console.print()
            self._console.print(_top(report["top_ngrams"]))

    def show_prompt(self, report: dict[str, Any]) -> None:
        """Print the draft after the prompt and what each order knows."""
        self._console.print()
        text = Text.assemble(
            "after ", (repr(report["prompt"]), "cyan"), " it drafts ",
            counted(len(report["draft_token_ids"]), "token"), ": ",
            (repr(report["draft_text"]), "green"),
        )  # fmt: skip
        self._console.print(text)
        table = _table("order", "context", "seen", "successors", "goes on with")
        for order in report["orders"]:
            if order["count"]:
                parts = [f"{item['text']!r} {item['probability']:.1%}" for item in order["successors"]]
                cells = (f"{order['count']:,}", f"{order['num_successors']:,}", "  ".join(parts))
            else:
                cells = ("no", "", "")
            shown = repr(order["context"]) if order["context_token_ids"] else "(longer than the prompt)"
            table.add_row(str(order["order"]), Text(shown), *map(Text, cells))
        self._console.print(table)

    def show_coverage(self, report: dict[str, Any]) -> None:
        """Print how much of a text is known."""
        coverage = report["coverage"]
        self._console.print()
        self._say(
            f"{coverage['path']}: {counted(coverage['tokens'], 'token')}; some context is known at "
            f"{coverage['known']:.1%} of the positions, and the longest one's most frequent successor is right at "
            f"{coverage['right']:.1%}"
        )
        for file in coverage["skipped"]:
            self._say(f"left out: {file['name']}: {file['reason']}", style="yellow")
        table = _table("order", "known", "of these right", "longest known", "of these right")
        for order in coverage["orders"]:
            names = ("known", "right_of_known", "longest", "right_of_longest")
            table.add_row(str(order["order"]), *(f"{order[name]:.1%}" for name in names))
        self._console.print(table)

    def _say(self, line: str, style: str = "") -> None:
        self._console.print(Text(printable(line), style))


def _sizes(report: dict[str, Any]) -> Table:
    table = _table("length", "n-grams", "MB", "contexts", *FAN_OUT_CLASSES)
    sizes = zip(report["nodes_per_level"], report["bytes_per_level"], strict=True)
    for length, (nodes, num_bytes) in enumerate(sizes, start=1):
        cells = [str(length), f"{nodes:,}", f"{num_bytes / 1e6:,.1f}"]
        if length <= report["max_order"]:
            shares = report["fan_out"][length - 1]
            cells.append(f"{report['contexts_per_order'][length - 1]:,}")
            cells += [f"{shares[name]:.1%}" for name in FAN_OUT_CLASSES]
        table.add_row(*cells)
    return table


def _top(top_ngrams: Sequence[Iterable[dict[str, Any]]]) -> Table:
    table = _table("length", "count", "most frequent n-grams", "token ids")
    for length, ngrams in enumerate(top_ngrams, start=1):
        for place, ngram in enumerate(ngrams):
            text = "" if ngram["text"] is None else repr(ngram["text"])
            token_ids = " ".join(map(str, ngram["token_ids"]))
            table.add_row("" if place else str(length), f"{ngram['count']:,}", Text(text), token_ids)
    return table


def _table(*names: str) -> Table:
    table = Table(box=None, pad_edge=False)
    for name in names:
        is_text = name in ("context", "goes on with", "most frequent n-grams", "token ids")
        table.add_column(name, justify="left" if is_text else "right", header_style="bold")
    return table
