"""What accepted text taught: for every tenant a memory that its later sequences draft from.

A tenant's memory holds its own text and nothing of others. Only how far kinds of evidence can be trusted, a few
thousand rates, is shared by all.
"""

from __future__ import annotations

import numpy as np
from loguru import logger

from speculant_graph.draft.calibration import Calibration
from speculant_graph.draft.history import LEARNED_CHAINS, SEPARATOR, History, as_tokens
from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.draft.recycled import RecycledRows
from speculant_graph.errors import ConfigError
from speculant_graph.graph.layout import Int64Array

_CALIBRATION = "calibration"


class Memory:
    """What one tenant's sequences accepted, newest first to be found."""

    def __init__(self, max_tokens: int) -> None:
        """Make an empty memory of at most so many tokens."""
        self.history = History(max(1, max_tokens), LEARNED_CHAINS)
        self.recycled = RecycledRows()

    def add(self, token_ids: Int64Array) -> None:
        """Add a text; no match will run across its ends."""
        self.history.append(np.concatenate(([SEPARATOR], token_ids)))


class LearnedStore:
    """The memories of all tenants, on disk too if there is a log."""

    def __init__(self, max_tokens: int, log: LearnedLog | None = None) -> None:
        """Make a store.

        Args:
            max_tokens: most tokens kept of a tenant, the oldest out first; 0 keeps none.
            log: where they are kept between processes; None keeps them in memory alone. The store does not close it.
        """
        self._max_tokens = max_tokens
        self._log = log
        self._memories: dict[str, Memory] = {}

    def memory(self, tenant: str) -> Memory:
        """Return a tenant's memory, read from disk when it is first asked for."""
        memory = self._memories.get(tenant)
        if memory is None:
            memory = self._memories[tenant] = Memory(self._max_tokens)
            if self._log is not None and self._max_tokens:
                for document in self._log.load(tenant):
                    memory.add(as_tokens(document))
        return memory

    def add(self, tenant: str, token_ids: Int64Array) -> None:
        """Learn an accepted text, shape ``[n]``, now and on disk."""
        if not self._max_tokens or not token_ids.size:
            return
        self.memory(tenant).add(token_ids)
        if self._log is not None:
            self._log.append(tenant, token_ids[token_ids >= 0])

    def forget(self, tenant: str) -> None:
        """Forget everything of a tenant, on disk too; open sequences keep what they hold until they end."""
        self._memories.pop(tenant, None)
        if self._log is not None:
            self._log.forget(tenant)

    def load_calibration(self) -> Calibration | None:
        """Return the tables that :meth:`save` kept, if any."""
        saved = None if self._log is None else self._log.load_state(_CALIBRATION)
        if saved is None:
            return None
        try:
            return Calibration.load(saved)
        except ConfigError as error:
            logger.warning("{}", error)
            return None

    def save(self, calibration: Calibration) -> None:
        """Bring everything to disk, the tables included."""
        if self._log is not None:
            self._log.save_state(_CALIBRATION, calibration.save())
            self._log.save()
