"""Loads the served graphs by name, and replaces them on a reload without failing a drafting step.

A session keeps the graph generation that it was opened with; sessions opened after a reload get the new generation.
Graphs are loaded in threads. Long drafting steps also run in threads, so a thread may look up a graph.

Graph names joined by '+' are layers: a session drafts from all of these graphs, each a separate source of drafts.
Accepted tokens of a session with layers go into the learned store of the first graph. The drafter for a combination of
layers is made when a session first asks for that combination.
"""

from __future__ import annotations

import asyncio
import itertools
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from loguru import logger

from speculant_graph.config import DraftConfig, FoldConfig, ServerConfig
from speculant_graph.corpus.storage import address_of
from speculant_graph.draft.learning.learned_files import NO_FOLDS
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import (
    ConfigError,
    DraftRequestError,
    GraphFileError,
    SpeculantError,
    TokenizerMismatchError,
    UnavailableError,
    UnknownGraphError,
)
from speculant_graph.graph.layers import require_few
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.graph.remote import local_graph
from speculant_graph.rpc import convert
from speculant_graph.rpc.step_messages import public_name
from speculant_graph.serving.process import in_uninterruptible_thread
from speculant_graph.types import Fingerprint

MOST_LAYERED = 64
"""Maximum number of cached drafters for combinations of layers; the least recently used is dropped. Each cached drafter
takes about 4 MB of memory."""
_LAYERS = "+"
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,63}")


@dataclass(eq=False, slots=True)
class ServedGraph:
    """One generation of a graph or of a combination of layers; each load makes a new one."""

    name: str
    """Name in requests."""
    generation: int
    """Serial number of this generation among all generations that the process has made."""
    path: Path
    """Path or address of the graph file."""
    file_bytes: int
    """Size of the graph file, in bytes."""
    graph: NgramGraph
    """The loaded graph."""
    drafter: SessionDrafter
    """Drafter that makes the drafts from this graph."""
    tokenizer: Fingerprint
    """Fingerprint of the tokenizer of the graph's token ids."""
    layers: tuple[ServedGraph, ...] = ()
    """The served generations of the combined graphs, if this is a combination of layers; otherwise empty."""
    num_sessions: int = 0
    """Number of sessions that draft from this graph, directly or as a layer."""

    def count(self, sessions: int) -> None:
        """Add to the number of open sessions; a negative number subtracts sessions that have ended."""
        for each in (self, *self.layers):
            each.num_sessions += sessions


def loading() -> UnavailableError:
    """Return the error for requests that arrive before the graphs are loaded."""
    return UnavailableError("graphs are being loaded", fix="try again in a moment")


class GraphRegistry:
    """All served graphs.

    Any thread may iterate, or call :meth:`get` and :meth:`names_of`; use everything else only on the event loop.
    """

    def __init__(
        self,
        config: ServerConfig,
        draft: DraftConfig,
        fold: FoldConfig = NO_FOLDS,
        on_fold: Callable[[float, bool], None] = lambda _seconds, _is_done: None,
    ) -> None:
        """Make a registry without graphs; requests get UNAVAILABLE until :meth:`load_configured` has finished.

        Args:
            config: server settings with the graphs' files and the folder of learned text.
            draft: draft settings.
            fold: whether and when learned text is folded into graphs.
            on_fold: see :class:`~speculant_graph.draft.learning.learned_store.LearnedStore`.

        Raises:
            ConfigError: a graph's name is invalid or not unique.
        """
        self._fold, self._on_fold = fold, on_fold
        self._config = config
        self._draft = draft
        self._configured = {_name_of(config.graph): config.graph, **config.graphs}
        self._served: dict[str, ServedGraph] = {}
        self._layered: OrderedDict[str, ServedGraph] = OrderedDict()
        self._layering = threading.Lock()  # long steps, which run in threads, may request layers, too
        self._learned: dict[str, LearnedStore] = {}
        self._generations = itertools.count(1)
        self._changing = asyncio.Lock()
        self.default = _name_of(config.graph)
        """Name of the default graph."""
        self.is_ready = False
        """Whether all configured graphs are loaded."""
        if self.default in config.graphs:
            raise ConfigError(f"two graphs are named {self.default}; rename the one in server.graphs")
        for setting, layers in self._defaults():
            names = layers.split(_LAYERS) if layers else []
            try:
                require_few(names)
            except ConfigError as error:
                raise ConfigError(f"{{field}}: {error.message}", fix=error.fix, field=setting) from None
            for name in names:
                if name not in self._configured:
                    raise ConfigError(
                        f"{{field}} names {name or 'a graph without a name'}, which is not served",
                        fix=f"choose from {', '.join(self._configured)}",
                        field=setting,
                    )
        for name in config.graphs:
            if not _NAME.fullmatch(name):
                raise ConfigError(
                    f"{name!r} can't name a graph: names are 1 to 64 letters, digits, dots, dashes and underscores, "
                    "and don't begin with a dot; choose another in server.graphs"
                )

    def __iter__(self) -> Iterator[ServedGraph]:
        """Iterate over the served graphs."""
        return iter(list(self._served.values()))

    def get(self, name: str) -> ServedGraph:
        """Return a graph, or several graphs as layers; an empty name means the default graph.

        Raises:
            UnavailableError: graphs are still being loaded.
            UnknownGraphError: no graph has this name.
            DraftRequestError: a layer is named twice, or there are too many layers.
        """
        names, layers = self.names_of(name), []
        for each in names:
            graph = self._served.get(each)
            if graph is None and not self.is_ready:
                raise loading()
            if graph is None:
                unknown = f"graph {each}" if _NAME.fullmatch(each) else "graph of this name"
                raise UnknownGraphError(f"no {unknown} is served; leave the name empty, or list the graphs")
            layers.append(graph)
        return layers[0] if len(layers) == 1 else self._of_layers(_LAYERS.join(names), tuple(layers))

    def names_of(self, name: str) -> list[str]:
        """Return the graph names that a requested name contains, whether or not these graphs are served."""
        return (name or self._config.default or self.default).split(_LAYERS)

    def _defaults(self) -> Iterator[tuple[str, str]]:
        """Yield the settings that name default graphs, with their values."""
        yield "server.default", self._config.default
        for tenant, layers in self._config.tenant_graphs.items():
            yield f"server.tenant_graphs.{tenant}", layers

    def default_of(self, tenant: str) -> str:
        """Return the names of a tenant's default graphs; an empty text means the server's default."""
        return self._config.tenant_graphs.get(tenant, "")

    def _of_layers(self, name: str, layers: tuple[ServedGraph, ...]) -> ServedGraph:
        with self._layering:
            known = self._layered.get(name)
            if known is None or known.layers != layers:  # a layer was replaced
                known = self._made_of(name, layers, known)
                self._layered[name] = known
            self._layered.move_to_end(name)
            if len(self._layered) > MOST_LAYERED:
                self._layered.popitem(last=False)
            return known

    def _made_of(self, name: str, layers: tuple[ServedGraph, ...], old: ServedGraph | None) -> ServedGraph:
        try:
            drafter = SessionDrafter(
                [each.graph for each in layers],
                self._draft,
                learned=self._learned[layers[0].name],
                calibration=None if old is None else old.drafter.calibration,
                read_options=convert.decode_options,
            )
        except (ConfigError, TokenizerMismatchError) as error:
            raise error.as_class(DraftRequestError) from error
        first = layers[0]
        return replace(
            first, name=name, generation=next(self._generations), drafter=drafter, layers=layers, num_sessions=0
        )

    @property
    def configured_names(self) -> list[str]:
        """Names of the configured graphs, whether loaded or not."""
        return [self.default, *self._config.graphs]

    async def open_configured(self) -> list[Fingerprint]:
        """Open and close the configured graphs, so that a wrong path is reported before any slow work.

        Returns:
            Fingerprints of the graphs' tokenizers.

        Raises:
            GraphError: a graph can't be opened.
        """
        files = [await asyncio.to_thread(local_graph, path) for path in self._configured.values()]
        graphs = [await asyncio.to_thread(NgramGraph.load, file) for file in files]
        return [graph.metadata.tokenizer for graph in graphs]

    async def load_configured(self) -> None:
        """Load the configured graphs.

        Raises:
            GraphError: a graph can't be loaded.
            ConfigError: learned text can't be read.
        """
        for name, path in self._configured.items():
            await self._load(name, path)
        for setting, layers in self._defaults():
            try:
                self.get(layers)
            except DraftRequestError as error:
                raise ConfigError(f"{{field}}: {error.message}", fix=error.fix, field=setting) from error
        self.is_ready = True

    async def reload(self, name: str) -> ServedGraph:
        """Load a graph's file again, and replace the served generation.

        Raises:
            UnknownGraphError: no graph has this name.
            TokenizerMismatchError: the new file was built with another tokenizer.
            GraphError: the file can't be loaded; the old generation stays in service.
        """
        async with self._changing:
            old = self.get(name or self.default)
            if old.layers:
                raise UnknownGraphError("these are several graphs", fix="reload them one by one")
            return await self._load(old.name, old.path, old)

    async def reload_all(self) -> None:
        """Load the files of all graphs again; a failure is logged, and the old generation stays in service."""
        for served in self:
            try:
                await self.reload(served.name)
            except SpeculantError as error:
                logger.error("graph {} is not reloaded: {}", served.name, error)

    async def save(self, *, is_routine: bool = False) -> None:
        """Save learned text to disk; a routine save may postpone large writes."""
        for served in self:
            await asyncio.to_thread(served.drafter.save, is_routine=is_routine)

    @property
    def learned_tokens(self) -> int:
        """Number of learned tokens in memory, over all tenants."""
        return sum(store.num_tokens for store in list(self._learned.values()))

    @property
    def is_failing_to_learn(self) -> bool:
        """Whether learned text currently can't be saved to disk."""
        return any(store.is_failing for store in list(self._learned.values()))

    async def close(self) -> None:
        """Save all learned text to disk, and close the stores that hold it."""
        await self.save()
        for store in self._learned.values():
            await asyncio.to_thread(store.close)

    async def _load(self, name: str, path: Path, old: ServedGraph | None = None) -> ServedGraph:
        path = path if address_of(path) else path.absolute()
        graph, file_bytes = await in_uninterruptible_thread(lambda: _read_graph(path))
        tokenizer = graph.metadata.tokenizer
        if old is not None and old.tokenizer.sha256 != tokenizer.sha256:
            raise TokenizerMismatchError(
                f"{path.name} has tokenizer {tokenizer.name}, but graph {name} has {old.tokenizer.name}; build it "
                "with the same tokenizer, or restart the sidecar"
            )
        if name not in self._learned:
            folder = None if self._config.learned is None else self._config.learned / name
            limit = self._draft.max_learned_tokens
            # Registered at once, so that close() releases its folder even if a later step fails.
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
        logger.info("graph {} is served from {}, generation {}", name, address_of(path) or path, served.generation)
        return served


def _read_graph(path: Path) -> tuple[NgramGraph, int]:
    # Verification reads the whole file, so that no draft waits for the disk later.
    file = local_graph(path)
    graph = NgramGraph.load(file, verify=True)
    try:
        return graph, file.stat().st_size
    except OSError as error:
        raise GraphFileError(f"{path} disappeared while it was read; put it back") from error


def _name_of(path: Path) -> str:
    name = re.sub(r"[^A-Za-z0-9._-]", "-", path.stem).lstrip(".")[:64]
    return name or "default"
