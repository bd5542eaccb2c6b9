"""Learned text as a log: young text in a database, older text in graph files.

1. New text is stored as rows of the tenant's database. Row ids only increase, so a range of ids identifies text
   permanently.
2. If the rows have more than ``fold.young_tokens`` tokens, a fold turns the oldest rows, up to half of that number,
   into one graph file (:mod:`.folding`).
3. A graph file's name, ``FIRST-LAST.graph``, is the only record of the row ids that the file covers.
4. A fold also merges existing graph files, newest first. A fold stops merging at a file that has at least :data:`RATIO`
   times the number of tokens merged before. After n folds, about log8(n) + 1 files therefore remain. The ratio is large
   (8) because an additional file costs more than a merge. Each additional file makes every draft of the tenant a sixth
   to a third slower. Merging a million tokens takes an idle core half a second, which is spent once per merge and not
   in every draft. With a ratio of 8, a token is written about seven times, and a tenant has three files. With a ratio
   of 2, a token is written three times, and a tenant has six files.
5. With a limit on kept tokens or days, no file grows beyond half of the limit (:data:`SHARE`), because old files are
   deleted only as a whole.
6. A fold works in a hidden folder, in a process that publishes nothing. If the fold's process is killed, no published
   data changes.
7. The owner of the folder publishes the fold's graph file by one rename, and this rename puts the fold into effect.
8. After the rename, the owner removes the covered rows (in one transaction) and the covered files. If the owner is
   killed before it has removed everything, some covered rows, covered files or hidden folders remain. Leftover rows,
   files and folders are removed when the tenant is opened next.
9. As a result, every text is in rows of the database or in exactly one valid file. A file is valid if it can be read
   and no other file covers it.
10. Forgetting a tenant ends its fold and removes its database and files, including the fold's hidden folder.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.config import FoldConfig
from speculant_graph.errors import GraphFileError
from speculant_graph.graph.ngrams import NgramGraph

RATIO = 8
"""A fold merges the next older file if it has fewer tokens than this ratio times the number of tokens already
merged."""
SHARE = 2
"""A graph file contains at most 1 / SHARE of the maximum number of kept tokens or days."""
MS_PER_DAY = 86_400_000
HIDDEN = ".fold-"
"""Name prefix of the folders of running folds."""
_NAME = re.compile(r"([0-9]{1,18})-([0-9]{1,18})\.graph")


@dataclass(frozen=True, slots=True)
class Layer:
    """A graph file of a tenant."""

    path: Path
    """The file."""
    first: int
    """Lowest id of the covered rows, in milliseconds since 1970; see :class:`.database.Database`."""
    last: int
    """The highest id of the covered rows."""
    num_tokens: int
    """Number of tokens in the covered rows."""
    num_documents: int
    """Number of texts."""
    num_ngrams: int
    """Number of different n-grams of all lengths."""
    num_bytes: int
    """Size of the graph file, in bytes."""

    @classmethod
    def read(cls, path: Path) -> Layer | None:
        """Return the description of a graph file; None if the file's name is not a graph file's name.

        Raises:
            GraphFileError: the file can't be read.
        """
        found = _NAME.fullmatch(path.name)
        if found is None or int(found[1]) > int(found[2]):
            return None
        facts = NgramGraph.load(path).metadata
        return cls(
            path, int(found[1]), int(found[2]), facts.num_tokens, facts.num_documents,
            sum(facts.nodes_per_level), path.stat().st_size,
        )  # fmt: skip

    @property
    def ids(self) -> tuple[int, int]:
        """First and last id of the covered rows."""
        return self.first, self.last


@dataclass(frozen=True, slots=True)
class Found:
    """The graph files in a tenant's folder."""

    layers: tuple[Layer, ...]
    """The valid graph files, which no other file covers, oldest first."""
    covered: tuple[Path, ...] = ()
    """Graph files whose rows another graph file covers."""
    damaged: tuple[tuple[Path, GraphFileError], ...] = ()
    """Graph files that can't be read, with their errors."""


def folder_of(learned: Path, name: str) -> Path:
    """Return the folder of a tenant's graph files."""
    return learned / f"{name}.graphs"


def name_of(first: int, last: int) -> str:
    """Return the name of the graph file that covers a range of row ids."""
    return f"{first}-{last}.graph"


def find_layers(folder: Path) -> Found:
    """Find the graph files in a tenant's folder, which need not exist; change nothing.

    Raises:
        OSError: the folder can't be read.
    """
    layers, damaged = [], []
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        try:
            layers.append(Layer.read(path))
        except GraphFileError as error:
            damaged.append((path, error))
    # Of two files with the same first id the longer comes first. So a file always comes after the file that covers it.
    ordered = sorted((each for each in layers if each is not None), key=lambda each: (each.first, -each.last))
    kept: list[Layer] = []
    covered = []
    for layer in ordered:
        if kept and layer.last <= kept[-1].last:
            covered.append(layer.path)
        else:
            kept.append(layer)
    return Found(tuple(kept), tuple(covered), tuple(damaged))


def close_in_time(rows: Iterable[tuple[int, bytes]], config: FoldConfig) -> Iterator[tuple[int, bytes]]:
    """Yield the oldest rows that fit into one graph file under the age limit.

    Args:
        rows: row ids and texts, oldest first.
        config: limits of the kept text.
    """
    first = None
    for row_id, text in rows:
        first = row_id if first is None else first
        if config.max_days and row_id - first > _longest_ms(config):
            return
        yield row_id, text


def merge_from(layers: Sequence[Layer], num_tokens: int, last: int, config: FoldConfig) -> int:
    """Return the index of the first file that a fold merges; the number of files if it merges none.

    Args:
        layers: the files, oldest first.
        num_tokens: tokens to fold.
        last: the highest row id of the tokens to fold.
        config: limits of the kept text.
    """
    most_tokens = config.max_tokens // SHARE
    index, total = len(layers), num_tokens
    while index:
        before = layers[index - 1]
        if before.num_tokens >= RATIO * total:
            break
        if config.max_tokens and before.num_tokens + total > most_tokens:
            break
        if config.max_days and last - before.first > _longest_ms(config):
            break
        index, total = index - 1, total + before.num_tokens
    return index


def kept_from(layers: Sequence[Layer], now_ms: int, config: FoldConfig) -> int:
    """Return the index of the first file to keep; older files exceed the limit of age or size.

    Args:
        layers: the files, oldest first.
        now_ms: the time, in milliseconds since 1970.
        config: limits of the kept text.
    """
    index, total = len(layers), 0
    while index:
        before = layers[index - 1]
        total += before.num_tokens
        if config.max_tokens and total > config.max_tokens:
            break
        if config.max_days and before.last < oldest_ms(now_ms, config):
            break
        index -= 1
    return index


def _longest_ms(config: FoldConfig) -> float:
    return config.max_days * MS_PER_DAY / SHARE


def oldest_ms(now_ms: int, config: FoldConfig) -> int:
    """Return the lowest id of the rows that the age limit keeps."""
    return now_ms - round(config.max_days * MS_PER_DAY) if config.max_days else 0
