"""Code that all benches share: progress lines, interleaved trials, result tables and the JSON object."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import BeforeValidator
from rich.console import Console
from rich.table import Table

from speculant_graph.file_names import json_text
from speculant_graph.machine import describe_machine

if TYPE_CHECKING:
    from speculant_graph.graph.build.builder import BuildProgress


def _items(value: object) -> object:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list):
        return items
    if not items:
        raise ValueError("is empty; name at least one, or leave it out")
    return list(dict.fromkeys(items))


COMMAS = BeforeValidator(_items)
"""Annotation of a list that a command line gives as items separated by commas: ``8,16,32``. A repeated item counts
once."""

Progress = Callable[[int, int], None]
"""A callback that gets the amount of finished work and the total amount."""

T = TypeVar("T")

_PLAIN_WIDTH = 160
"""Width of printed tables, in columns, if the output is not a terminal."""


def begin(label: str) -> Progress:
    """Print a phase's label on standard error; return a callback that shows its progress on a terminal."""
    sys.stderr.write(f"{label} …\n")

    def show(done: int, total: int) -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"\r  {done:,} of {total:,}" if done < total else "\r\033[K")
            sys.stderr.flush()

    return show


def show_build() -> Callable[[BuildProgress], None]:
    """Return a callback that shows the progress of each phase of a build."""
    tell = begin("building a graph")
    return lambda build: tell(build.done, build.total)


def alternate(
    variants: Mapping[str, Callable[[int], T]], rounds: int, tell: Progress | None = None
) -> dict[str, list[T]]:
    """Call every variant once per round, with the round's index, so that noise affects all variants.

    The order of the variants rotates from round to round, so that each is equally often first, second, ...

    Args:
        variants: the variants by name, at least one.
        rounds: number of rounds.
        tell: called with the number of finished rounds.
    """
    names = list(variants)
    results: dict[str, list[T]] = {name: [] for name in names}
    for index in range(rounds):
        first = index % len(names)
        for name in (*names[first:], *names[:first]):
            results[name].append(variants[name](index))
        if tell is not None:
            tell(index + 1, rounds)
    return results


def print_report(
    name: str,
    figures: Mapping[str, Any],
    arguments: Sequence[str],
    *,
    as_json: bool,
    columns: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Print a bench's results: every list of objects as a table, and every other figure on its own line.

    Args:
        name: the bench.
        figures: the content of the JSON object, to which the machine and the command are added.
        arguments: command line of the bench.
        as_json: print the object as the last line of standard output.
        columns: the columns of each table, by its list's key in ``figures``; by default all keys of the list's objects.
    """
    machine = describe_machine()
    console = Console(highlight=False, markup=False)
    if not console.is_terminal:
        console.width = _PLAIN_WIDTH
    single = Table(box=None, pad_edge=False, show_header=False)
    for key, value in figures.items():
        if isinstance(value, list) and value and isinstance(value[0], dict):
            console.print(table_of(value, (columns or {}).get(key)))
            console.print()
        else:
            single.add_row(_words(key), _cell(value))
    console.print(f"bench {name}")
    console.print(single)
    console.print(f"\non {machine['cpu']}, {machine['cores']} cores, Python {machine['python']}")
    sys.stdout.flush()
    if as_json:
        report = {**figures, "machine": machine, "command": ["speculant", "bench", name, *arguments]}
        sys.stdout.write(json_text(report) + "\n")


def table_of(rows: Sequence[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Table:
    """Return a table with one row per object, without empty columns."""
    keys = columns or dict.fromkeys(key for row in rows for key in row)
    table = Table(box=None, pad_edge=False, header_style="")
    shown = [key for key in keys if any(row.get(key) is not None for row in rows)]
    for key in shown:
        is_text = any(isinstance(row.get(key), str) for row in rows)
        table.add_column(_words(key).replace(" ", "\n"), justify="left" if is_text else "right", no_wrap=not is_text)
    for row in rows:
        table.add_row(*(_cell(row.get(key)) for key in shown))
    return table


def _words(key: str) -> str:
    return key.replace("_", " ")


def _cell(value: object) -> str:
    """Return a figure in a readable format."""
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "NO"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, dict):
        return ", ".join(f"{_words(key)} {_cell(each)}" for key, each in value.items())
    if isinstance(value, list):
        return ", ".join(map(_cell, value))
    return str(value)
