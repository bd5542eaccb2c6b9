"""The graphs that are served, by name: loaded, and replaced without a step that fails.

A graph that is replaced answers the sessions that were opened on it until they end; new ones get its successor. Loading
happens in threads, everything else on the event loop.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loguru import logger

from speculant_graph.config import DraftConfig, FoldConfig, ServerConfig
from speculant_graph.draft.learning.learned_files import NO_FOLDS
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import (
    ConfigError,
    GraphFileError,
    SpeculantError,
    TokenizerMismatchError,
    UnavailableError,
    UnknownGraphError,
)
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.rpc import convert
from speculant_graph.rpc.step_messages import public_name
from speculant_graph.serving.process import in_uninterruptible_thread
from speculant_graph.types import Fingerprint

_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(eq=False, slots=True)
class ServedGraph:
    """One generation of a graph."""

    name: str
    """Its name in requests."""
    generation: int
    """Number of its loading, in this process."""
    path: Path
    """Its file."""
    file_bytes: int
    """Size of the file."""
    graph: NgramGraph
    """What it holds."""
    drafter: SessionDrafter
    """What drafts from it."""
    tokenizer: Fingerprint
    """The tokenizer that its ids are of."""
    num_sessions: int = 0
    """Sessions that draft from it."""


def loading() -> UnavailableError:
    """Return why nothing is served before the graphs are there."""
    return UnavailableError("graphs are being loaded", fix="try again in a moment")


class GraphRegistry:
    """All that is served. Used on the event loop alone."""

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        fold: FoldConfig = NO_FOLDS,
        on_fold: Callable[[float, bool], None] = lambda _seconds, _is_done: None,
    ) -> None:
        """Make a registry without graphs; requests are answered UNAVAILABLE until :meth:`load_configured` is done.

        Args:
            config: the graphs, and the folder of learned text.
            draft: how to draft.
            fold: whether and when learned text becomes graphs.
            on_fold: see :class:`~speculant_graph.draft.learning.learned_store.LearnedStore`.

        Raises:
            ConfigError: a graph's name is none, or taken, or folds are wanted without a folder.
        """
        if fold.enabled and config.learned is None:
            raise ConfigError(
                "{field} is on, and there is no folder for learned text",
                fix="set server.learned",
                field="fold.enabled",
            )
        self._fold, self._on_fold = fold, on_fold
        self._config = config
        self._draft = draft
        self._configured = {_name_of(config.graph): config.graph, **config.graphs}
        self._served: dict[str, ServedGraph] = {}
        self._learned: dict[str, LearnedStore] = {}
        self._generations = itertools.count(1)
        self._changing = asyncio.Lock()
        self.default = _name_of(config.graph)
        """Name of the default graph."""
        self.is_ready = False
        """Whether all configured graphs are loaded."""
        if self.default in config.graphs:
            raise ConfigError(f"two graphs are named {self.default}; rename the one in server.graphs")
        for name in config.graphs:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} is no name for a graph: 1 to 64 letters, digits, dots, dashes and underscores, no dot "
                    "first; choose another in server.graphs"
                )

    def __iter__(self) -> Iterator[ServedGraph]:
        """Iterate over what is served."""
        return iter(list(self._served.values()))

    def get(self, name: str) -> ServedGraph:
        """Return a graph; the default one for an empty name.

        Raises:
            UnavailableError: graphs are still being loaded.
            UnknownGraphError: there is none of this name.
        """
        served = self._served.get(name or self.default)
        if served is not None:
            return served
        if not self.is_ready:
            raise loading()
        raise UnknownGraphError("no graph of this name is served; leave the name empty, or ask which there are")

    @property
    def configured_names(self) -> list[str]:
        """Names of the graphs of the settings, loaded or not."""
        return [self.default, *self._config.graphs]

    async def open_configured(self) -> list[Fingerprint]:
        """Open the graphs of the settings and let them go: what is wrong with a path is known before any long work.

        Returns:
            Their tokenizers.

        Raises:
            GraphError: one can't be opened.
        """
        graphs = [await asyncio.to_thread(NgramGraph.load, path.absolute()) for path in self._configured.values()]
        return [graph.metadata.tokenizer for graph in graphs]

    async def load_configured(self) -> None:
        """Load the graphs of the settings.

        Raises:
            GraphError: one can't be loaded.
            ConfigError: what was learned can't be read.
        """
        for name, path in self._configured.items():
            await self._load(name, path)
        self.is_ready = True

    async def reload(self, name: str) -> ServedGraph:
        """Replace a graph by what its file holds now.

        Raises:
            UnknownGraphError: there is none of this name.
            TokenizerMismatchError: the new one is of another tokenizer.
            GraphError: it can't be loaded; the old one is served on.
        """
        async with self._changing:
            old = self.get(name)
            return await self._load(old.name, old.path, old)

    async def reload_all(self) -> None:
        """Replace all graphs by what their files hold now; what can't be loaded is logged and stays as it is."""
        for served in self:
            try:
                await self.reload(served.name)
            except SpeculantError as error:
                logger.error("graph {} is not reloaded: {}", served.name, error)

    async def save(self, *, is_routine: bool = False) -> None:
        """Bring what was learned to disk; what is large may wait where this is routine."""
        for served in self:
            await asyncio.to_thread(served.drafter.save, is_routine=is_routine)

    @property
    def learned_tokens(self) -> int:
        """Tokens of all tenants in memory."""
        return sum(store.num_tokens for store in list(self._learned.values()))

    @property
    def is_failing_to_learn(self) -> bool:
        """Whether what was learned can't be brought to disk at present."""
        return any(store.is_failing for store in list(self._learned.values()))

    async def close(self) -> None:
        """Bring what was learned to disk and let go of it."""
        await self.save()
        for store in self._learned.values():
            await asyncio.to_thread(store.close)

    async def _load(self, name: str, path: Path, old: ServedGraph | None = None) -> ServedGraph:
        path = path.absolute()
        graph, file_bytes = await in_uninterruptible_thread(lambda: _read_graph(path))
        tokenizer = graph.metadata.tokenizer
        if old is not None and old.tokenizer.sha256 != tokenizer.sha256:
            raise TokenizerMismatchError(
                f"{path.name} is of tokenizer {tokenizer.name}, graph {name} of {old.tokenizer.name}; build it "
                "with the same tokenizer, or restart the sidecar"
            )
        if name not in self._learned:
            folder = None if self._config.learned is None else self._config.learned / name
            limit = self._draft.max_learned_tokens
            # Kept at once: whatever fails after this, its folder is given back at the end.
            store = partial(LearnedStore, limit, folder, tokenizer, self._fold, on_fold=self._on_fold)
            self._learned[name] = await asyncio.to_thread(store)
        drafter = await in_uninterruptible_thread(
            lambda: SessionDrafter(
                graph,
                self._draft,
                learned=self._learned[name],
                calibration=None if old is None else old.drafter.calibration,
                read_options=convert.decode_options,
            )
        )
        served = ServedGraph(
            name=name,
            generation=next(self._generations),
            path=path,
            file_bytes=file_bytes,
            graph=graph,
            drafter=drafter,
            tokenizer=replace(tokenizer, name=public_name(tokenizer.name)),
        )
        self._served[name] = served
        logger.info("graph {} is served from {}, generation {}", name, path, served.generation)
        return served


def _read_graph(path: Path) -> tuple[NgramGraph, int]:
    # Verifying reads the whole file, so that no draft waits for a disk later.
    graph = NgramGraph.load(path, verify=True)
    try:
        return graph, path.stat().st_size
    except OSError as error:
        raise GraphFileError(f"{path} went away while it was read; put it back") from error


def _name_of(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip(".")[:64]
    return name or "default"
