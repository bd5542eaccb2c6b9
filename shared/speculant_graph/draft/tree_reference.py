"""The slow and obvious form of calibrated drafts that kernels are held against, over lists and dictionaries; for tests.

The rules of ``evidence.py``, ``calibration.py``, ``tree.py`` and ``sequence.py`` without chains, rings, tables of
numbers and heaps: every context is searched for in the whole text. Numbers are added in the order of the kernels, so
that results are equal and not merely close.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from speculant_graph.config import DraftConfig
from speculant_graph.draft.calibration import MAX_CANDIDATES, SMALLEST_CANDIDATE
from speculant_graph.draft.cost import CostCurve
from speculant_graph.draft.escapes import SMALLEST_SHARE
from speculant_graph.draft.history import LEARNED_CHAINS, SESSION_CHAINS, WINDOW
from speculant_graph.draft.session_drafter import CALIBRATED
from speculant_graph.draft.sources import (
    CORPUS,
    GAP,
    LEARNED,
    MAX_DISTINCT,
    MAX_MATCHES,
    MIN_GAP_MATCH,
    RECYCLED,
    SESSION,
    TOP_SUCCESSORS,
)
from speculant_graph.graph.layout import MAX_VOCABULARY
from speculant_graph.graph.oracle import OracleGraph
from speculant_graph.types import StrategyName, TokenId

Text = list[TokenId | None]
"""Tokens; None is the end of a text or what is no token, and equals nothing."""
Kind = tuple[int, int, int, int]
"""Source, and classes of length, occurrences and different successors."""
Range = tuple[int, tuple[int, int, int, int], bool]
"""Half octaves of a probability below 1, what supports it, whether the context ends in a drafted token."""

RECYCLED_ROWS, RECYCLED_WIDTH = 16_384, 8
"""Rows that are kept, and tokens of each."""


@dataclass(frozen=True, slots=True)
class Entry:
    """What one context of one source says."""

    source: int
    length: int
    total: int
    counts: dict[TokenId, int]  # all successors that are known
    kept: dict[TokenId, int]  # those that are looked at, in the order in which they are


@dataclass(slots=True)
class Candidate:
    """A token of a mixture."""

    probability: float = 0.0
    support: dict[int, int] = field(default_factory=dict)
    """Class of the first context of each group of sources that holds it: session, corpus, learned, the other two."""


@dataclass(slots=True)
class Tables:
    """What is learned: how often each kind of context was passed by, how often each range of candidates was right."""

    escapes: dict[Kind, tuple[float, float]] = field(default_factory=dict)  # visits, escapes
    agreements: dict[Range, tuple[float, float, float]] = field(default_factory=dict)  # visits, expected hits, hits

    def counted_escapes(self, kind: Kind) -> tuple[float, float]:
        """Return (visits, escapes) of a kind, the first estimate if it was never met."""
        source, length, _, _ = kind
        first = max(0.08, 0.85 * 0.75 ** (min(length, 5) - 1))
        return self.escapes.get(kind, (2.0, 2.0 * {GAP: 0.8, RECYCLED: 0.7}.get(source, first)))

    def escape(self, entry: Entry) -> float:
        """Return the share of what is left that an entry passes on."""
        visits, escapes = self.counted_escapes(kind_of(entry))
        return (escapes + 0.5) / (visits + 1.0)

    def agreed(self, candidate: Candidate, *, inside: bool) -> float:
        """Return a probability moved towards what those like it were worth, the rarer outcome scaled."""
        probability = candidate.probability
        visits, expected, hits = self.agreements.get(range_of(candidate, inside=inside), (0.0, 0.0, 0.0))
        if probability <= 0.5:
            return probability * (hits + 5.0) / (expected + 5.0)
        return 1.0 - (1.0 - probability) * (visits - hits + 5.0) / (visits - expected + 5.0)

    def mixture(self, entries: Sequence[Entry]) -> dict[TokenId, Candidate]:
        """Mix entries, the longest first, until little is left."""
        candidates: dict[TokenId, Candidate] = {}
        left = 1.0
        for entry in entries:
            escape = self.escape(entry)
            unit = left * (1.0 - escape) / entry.total
            for token_id, count in entry.kept.items():
                if token_id in candidates or len(candidates) < MAX_CANDIDATES:
                    candidate = candidates.setdefault(token_id, Candidate())
                    candidate.probability += unit * count
                    group = GAP if entry.source == RECYCLED else entry.source
                    candidate.support.setdefault(group, support_class(entry))
            left *= escape
            if left < SMALLEST_SHARE:
                break
        return candidates

    def learn(self, entries: Sequence[Entry], token_id: TokenId | None, *, inside: bool) -> None:
        """Learn from the token that followed the context of some entries."""
        for token, candidate in self.mixture(entries).items():
            if candidate.probability >= SMALLEST_CANDIDATE:
                row = range_of(candidate, inside=inside)
                visits, expected, hits = self.agreements.get(row, (0.0, 0.0, 0.0))
                self.agreements[row] = (
                    visits * 0.999 + 1.0,
                    expected * 0.999 + candidate.probability,
                    hits * 0.999 + (token == token_id),
                )
        below = 1e-4  # that a token comes from nowhere
        came_from: list[float] = []
        for entry in reversed(entries):
            escape = self.escape(entry)
            here = (1.0 - escape) * (0 if token_id is None else entry.counts.get(token_id, 0) / entry.total)
            below = here + escape * below
            came_from.insert(0, here / below)
        reached = 1.0
        for entry, credit in zip(entries, came_from, strict=True):
            visits, escapes = self.counted_escapes(kind_of(entry))
            memory = 1.0 - (1.0 - 0.9995) * reached
            self.escapes[kind_of(entry)] = (visits * memory + reached, escapes * memory + reached * (1.0 - credit))
            reached *= 1.0 - credit
            if reached < 0.01:
                break


def kind_of(entry: Entry) -> Kind:
    """Return what entries that are trusted alike have in common."""
    if entry.source == CORPUS:
        length = min(entry.length, 10)
    else:
        length = min(entry.length, 5) + sum(entry.length >= least for least in (6, 8, 12, 20))
    occurrences = sum(entry.total >= least for least in (2, 3, 5, 13, 51))
    return entry.source, length, occurrences, sum(len(entry.counts) >= least for least in (2, 4))


def support_class(entry: Entry) -> int:
    """Return the class of a context as a supporter."""
    session = sum(entry.length >= least for least in (1, 2, 3, 6, 12))
    learned = 1 + (entry.length >= 6)
    return {SESSION: session, CORPUS: min(entry.length, 10), LEARNED: learned, GAP: 1, RECYCLED: 2}[entry.source]


def range_of(candidate: Candidate, *, inside: bool) -> Range:
    """Return what candidates that are right equally often have in common."""
    octave = 0
    while candidate.probability < 0.5 ** (octave + 1):
        octave += 1
    half = 2 * octave + (candidate.probability < 0.7071 * 0.5**octave)
    session, corpus, learned, other = (candidate.support.get(source, 0) for source in (SESSION, CORPUS, LEARNED, GAP))
    return min(half, 19), (session, corpus, learned, other), inside


def common_end(first: Text, second: Text) -> int:
    """Return how many last tokens two texts have in common."""
    length = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one is None or one != other:
            break
        length += 1
    return length


def newest_ends(text: Text, context: Text, least: int) -> Iterator[tuple[int, int]]:
    """Yield (place, match) of the newest places before which at least so many tokens are the context's last ones."""
    found = 0
    for place in range(len(text), 0, -1):
        match = common_end(text[max(0, place - WINDOW) : place], context)
        if match >= least:
            found += 1
            yield place, match
        if found == MAX_MATCHES:
            break


def entries_of_text(source: int, text: Text, context: Text, chains: Sequence[int]) -> list[Entry]:
    """Return an entry for every length at which more of a text's places match than at the next longer one.

    The newest places of each chain's length are looked at; those found by a longer chain are not counted again.
    """
    places = []
    limit = WINDOW + 1
    for least in chains:
        ends = newest_ends(text, context, least)
        places += [(match, place) for place, match in ends if place < len(text) and match < limit]
        limit = least
    places.sort(reverse=True)
    entries = []
    counts: dict[TokenId, int] = {}
    for number, (match, place) in enumerate(places, start=1):
        count_one(counts, text[place])
        if counts and (number == len(places) or places[number][0] < match):
            entries.append(Entry(source, match, number, dict(counts), dict(counts)))
    return entries


def count_one(counts: dict[TokenId, int], token_id: TokenId | None) -> None:
    """Count a successor, unless there are too many different ones or it is none."""
    if token_id is not None and (token_id in counts or len(counts) < MAX_DISTINCT):
        counts[token_id] = counts.get(token_id, 0) + 1


def entries_of_gap(text: Text, context: Text) -> list[Entry]:
    """Return the entry of places that match before the last token and differ in it, if there are any."""
    *before, last = context or [None]
    matches = []
    counts: dict[TokenId, int] = {}
    for place, match in newest_ends(text, before, 1):
        if place + 1 < len(text) and (last is None or text[place] != last) and match >= MIN_GAP_MATCH:
            matches.append(min(match, WINDOW - 1))
            count_one(counts, text[place + 1])
    return [Entry(GAP, max(matches), len(matches), counts, counts)] if counts else []


def entries_of_graph(graph: OracleGraph, context: Text) -> list[Entry]:
    """Return an entry for every context of a graph that has more successors than the next longer one."""
    entries: list[Entry] = []
    for order in range(min(graph.max_order, len(context)), 0, -1):
        counts = graph.context_index.get(tuple(context[-order:]))  # type: ignore[arg-type]
        if counts and (not entries or counts.total() != entries[-1].total):
            ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            entries.append(Entry(CORPUS, order, counts.total(), dict(counts), dict(ranked[:TOP_SUCCESSORS])))
    return entries


def entries_of_row(row: Sequence[TokenId]) -> list[Entry]:
    """Return the entry of the target's top tokens, each worth half of the one before."""
    counts = {token_id: 2 ** (RECYCLED_WIDTH - 1 - rank) for rank, token_id in enumerate(row)}
    return [Entry(RECYCLED, 1, sum(counts.values()), counts, counts)] if counts else []


@dataclass(slots=True)
class Memory:
    """What a tenant's sequences accepted."""

    text: Text = field(default_factory=list)
    rows: dict[int, tuple[TokenId, list[TokenId]]] = field(default_factory=dict)  # by place: the latest, and after what


@dataclass(slots=True)
class Node:
    """A node of a draft: number of its parent, path from the root, probability of that path."""

    parent: int
    path: list[TokenId]
    probability: float


@dataclass(slots=True)
class SlowSequence:
    """One sequence and its latest draft."""

    memory: Memory
    learns: bool
    cost: CostCurve | None
    text: Text = field(default_factory=list)
    num_prompt_tokens: int = 0
    draft: list[Node] = field(default_factory=list)
    rows: list[tuple[TokenId | None, list[TokenId]]] = field(default_factory=list)
    is_calibrated: bool = False
    expected: float = 0.0
    found: float = 0.0
    trust: float = 1.0


class SlowDrafter:
    """As :class:`~speculant_graph.draft.session_drafter.SessionDrafter`, for ``adaptive`` and ``tree``."""

    def __init__(self, graph: OracleGraph | None, config: DraftConfig) -> None:
        """Make a drafter without sequences."""
        self.tables = Tables()
        self.sequences: dict[int, SlowSequence] = {}
        self._graph = graph
        self._config = config
        self._memories: dict[str, Memory] = {}

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False, cost: CostCurve | None = None) -> None:
        """Begin a sequence."""
        memory = self._memories.setdefault(tenant, Memory())
        self.sequences[session_id] = SlowSequence(memory, learn, cost if self._config.cost_aware else None)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Take the target's top tokens after nodes of the latest draft."""
        sequence = self.sequences[session_id]
        if sequence.text:
            contexts = [sequence.text[-1], *(node.path[-1] for node in sequence.draft)]
            width = min(self._config.filler_top_k, RECYCLED_WIDTH)
            sequence.rows = [(contexts[node], list(row[:width])) for node, row in zip(nodes, rows, strict=True)]

    def accept(self, session_id: int, token_ids: Sequence[TokenId]) -> None:
        """Add tokens; learn from those behind the prompt."""
        sequence = self.sequences[session_id]
        is_prompt = not sequence.text
        if is_prompt:
            sequence.num_prompt_tokens = len(token_ids)
        if sequence.cost is not None and sequence.draft:
            judge(sequence, token_ids)
        for place, token_id in enumerate(token_ids):
            valid = token_id if 0 <= token_id < MAX_VOCABULARY else None
            if not is_prompt and (self._config.strategy in CALIBRATED or sequence.is_calibrated):
                self.tables.learn(self.entries(sequence, []), valid, inside=place > 0)
            sequence.text.append(valid)
        for context, row in sequence.rows:
            if context is not None:
                sequence.memory.rows[context % RECYCLED_ROWS] = (context, row)
        sequence.rows, sequence.draft = [], []

    def close(self, session_id: int) -> None:
        """End a sequence; learn what it accepted and still remembers, behind the end of its prompt."""
        sequence = self.sequences.pop(session_id)
        if sequence.learns and len(sequence.text) > sequence.num_prompt_tokens and self._config.max_learned_tokens:
            learnable = sequence.text[max(0, sequence.num_prompt_tokens - WINDOW) :]
            sequence.memory.text += [None, *learnable[-self._config.max_session_tokens :]]

    def draft(self, session_id: int, strategy: StrategyName, budget: int) -> list[Node]:
        """Draft the most probable paths, and as many of them as pay."""
        sequence = self.sequences[session_id]
        nodes = self._grown(sequence, budget, 1 if strategy == "adaptive" else self._config.max_branches)
        if sequence.cost is not None:
            costs = sequence.cost.table(budget + 1)
            worth, expected = [1.0], 0.0
            for size, node in enumerate(nodes, start=1):
                expected += sequence.trust * node.probability
                worth.append((1.0 + expected) / costs[1 + size])
            nodes = nodes[: worth.index(max(worth))]
        sequence.draft = nodes
        sequence.is_calibrated = True
        return nodes

    def _grown(self, sequence: SlowSequence, budget: int, branches: int) -> list[Node]:
        nodes: list[Node] = []
        waiting: list[Node] = []  # as found, which decides between equals
        while len(nodes) < budget:
            newest = nodes[-1] if nodes else Node(-1, [], 1.0)
            if len(newest.path) < self._config.max_depth:
                for token_id, probability in self.children(sequence, newest.path)[:branches]:
                    waiting.append(Node(len(nodes), [*newest.path, token_id], newest.probability * probability))
            if not waiting:
                break
            best = max(waiting, key=lambda node: node.probability)
            waiting.remove(best)
            nodes.append(best)
        return nodes

    def children(self, sequence: SlowSequence, path: list[TokenId]) -> list[tuple[TokenId, float]]:
        """Return what may follow a path from the end of a sequence, the most probable first."""
        mixed = self.tables.mixture(self.entries(sequence, path)).items()
        probable = [(token_id, each) for token_id, each in mixed if each.probability >= SMALLEST_CANDIDATE]
        agreed = {token_id: self.tables.agreed(each, inside=bool(path)) for token_id, each in probable}
        possible = [token_id for token_id, probability in agreed.items() if probability > SMALLEST_CANDIDATE]
        possible.sort(key=lambda token_id: -agreed[token_id])
        return [(token_id, min(1.0, agreed[token_id])) for token_id in possible]

    def entries(self, sequence: SlowSequence, path: list[TokenId]) -> list[Entry]:
        """Return the entries of a path from the end of a sequence, longest first, until too little is left."""
        sources = self._config.sources
        text = sequence.text[-self._config.max_session_tokens :]
        context = [*text, *path]
        longer: list[Entry] = []
        others: list[Entry] = []
        if "session" in sources:
            longer += entries_of_text(SESSION, text, context, SESSION_CHAINS)
            others += entries_of_gap(text, context)
        if "corpus" in sources and self._graph is not None:
            longer += entries_of_graph(self._graph, context)
        if "learned" in sources and self._config.max_learned_tokens:
            learned = sequence.memory.text[-self._config.max_learned_tokens :]
            longer += entries_of_text(LEARNED, learned, context, LEARNED_CHAINS)
        if "recycled" in sources and context and context[-1] is not None:
            token_id, row = sequence.memory.rows.get(context[-1] % RECYCLED_ROWS, (None, []))
            others += entries_of_row(row) if token_id == context[-1] else []
        longer.sort(key=lambda entry: -entry.length)  # of equal lengths the session comes first, then the corpus
        place = sum(entry.length > 2 for entry in longer)
        left = 1.0
        kept: list[Entry] = []
        for together in [*([entry] for entry in longer[:place]), others, *([entry] for entry in longer[place:])]:
            if left >= SMALLEST_SHARE:
                kept += together
                left *= math.prod(map(self.tables.escape, together))
        return kept


def judge(sequence: SlowSequence, token_ids: Sequence[TokenId]) -> None:
    """Trust a sequence's drafts less if they promised more than was accepted."""
    paths = [node.path for node in sequence.draft]
    found = max(length for length in range(len(token_ids) + 1) if not length or list(token_ids[:length]) in paths)
    sequence.expected = sequence.expected * 0.95 + sum(node.probability for node in sequence.draft)
    sequence.found = sequence.found * 0.95 + found
    sequence.trust = min(1.0, (sequence.found + 10.0) / (sequence.expected + 10.0))
