"""Keeps a drafter session for each sequence that an engine decodes.

Each draft is cut to the nodes that are worth their verification cost.

``native/rows.hpp`` describes how rows are matched to sequences.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from loguru import logger

from speculant_graph._core import Batch, RowDrafts, RowTracker
from speculant_graph.budget import NeuralChoice, PassCost, StepBudget
from speculant_graph.engines.unread import UnreadText
from speculant_graph.errors import SpeculantError
from speculant_graph.types import (
    DEFAULT_OPTIONS,
    MAX_TENANT_CHARACTERS,
    DrafterState,
    DrafterStatistics,
    DraftOptions,
    RowDrafter,
    SessionOptions,
)

_NUM_TIMES_KEPT = 10_000
_MOST_WARNINGS = 20
"""Maximum number of different warnings about requests that are logged."""
_PREFIX = "speculant_"
TENANT, GRAPHS = f"{_PREFIX}tenant", f"{_PREFIX}graphs"
"""Keys of the tenant and the graphs in a request's extra arguments; graphs are named as in ``client.graph``."""
_LONGEST_REST = 32
"""Maximum number of consecutive steps that only match rows to sequences. After this many steps, the next step also
checks the budget and the unread text."""
_SHORTEST_S = 1e-6
"""Lower bound on the duration of a forward pass, in seconds; no real pass is shorter."""
_WITHOUT_NEURAL = DraftOptions(omit_neural=True)


@dataclass(slots=True)
class EngineCounts:
    """Counts of an engine's drafting steps, sequences and tokens since the engine started."""

    sequences: int = 0
    """Number of sequences begun; a sequence that was preempted and resumed counts again."""
    running: int = 0
    """Number of sequences in the latest batch."""
    drafted_steps: int = 0
    """Number of batches for which drafts were requested."""
    neural_steps: int = 0
    """Number of drafted batches that were allowed to use the graph's neural model and the mixer. Drafts use the model
    and the mixer only while the gain exceeds the cost."""
    offered_tokens: int = 0
    """Number of drafted tokens passed to the engine."""
    failed_steps: int = 0
    """Number of errors: batches that got no drafts, and sequences that could not be closed. Failures of a sidecar are
    counted by the sidecar's client instead."""
    seconds: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_TIMES_KEPT), repr=False)
    """Drafting time of each of the latest batches, in seconds."""


@dataclass(slots=True)
class _Pass:
    """A forward pass and the drafting before it."""

    num_rows: int
    num_nodes: int = 0
    num_drafted: int | None = None
    """Number of nodes drafted for this pass; None if no draft was requested."""
    draft_s: float = 0.0
    began_s: float = 0.0
    is_neural: bool = False

    def note(self, budget: StepBudget, num_new: int, ended_s: float) -> None:
        """Report the time and tokens of the finished pass to the budget."""
        pass_s, num_tokens = max(_SHORTEST_S, ended_s - self.began_s), self.num_rows + self.num_nodes
        if self.num_drafted is None:
            budget.observe_plain(self.num_rows, pass_s)
        else:
            budget.observe(self.num_rows, num_tokens, num_new, pass_s, self.draft_s, self.num_drafted)


class EngineSessions:
    """Drafts for the rows of an engine's batch, at every step.

    No method that the engine calls while it decodes raises an error.

    One object serves one engine, which calls it between two forward passes. Several threads may use one object, but
    each drafting call ends all sequences that it does not name.
    """

    def __init__(
        self,
        drafter: RowDrafter,
        *,
        most_drafted: int,
        vocabulary_size: int,
        cost: PassCost | None = None,
        has_neural: bool = False,
    ) -> None:
        """Wrap a drafter; :meth:`close` closes it, too.

        Args:
            drafter: source of drafts.
            most_drafted: maximum number of drafted tokens that the engine verifies per sequence.
            vocabulary_size: vocabulary size of the model; if a drafted id is outside the vocabulary, the step gets no
                drafts.
            cost: cost of the engine's passes, by which drafts are cut; None keeps whole drafts.
            has_neural: whether drafts may use a neural model and the mixer; they do so only while the gain exceeds the
                cost.
        """
        self.counts = EngineCounts()
        """Counts of this engine's drafts so far."""
        self._drafter, self._most, self._vocabulary_size = drafter, most_drafted, vocabulary_size
        self._budget = None if cost is None else StepBudget(cost, is_cost_known=False)
        self._choice = NeuralChoice() if has_neural else None
        self._tracker = RowTracker(most_drafted + 1)
        self._unread = UnreadText(drafter, self._tracker)
        self._pass: _Pass | None = None  # the running pass
        self._is_after_rest = False  # whether the latest step had no drafts
        self._num_resting = 0  # further steps without drafts, while the same sequences run
        self._rest_s: list[float] = []  # seconds of the passes between these steps
        self._lock = threading.Lock()
        self._is_closed = False
        self._failure = ""  # the error of the latest step that drafted; empty if it succeeded
        self._warned: set[str] = set()

    @property
    def drafter_state(self) -> DrafterState:
        """Whether the drafter answered in the latest batch that requested drafts."""
        return "unavailable" if self._failure else self._drafter.state

    @property
    def drafter_failure(self) -> str:
        """The latest drafting error; empty while drafts arrive."""
        return self._failure or ("" if self.drafter_state == "ok" else self._drafter.statistics.last_failure)

    @property
    def drafter_statistics(self) -> DrafterStatistics:
        """Statistics of the wrapped drafter."""
        return self._drafter.statistics

    def draft(
        self,
        texts: list[Any],
        capacities: list[int],
        *,
        request_ids: Sequence[str] | None = None,
        tenants: Sequence[object] | None = None,
        graphs: Sequence[object] | None = None,
        read_prompts: bool = False,
    ) -> RowDrafts:
        """Draft for all rows of a batch.

        Args:
            texts: all current token ids of every sequence that the next pass decodes. A sequence that is missing from
                ``texts`` has ended. Arrays of 32-bit token ids are read without a copy.
            capacities: maximum number of drafted tokens per row.
            request_ids: request id per row, if the engine provides ids; sequences are then recognised by their ids, not
                by their texts.
            tenants: the tenant of each request, a number or a name; None uses the drafter's setting.
            graphs: the graph of each request, or up to four sidecar graphs joined by '+'; None or an unusable name uses
                the drafter's setting.
            read_prompts: whether the previous pass also read prompts; if it did, its time is not measured.

        Returns:
            One draft per row, in the order of the rows.
        """
        with self._lock:
            started_s = time.perf_counter()
            try:
                if self._is_closed:
                    drafts = no_drafts(len(texts))
                elif self._num_resting and request_ids is None and not read_prompts and self._tracker.follow(texts):
                    drafts = no_drafts(len(texts))
                    self._num_resting -= 1
                    if self._pass is not None:
                        self._rest_s.append(started_s - self._pass.began_s)
                else:
                    drafts = self._draft(texts, capacities, request_ids, tenants, graphs, started_s, read_prompts)
            except Exception as error:  # a drafter may be any code, and decoding must continue
                drafts, self._pass = no_drafts(len(texts)), None
                self._failure = str(error) or repr(error)
                self._warn(error)
            draft_s = time.perf_counter() - started_s
            self.counts.seconds.append(draft_s)
            if self._pass is not None:
                self._pass.draft_s, self._pass.began_s = draft_s, started_s + draft_s
        return drafts

    def names_of(self, extra: object) -> tuple[object, object] | None:
        """Return the tenant and the graphs that a request's extra arguments name; None if they name neither."""
        if not isinstance(extra, dict):
            return None
        for key in extra:
            if str(key).startswith(_PREFIX) and key not in (TENANT, GRAPHS):
                self._warn_once(f"a request has {str(key)[:40]!r}, which is ignored; known are {TENANT} and {GRAPHS}")
        return (extra.get(TENANT), extra.get(GRAPHS)) if TENANT in extra or GRAPHS in extra else None

    def close(self) -> None:
        """End all sequences, so that their accepted tokens are learned, and close the drafter."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            self._end_all()
            self.counts.running, self._pass = 0, None
            self._drafter.close()

    def _draft(
        self,
        texts: list[Any],
        capacities: list[int],
        request_ids: Sequence[str] | None,
        tenants: Sequence[object] | None,
        graphs: Sequence[object] | None,
        started_s: float,
        read_prompts: bool,
    ) -> RowDrafts:
        self._end_rest()
        for values in (capacities, tenants, graphs):
            if values is not None and len(values) != len(texts):
                raise ValueError(
                    f"{len(texts)} texts have {len(values)} capacities, tenants or graphs; give one for each"
                )
        batch = self._tracker.match(texts, request_ids)
        num_rows, former = len(texts), self._pass
        if batch.is_changed:
            self.counts.sequences += len(batch.begun)
            self.counts.running = num_rows
            self._end(batch)
            session_ids = batch.session_ids
            try:
                for row in batch.begun:
                    tenant, graph = (None if each is None else each[row] for each in (tenants, graphs))
                    self._open(session_ids[row], self._options(tenant), None if graph is None else str(graph))
            except Exception:
                self._end_all()  # a row without a session would get no drafts as long as it runs
                raise
        elif former is not None and not read_prompts:
            if self._budget is not None:
                former.note(self._budget, batch.num_new, started_s)
            if self._choice is not None and former.num_drafted is not None:
                pass_s = started_s - former.began_s
                self._choice.observe(num_rows, former.is_neural, former.draft_s, pass_s)
        self._pass = None
        if not num_rows:
            self._finish_kept()
            return no_drafts(0)
        if self._budget is not None and not self._budget.may_draft():
            self._pass, self._is_after_rest = _Pass(num_rows), True
            self._unread.add_steps(1)
            if self._unread.is_due:
                self._finish_kept()
                self._unread.read(batch)
            self._num_resting = min(_LONGEST_REST, max(0, self._budget.num_rest() - 1))
            return no_drafts(num_rows)
        self._finish_kept()
        most = self._most
        budgets = [most if each > most else each for each in capacities]
        prices = None if self._budget is None else self._budget.prices(num_rows, num_rows * most)
        is_neural = self._choice is not None and self._choice.is_neural(num_rows)
        options = DEFAULT_OPTIONS if self._choice is None or is_neural else _WITHOUT_NEURAL
        if self._is_after_rest:
            self._unread.read_prompts(batch)  # the drafter takes a session's first text for its prompt
        drafts = self._drafter.draft_rows(batch, budgets, prices, options)
        self._is_after_rest, self._failure = False, ""
        self._unread.mark_read()
        self.counts.drafted_steps += 1
        self.counts.neural_steps += is_neural
        if drafts.largest_id >= self._vocabulary_size:
            drafts = no_drafts(num_rows)
        self.counts.offered_tokens += drafts.num_nodes
        self._pass = _Pass(num_rows, drafts.num_nodes, drafts.num_drafted, is_neural=is_neural)
        return drafts

    def _end_rest(self) -> None:
        """Report all passes without drafts to the budget at once, because every line of Python slows a step."""
        if self._rest_s and self._budget is not None and self._pass is not None:
            for pass_s in self._rest_s:
                self._budget.observe_plain(self._pass.num_rows, pass_s)
            self._unread.add_steps(len(self._rest_s))
        self._rest_s.clear()
        self._num_resting = 0

    def _open(self, session_id: int, options: SessionOptions | None, graph: str | None) -> None:
        if graph is None:
            self._drafter.open(session_id, options)
            return
        try:
            problem = self._drafter.open(session_id, replace(options or SessionOptions(), graph=graph))
        except SpeculantError as error:
            problem = str(error)
            self._drafter.open(session_id, options)
        if problem:
            self._warn_once(f"a request's graph can't be used: {problem}")

    def _options(self, tenant: object) -> SessionOptions | None:
        """Return a session's options for a request of this tenant.

        If the tenant's name is unusable, the session's text is not learned.
        """
        if tenant is None:
            return None
        name = str(tenant) if isinstance(tenant, str | int) and not isinstance(tenant, bool) else ""
        if 0 < len(name) <= MAX_TENANT_CHARACTERS and name == name.encode("utf-8", "replace").decode():
            return SessionOptions(tenant=name)
        self._warn_once(
            f"not a tenant name: {str(tenant)[:20]!r}; text of such requests is not learned; send a text of 1 to "
            f"{MAX_TENANT_CHARACTERS} characters, or a whole number"
        )
        return SessionOptions(learn=False)

    def _end(self, batch: Batch) -> None:
        """End the sequences that no row continues.

        A sequence with unread text is finished after the drafter has read that text.
        """
        kept = self._unread.keep(batch.unread)
        self._finish([session_id for session_id in batch.ended if session_id not in kept])

    def _end_all(self) -> None:
        """End all sequences. A sequence that the engine still decodes begins a new session at the next step."""
        try:
            self._end(self._tracker.match([], None))
            self._finish_kept()
        except Exception as error:  # a drafter may be any code
            self._warn(error)

    def _finish_kept(self) -> None:
        """Let the drafter read the last tokens of ended sequences, and finish their sessions."""
        rows = self._unread.take_ended()
        if rows:
            try:
                self._unread.read_ended(rows)
            finally:
                self._finish([row.id for row in rows])

    def _finish(self, ended: Sequence[int]) -> None:
        for session_id in ended:
            try:
                self._drafter.finish(session_id)
            except Exception as error:  # the other sequences must still end
                self._warn(error)

    def _warn_once(self, problem: str) -> None:
        if problem not in self._warned and len(self._warned) < _MOST_WARNINGS:
            self._warned.add(problem)
            logger.warning("{}", problem)

    def _warn(self, error: Exception) -> None:
        if not self.counts.failed_steps:
            is_ours = isinstance(error, SpeculantError)
            logger.warning("no drafts, decoding continues without them: {}", error if is_ours else repr(error))
        self.counts.failed_steps += 1


@lru_cache(maxsize=256)
def no_drafts(num_rows: int) -> RowDrafts:
    """Return an empty draft for each row."""
    return RowDrafts([0] * num_rows, [], [], [])
