"""Keeps learned text in memory: each tenant has one memory, from which its later sequences draft.

A tenant's memory has only this tenant's text. If folds are enabled, a memory has the tenant's young text and the graphs
of the older text. Tenants share only the calibration: a few thousand rates that say how reliable each kind of context
is. ``native/calibration.hpp`` and ``native/target_rows.hpp`` define the saved data.
"""

from __future__ import annotations

import io
import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Self, TypeVar
from weakref import WeakValueDictionary

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph._core import ROW_DEPTH, ROW_WIDTH, Calibration, LearnedMemory
from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning.learned_files import NO_FOLDS, LearnedFiles, name_of
from speculant_graph.draft.mixing import first_calibration
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import MAX_VOCABULARY
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.store import release_pages
from speculant_graph.types import Fingerprint

MAX_TENANTS = 64
"""Maximum number of tenants' memories that stay loaded, besides memories in use. Beyond this number, the least recently
used memory is dropped; its text is reloaded from the folder, if there is one."""
_ROWS_INTERVAL_S = 30.0
"""Seconds between routine saves of a tenant's top-token rows (a few megabytes, changed by every token)."""
_IDLE_S = 10.0
"""Seconds without a sequence start or end after which a tenant's mapped graphs leave the resident memory. Mapping all
graph pages of five million tokens again takes under 2 ms in total."""
_FORMAT = 1
_MOST_VISITS = 1.01 / (1.0 - 0.9995)
"""Upper bound of a table row's visit count, because each visit multiplies the weight of earlier visits by at most
0.9995."""

_BINS_WITHOUT_NEURAL, _NUM_RANGES = 81_920, 20
"""Number of calibration bins in releases without neural models, and number of probability ranges."""

_Tables = TypeVar("_Tables")


class Memory:
    """The accepted text of one tenant's sequences; lookups find the newest text first."""

    def __init__(self, tenant: str, max_tokens: int) -> None:
        """Make an empty memory of at most ``max_tokens`` tokens."""
        self.tenant = tenant
        self.core = LearnedMemory(max_tokens)
        self.rows_saved_s = -math.inf
        """Time when the memory's rows of top tokens were last written to disk."""
        self.graphs: tuple[NgramGraph, ...] = ()
        """The graphs of the tenant's older text, newest last. The tuple is the same object until the graphs change."""
        self.used_s = time.monotonic()
        """Time when a sequence last began or ended; infinity if the graphs have left the resident memory since."""

    def take_graphs(self, graphs: tuple[NgramGraph, ...]) -> None:
        """Set the graphs for sequences that start later; running sequences keep theirs."""
        if self.graphs != graphs:
            self.graphs = graphs
            self.core.set_graphs([graph.core for graph in graphs])

    def release_pages_if_idle(self) -> None:
        """Remove the tenant's mapped graphs from the resident memory if no sequence began or ended recently."""
        if time.monotonic() - self.used_s > _IDLE_S:
            self.used_s = math.inf
            for graph in self.graphs:
                release_pages(graph.trie)


class LearnedStore:
    """The memories of all tenants, also on disk if there is a folder; several threads may use a store."""

    def __init__(
        self,
        max_tokens: int,
        folder: str | Path | None = None,
        tokenizer: Fingerprint | None = None,
        fold: FoldConfig = NO_FOLDS,
        *,
        on_fold: Callable[[float, bool], None] = lambda _seconds, _is_done: None,
    ) -> None:
        """Make a store.

        Args:
            max_tokens: maximum number of tokens kept per tenant; the oldest are removed first. 0 keeps none.
            folder: folder that keeps text between processes; only one process at a time may use it. If None, text is
                kept only in memory.
            tokenizer: tokenizer of the token ids; required with a folder.
            fold: whether the oldest text of a tenant becomes graph files in the folder; a memory then has at most
                ``young_tokens`` tokens.
            on_fold: called in a thread of the store with the duration of every finished fold in seconds, and whether it
                succeeded.

        Raises:
            ConfigError: another process uses the folder, or it can't be read or written, or it is of another release.
            TokenizerMismatchError: the folder has text learned with another tokenizer.
        """
        if folder is not None and tokenizer is None:
            raise ConfigError(f"{folder} holds ids of one tokenizer; give its fingerprint")
        self.tokenizer = tokenizer
        """Tokenizer of the token ids; None if it is unknown, which requires that there is no folder."""
        self._max_tokens = max_tokens
        if fold.enabled and folder is not None:
            # Only a fold removes text from memory.
            self._max_tokens = min(max_tokens, fold.young_tokens)
            fold = fold.model_copy(update={"young_tokens": self._max_tokens, "enabled": self._max_tokens > 0})
        self._lock = threading.Lock()
        self._forgetting = threading.Lock()  # held briefly, so that no text of a tenant is written after its removal
        # Sequences hold their memory, so a tenant never has two.
        self._in_use: WeakValueDictionary[str, Memory] = WeakValueDictionary()
        self._naming = threading.Lock()  # held briefly, also by the thread of the files
        self._by_name: WeakValueDictionary[str, Memory] = WeakValueDictionary()
        self._latest: OrderedDict[str, Memory] = OrderedDict()
        self._saved_tables = b""
        self._files: LearnedFiles | None = None
        if folder is not None and tokenizer is not None:
            self._files = LearnedFiles(
                Path(folder), tokenizer, self._max_tokens, fold, on_graphs=self._take_graphs, on_fold=on_fold
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def num_tokens(self) -> int:
        """Number of tokens in memory, summed over all tenants."""
        with self._lock:
            return sum(min(len(memory.core), self._max_tokens) for memory in self._in_use.values())

    @property
    def has_folder(self) -> bool:
        """Whether learned text is kept between processes."""
        return self._files is not None

    @property
    def is_failing(self) -> bool:
        """Whether writing to disk fails at present."""
        return self._files is not None and self._files.is_failing

    def memory(self, tenant: str) -> Memory:
        """Return a tenant's memory; if it is not loaded, reading it from disk takes 0.1 s for a million tokens.

        Raises:
            ConfigError: the store is closed.
        """
        with self._lock:
            memory = self._in_use.get(tenant)
            if memory is None:
                memory = Memory(tenant, self._max_tokens)
                if self._files is not None and self._max_tokens:
                    for token_ids in self._files.load(tenant):
                        memory.core.add(token_ids)
                    rows = self._files.load_state(tenant, "rows")
                    _loaded(partial(load_rows, memory.core), rows)
                    with self._naming:
                        self._by_name[name_of(tenant)] = memory
                    self._files.announce(tenant)
                self._in_use[tenant] = memory
            memory.used_s = time.monotonic()
            self._latest[tenant] = memory
            self._latest.move_to_end(tenant)
            if len(self._latest) > MAX_TENANTS:
                self._latest.popitem(last=False)
            return memory

    def graphs(self, tenant: str) -> tuple[NgramGraph, ...]:
        """Return the graphs of a tenant's older text, newest last; the tuple is the same object until they change.

        Replaced files stay readable while their graphs are held, so a drafter may switch to the new graphs between any
        two steps.

        Raises:
            ConfigError: the store is closed.
        """
        return self.memory(tenant).graphs

    def keep(self, memory: Memory, token_ids: NDArray[np.int32]) -> None:
        """Write a memory's new text to disk, if there is a folder."""
        memory.used_s = time.monotonic()
        if self._files is None or not token_ids.size:
            return
        if self._files.is_closed:
            logger.warning("a sequence ended after the store was closed, and its text is lost; close sequences first")
            return
        with self._forgetting:
            if not memory.core.is_forgotten:
                self._files.append(memory.tenant, token_ids)

    def forget(self, tenant: str) -> bool:
        """Forget all text of a tenant, in memory and on disk; return whether there was any.

        Open sequences keep their memory until they end; then their text is dropped.

        Raises:
            ConfigError: the text can't be removed from the disk, or the store is closed.
        """
        with self._lock:
            memory = self._in_use.pop(tenant, None)
            self._latest.pop(tenant, None)
            had_text = memory is not None
            if memory is not None:
                with self._forgetting:
                    memory.core.is_forgotten = True
            if self._files is not None:
                had_text |= self._files.forget(tenant)
            return had_text

    def load_calibration(self) -> Calibration | None:
        """Return the calibration that :meth:`save` wrote, if any."""
        return None if self._files is None else _loaded(load_calibration, self._files.load_state(None, "calibration"))

    def save(self, calibration: Calibration, *, is_routine: bool = False) -> None:
        """Write all changes and the calibration to disk; a routine save writes top-token rows only occasionally.

        Saving also removes the graphs of idle tenants from the resident memory; see
        :meth:`Memory.release_pages_if_idle`.
        """
        if self._files is None:
            return
        with self._lock:
            memories = list(self._in_use.values())
        latest_s = time.monotonic() - (_ROWS_INTERVAL_S if is_routine else 0.0)
        for memory in memories:
            memory.release_pages_if_idle()
            if memory.rows_saved_s <= latest_s and self._max_tokens and memory.core.take_is_changed():
                memory.rows_saved_s = time.monotonic()
                rows = save_rows(memory.core)
                with self._forgetting:
                    if not memory.core.is_forgotten:
                        self._files.save_state(memory.tenant, "rows", rows)
        tables = save_calibration(calibration)
        # The sidecar calls this every few seconds, also when idle.
        if tables != self._saved_tables:
            self._files.save_state(None, "calibration", tables)
            self._saved_tables = tables
        self._files.save()

    def wait_for_folds(self) -> None:
        """Wait until all due folds are done, so that bench results don't depend on timing."""
        if self._files is not None:
            self._files.wait_for_folds()

    def close(self) -> None:
        """Write everything to disk and release the folder; text of sequences that are still open is lost."""
        if self._files is not None:
            self._files.close()

    def _take_graphs(self, name: str, graphs: tuple[NgramGraph, ...]) -> None:
        # Runs in the thread of the files; :meth:`memory` waits for it while it holds the lock.
        with self._naming:
            memory = self._by_name.get(name)
        if memory is not None:
            memory.take_graphs(graphs)


def _loaded(load: Callable[[bytes], _Tables], saved: bytes | None) -> _Tables | None:
    """Return saved tables, or None if there are none or they are damaged."""
    try:
        return None if saved is None else load(saved)
    except ConfigError as error:
        logger.warning("{}", error)
        return None


def save_calibration(calibration: Calibration) -> bytes:
    """Return the tables of a calibration as bytes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, format=_FORMAT, escapes=calibration.weights, agreements=calibration.bins)
    return buffer.getvalue()


def load_calibration(saved: bytes) -> Calibration:
    """Load calibration tables from the bytes of :func:`save_calibration`.

    Raises:
        ConfigError: the bytes are not calibration tables, or are from another release.
    """
    calibration = first_calibration()
    try:
        with np.load(io.BytesIO(saved), allow_pickle=False) as content:
            if int(content["format"]) != _FORMAT:
                raise ValueError("format")
            tables = content["escapes"], content["agreements"]
            for values in tables:
                visits = values[:, :1]
                # Rounding may raise a sum of probabilities slightly above the visits.
                if not ((visits <= _MOST_VISITS) & (values >= 0) & (values <= visits * (1.0 + 1e-9))).all():
                    raise ValueError("visits")
            weights = np.concatenate([tables[0], calibration.weights[len(tables[0]) :]])  # new kinds come last
            calibration.restore(weights, _widened(tables[1], calibration.bins))
    except Exception as error:
        raise ConfigError("the saved calibration is damaged or of another release; delete it to start over") from error
    return calibration


def _widened(table: NDArray[np.float64], first: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return saved calibration bins; if the previous release saved them, add the missing bins of neural contexts.

    Args:
        table: the saved bins.
        first: this release's initial bins.
    """
    if table.shape == (_BINS_WITHOUT_NEURAL, 3):  # neural contexts come last within each probability range
        missing = first.reshape(_NUM_RANGES, -1, 3)[:, _BINS_WITHOUT_NEURAL // _NUM_RANGES :]
        return np.concatenate([table.reshape(_NUM_RANGES, -1, 3), missing], axis=1).reshape(-1, 3)
    return table


def save_rows(memory: LearnedMemory) -> bytes:
    """Return, as bytes, a memory's rows of the target model's most probable tokens."""
    slots, keys, rows = memory.target_rows()
    buffer = io.BytesIO()
    np.savez(buffer, format=_FORMAT, slots=slots, keys=keys, rows=rows.reshape(-1, ROW_DEPTH * ROW_WIDTH))
    return buffer.getvalue()


def load_rows(memory: LearnedMemory, saved: bytes) -> None:
    """Load rows into a memory from the bytes of :func:`save_rows`.

    Raises:
        ConfigError: the bytes are not saved rows of top tokens, or are from another release.
    """
    try:
        with np.load(io.BytesIO(saved), allow_pickle=False) as content:
            version, slots, keys, rows = (content[name] for name in ("format", "slots", "keys", "rows"))
        if int(version) != _FORMAT or rows.shape != (keys.size, ROW_DEPTH * ROW_WIDTH):
            raise ValueError("format")
        if keys.min(initial=0) < 0 or rows.min(initial=-1) < -1 or rows.max(initial=-1) >= MAX_VOCABULARY:
            raise ValueError("rows")
        memory.restore_target_rows(slots, keys, rows.astype(np.int32).reshape(-1))
    except Exception as error:
        raise ConfigError("the saved target top-k is damaged or of another release; it is learned again") from error
