"""What accepted text taught: for every tenant a memory that its later sequences draft from.

A tenant's memory holds its own text and nothing of others. Only how far kinds of evidence can be trusted, a few
thousand rates, is shared by all.
"""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from weakref import WeakValueDictionary

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph._core import Calibration, LearnedMemory, TargetRows
from speculant_graph.draft.calibration import load_calibration, save_calibration
from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.draft.target_rows import load_rows, save_rows
from speculant_graph.errors import ConfigError

_CALIBRATION = "calibration"
_ROWS_INTERVAL_S = 30.0
"""Rows are a few megabytes for each tenant and change with every token, so they are brought to disk less often."""


class Memory:
    """What one tenant's sequences accepted, newest first to be found."""

    def __init__(self, tenant: str, max_tokens: int) -> None:
        """Make an empty memory of at most so many tokens."""
        self.tenant = tenant
        self.core = LearnedMemory(max_tokens)
        self.rows_saved_s = -math.inf
        """When its rows were last brought to disk."""


class LearnedStore:
    """The memories of all tenants, on disk too if there is a log. Safe to use from several threads."""

    def __init__(self, max_tokens: int, log: LearnedLog | None = None, max_tenants: int = 64) -> None:
        """Make a store.

        Args:
            max_tokens: most tokens kept of a tenant, the oldest out first; 0 keeps none.
            log: where they are kept between processes; None keeps them in memory alone. The store does not close it.
            max_tenants: tenants whose memory stays when no sequence uses it. Of more, the one longest out of use
                leaves; if there is a log, its text comes back from there.

        Raises:
            ConfigError: the number of tokens is negative, or there is no room for a tenant.
        """
        if max_tokens < 0:
            raise ConfigError(f"a store can't keep {max_tokens} tokens; give 0 or more")
        if max_tenants < 1:
            raise ConfigError(f"a store can't keep {max_tenants} tenants; give 1 or more")
        self._max_tokens = max_tokens
        self._max_tenants = max_tenants
        self._log = log
        self._lock = threading.Lock()
        # Sequences hold theirs: a tenant never has two memories.
        self._in_use: WeakValueDictionary[str, Memory] = WeakValueDictionary()
        self._latest: OrderedDict[str, Memory] = OrderedDict()
        self._saved_tables = b""

    @property
    def num_tokens(self) -> int:
        """Tokens of all tenants that are in memory."""
        with self._lock:
            return sum(min(len(memory.core), self._max_tokens) for memory in self._in_use.values())

    @property
    def is_failing(self) -> bool:
        """Whether what was learned can't be brought to disk at present."""
        return self._log is not None and self._log.is_failing

    def has_in_memory(self, tenant: str) -> bool:
        """Return whether :meth:`memory` needs no disk."""
        return self._log is None or tenant in self._in_use

    def memory(self, tenant: str) -> Memory:
        """Return a tenant's memory, read from disk if it is not there, which takes 0.1 seconds for a million tokens.

        Raises:
            ConfigError: the log is closed.
        """
        with self._lock:
            memory = self._in_use.get(tenant)
            if memory is None:
                memory = Memory(tenant, self._max_tokens)
                if self._log is not None and self._max_tokens:
                    for document in self._log.load(tenant):
                        memory.core.add(np.asarray(document, np.int64))
                    memory.core.rows = self._load_rows(tenant)
                self._in_use[tenant] = memory
            self._latest[tenant] = memory
            self._latest.move_to_end(tenant)
            if len(self._latest) > self._max_tenants:
                self._latest.popitem(last=False)
            return memory

    def keep(self, memory: Memory, token_ids: NDArray[np.int32]) -> None:
        """Write what a memory has learned to the log, if there is one."""
        if self._log is None or not token_ids.size or memory.core.is_forgotten:
            return
        if self._log.is_closed:
            logger.warning("a sequence ended after the log was closed, and is not kept; close sequences first")
            return
        for document in np.split(token_ids, np.flatnonzero(token_ids < 0)):  # what is no token parts documents
            self._log.append(memory.tenant, document[document >= 0].astype(np.int64))

    def forget(self, tenant: str) -> None:
        """Forget everything of a tenant, on disk too.

        Open sequences keep what they hold until they end, and leave nothing behind.
        """
        with self._lock:
            memory = self._in_use.pop(tenant, None)
            self._latest.pop(tenant, None)
            if memory is not None:
                memory.core.is_forgotten = True
            if self._log is not None:
                self._log.forget(tenant)

    def _load_rows(self, tenant: str) -> TargetRows:
        saved = None if self._log is None else self._log.load_state(tenant, kind="rows")
        try:
            return TargetRows() if saved is None else load_rows(saved)
        except ConfigError as error:
            logger.warning("{}", error)
            return TargetRows()

    def _save_rows(self, memory: Memory) -> None:
        if self._log is None or self._log.is_closed or not (self._max_tokens and memory.core.rows.is_changed):
            return
        memory.rows_saved_s = time.monotonic()
        self._log.save_state(memory.tenant, save_rows(memory.core.rows), kind="rows")
        if memory.core.is_forgotten:  # meanwhile
            self._log.forget(memory.tenant)

    def load_calibration(self) -> Calibration | None:
        """Return the tables that :meth:`save` kept, if any."""
        saved = None if self._log is None else self._log.load_state(_CALIBRATION)
        if saved is None:
            return None
        try:
            return load_calibration(saved)
        except ConfigError as error:
            logger.warning("{}", error)
            return None

    def save(self, calibration: Calibration, *, is_routine: bool = False) -> None:
        """Bring everything to disk, the tables included; of a save that is routine, rows only now and then."""
        if self._log is None:
            return
        with self._lock:
            memories = list(self._in_use.values())
        latest_s = time.monotonic() - (_ROWS_INTERVAL_S if is_routine else 0.0)
        for memory in memories:
            if memory.rows_saved_s <= latest_s and not memory.core.is_forgotten:
                self._save_rows(memory)
        tables = save_calibration(calibration)
        # Whoever serves calls this every few seconds, in quiet times too.
        if tables != self._saved_tables and self._log.save_state(_CALIBRATION, tables):
            self._saved_tables = tables
        self._log.save()
