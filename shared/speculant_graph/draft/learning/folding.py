"""Starts folds, publishes their graph files, removes the covered texts and files, and enforces age and size limits.

Everything runs in the thread that owns the folder, except the fold itself (:mod:`.fold_process`). The docstring of
:mod:`.layers` explains the invariants of files and rows.
"""

from __future__ import annotations

import shutil
import sqlite3
import time
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from weakref import WeakValueDictionary

from loguru import logger

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning import fold_process
from speculant_graph.draft.learning.database import Database, write_documents
from speculant_graph.draft.learning.fold_process import DAMAGED, Fold, FoldJob
from speculant_graph.draft.learning.layers import (
    HIDDEN,
    Layer,
    close_in_time,
    find_layers,
    folder_of,
    kept_from,
    merge_from,
    name_of,
    oldest_ms,
)
from speculant_graph.errors import GraphFileError, SpeculantError
from speculant_graph.files import sync
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint

RETRY_S = 60.0
"""Minimum seconds from a failed fold to the tenant's next fold."""


class Folding:
    """Manages the graph files of all tenants of a folder; used only by the thread that owns the folder."""

    def __init__(
        self,
        learned: Path,
        tokenizer: Fingerprint,
        config: FoldConfig,
        database_of: Callable[[str], Database],
        put: Callable[[Callable[[], None]], None],
        *,
        on_graphs: Callable[[str, tuple[NgramGraph, ...]], None],
        on_fold: Callable[[float, bool], None],
    ) -> None:
        """Set up folding without reading the folder.

        Args:
            learned: the folder.
            tokenizer: the tokenizer of the ids.
            config: when to fold, and how much to keep.
            database_of: returns the open database of a tenant by the name of its files.
            put: queues work for the owning thread; does nothing once the folder is closed.
            on_graphs: called with a tenant's name and its graphs, oldest first, by :meth:`announce` and when they have
                changed.
            on_fold: called with the duration of a finished fold in seconds, and whether it succeeded.
        """
        self._learned, self._tokenizer, self._config = learned, tokenizer, config
        self._database_of, self._put = database_of, put
        self._on_graphs, self._on_fold = on_graphs, on_fold
        self._layers: dict[str, tuple[Layer, ...]] = {}
        self._graphs: WeakValueDictionary[Path, NgramGraph] = WeakValueDictionary()  # each file is mapped once
        self._wanted: OrderedDict[str, None] = OrderedDict()
        self._retry_s: dict[str, float] = {}
        self._fold: Fold | None = None

    def open(self, name: str) -> int:
        """Read a tenant's graph files, and remove each file that another file covers.

        Returns:
            The highest row id in use; new rows must have higher ids.

        Raises:
            OSError: the folder can't be read or written.
        """
        folder = folder_of(self._learned, name)
        found = find_layers(folder)
        for path, error in found.damaged:
            self._set_aside(path, error)
        for path in found.covered:
            path.unlink()
        for path in folder.glob(f"{HIDDEN}*"):
            if self._fold is None or path != self._fold.folder:
                shutil.rmtree(path, ignore_errors=True)
        self._layers[name] = found.layers
        under_way = self._fold.last if self._fold is not None and self._fold.name == name else 0
        return max([under_way, *(layer.last for layer in found.layers)])

    def settle(self, name: str, database: Database) -> None:
        """Remove the rows that graph files cover, and rows and files beyond the limits of age and size.

        Raises:
            sqlite3.Error: the database fails.
            OSError: a file can't be removed.
        """
        layers = self._layers[name]
        ranges = [layer.ids for layer in layers]
        if self._config.enabled:
            now_ms = time.time_ns() // 1_000_000
            if self._config.max_days:
                ranges.append((0, oldest_ms(now_ms, self._config) - 1))
            kept = kept_from(layers, now_ms, self._config)
            if kept:
                self._change(name, layers[kept:])
        if ranges:
            database.remove(ranges)

    @property
    def is_busy(self) -> bool:
        """Whether a fold is running or due."""
        return self._fold is not None or bool(self._wanted)

    def close(self, name: str) -> None:
        """Drop the list of a tenant's files from memory; a running fold continues."""
        self._layers.pop(name, None)

    def announce(self, name: str) -> None:
        """Call ``on_graphs`` with the graphs of a tenant whose database is open.

        Raises:
            OSError: a damaged file can't be renamed.
        """
        layers, graphs = [], []
        for layer in self._layers.get(name, ()):
            try:
                graph = self._graphs.get(layer.path)
                if graph is None:
                    graph = self._graphs[layer.path] = NgramGraph.load(layer.path)
            except GraphFileError as error:
                self._set_aside(layer.path, error)
                continue
            layers.append(layer)
            graphs.append(graph)
        if name in self._layers:
            self._layers[name] = tuple(layers)
        self._on_graphs(name, tuple(graphs))

    def added(self, name: str, database: Database) -> None:
        """Schedule a fold of a tenant's text if the database has more than ``young_tokens`` tokens."""
        is_due = self._config.enabled and database.num_tokens > self._config.young_tokens
        if not is_due or time.monotonic() < self._retry_s.get(name, 0.0):
            return
        if self._fold is None or self._fold.name != name:  # the end of a fold checks its tenant again
            self._wanted[name] = None
            self._begin()

    def forget(self, name: str) -> None:
        """Remove a tenant's graph files, and cancel its fold.

        Raises:
            OSError: a file can't be removed.
        """
        self._wanted.pop(name, None)
        self._retry_s.pop(name, None)
        if self._fold is not None and self._fold.name == name:
            fold_process.cancel(self._fold)
            self._fold = None
        folder = folder_of(self._learned, name)
        if folder.is_dir():
            shutil.rmtree(folder)
        self._layers.pop(name, None)
        self._on_graphs(name, ())
        self._begin()

    def end(self) -> None:
        """Cancel the running fold, and start no other."""
        self._wanted.clear()
        if self._fold is not None:
            fold_process.cancel(self._fold)
            shutil.rmtree(self._fold.folder, ignore_errors=True)
            self._fold = None

    def _begin(self) -> None:
        while self._fold is None and self._wanted:
            name, _ = self._wanted.popitem(last=False)
            try:
                self._fold = self._prepared(name)
            except (OSError, sqlite3.Error, SpeculantError) as error:
                self._failed(name, getattr(error, "strerror", None) or str(error))
                continue
            if self._fold is not None:
                fold_process.run(self._fold, self._end_soon)

    def _prepared(self, name: str) -> Fold | None:
        """Write a tenant's oldest text to a new folder, and return its fold; None if there is nothing to fold."""
        database = self._database_of(name)
        # The previous fold may have failed between publishing and removing, so the folder is read again.
        known = self._layers[name]
        self.open(name)
        if self._layers[name] != known:
            self.announce(name)
        self.settle(name, database)
        if database.num_tokens <= self._config.young_tokens:
            return None
        folder = folder_of(self._learned, name)
        folder.mkdir(mode=0o700, exist_ok=True)
        hidden = fold_process.hidden_folder(folder)
        try:
            rows = close_in_time(database.oldest(self._config.young_tokens // 2), self._config)
            with open(hidden / "tokens", "xb", opener=fold_process.open_private) as file:
                ids, num_tokens, num_documents = write_documents(file, rows, self._tokenizer.vocabulary_size)
            if num_tokens:
                layers = self._layers[name]
                older = layers[merge_from(layers, num_tokens, ids[1], self._config) :]
                paths = tuple(str(layer.path) for layer in older)
                job = FoldJob(str(hidden), num_documents, self._tokenizer, paths)
                return Fold(name, job, *ids, num_tokens, older)
            database.remove([ids])  # all of them are empty or damaged
        except BaseException:
            shutil.rmtree(hidden, ignore_errors=True)
            raise
        shutil.rmtree(hidden, ignore_errors=True)
        return None

    def _end_soon(self, fold: Fold, status: int, seconds: float) -> None:
        self._put(lambda: self._end(fold, status, seconds))

    def _end(self, fold: Fold, status: int, seconds: float) -> None:
        """Publish the graph of a finished fold, or log why there is none."""
        if fold is not self._fold:
            return  # cancelled just after its process had ended
        try:
            if status == 0:
                self._publish(fold)
            else:
                if status == DAMAGED:
                    self._remove_damaged(fold)
                self._failed(fold.name, fold_process.complaint(fold, status))
        except (OSError, sqlite3.Error, SpeculantError) as error:
            status = 1
            self._failed(fold.name, getattr(error, "strerror", None) or str(error))
        finally:
            self._fold = None
            shutil.rmtree(fold.folder, ignore_errors=True)
        if status == 0:
            logger.info("folded {:,} learned tokens of a tenant into a graph in {:.1f} s", fold.num_tokens, seconds)
            self._retry_s.pop(fold.name, None)
            self._wanted[fold.name] = None  # more text may have come meanwhile
        self._on_fold(seconds, status == 0)
        self._begin()

    def _publish(self, fold: Fold) -> None:
        first = fold.older[0].first if fold.older else fold.first
        path = folder_of(self._learned, fold.name) / name_of(first, fold.last)
        database = self._database_of(fold.name)
        fold.job.graph.replace(path)
        sync(path.parent)
        sync(path.parent.parent)  # a tenant's first file creates its folder
        layer = Layer.read(path)
        assert layer is not None
        kept = [each for each in self._layers[fold.name] if each.last < first]
        self._change(fold.name, (*kept, layer))
        self.settle(fold.name, database)

    def _change(self, name: str, layers: tuple[Layer, ...]) -> None:
        """Replace a tenant's files, announce the change, and remove the old files."""
        gone = {layer.path for layer in self._layers[name]} - {layer.path for layer in layers}
        self._layers[name] = layers
        self.announce(name)
        for path in gone:
            path.unlink(missing_ok=True)

    def _remove_damaged(self, fold: Fold) -> None:
        path = Path(fold.job.damaged.read_text(encoding="utf-8", errors="surrogateescape"))
        self._set_aside(path, GraphFileError(fold_process.complaint(fold, DAMAGED)))
        if fold.name in self._layers:
            self._change(fold.name, tuple(each for each in self._layers[fold.name] if each.path != path))

    def _set_aside(self, path: Path, error: GraphFileError) -> None:
        aside = path.with_suffix(".damaged")
        path.replace(aside)
        logger.warning("{}: it is ignored, and {} may be removed", error.message, aside)

    def _failed(self, name: str, reason: str) -> None:
        if name not in self._retry_s:  # only the first failure of several in a row
            logger.warning("{}: learned text is not folded ({}); it stays as it is", self._learned, reason)
        self._retry_s[name] = time.monotonic() + RETRY_S
