"""Slow reference for matching contexts and calibrating candidates, over lists and dictionaries; for tests and benches.

It follows the rules of ``contexts.hpp`` and ``calibration.hpp`` in ``shared/native``, without hash chains, ring buffers
or packed tables. Every context is searched for in the whole text. Sums are taken in the order of the core, so that
results are equal and not merely close.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from speculant_graph.types import TokenId
from support.neural_reference import WHOLE, NeuralTables, confidence_class, propose
from support.oracle import OracleGraph

Text = list[TokenId | None]
"""Tokens. None marks the end of a text or an invalid id, and matches nothing."""
Kind = tuple[int, int, int, int]
"""Kind of a context: its source, and its classes of length, occurrences and distinct successors."""
Range = tuple[int, tuple[int, int, int, int, int], bool]
"""Bin of a candidate: half octaves below 1, classes of its supporting contexts, and whether the context ends in a
drafted token."""

SESSION, CORPUS, GAP, LEARNED, RECYCLED, NEURAL, FURTHER_GRAPHS = range(7)
"""Numbers of the sources, and of the second graph if there are several."""
SESSION_CHAINS, LEARNED_CHAINS = (4, 1), (4, 2)
"""Context lengths of the hash chains of a sequence, and of a tenant's learned text."""
WINDOW, MAX_MATCHES, MAX_LEARNED_MATCHES, MAX_WALK, MIN_GAP_MATCH = 32, 24, 16, 64, 2
"""Longest match; most matches per chain in a sequence and in learned text; most positions read per chain, hash
collisions included; least match before a gap."""
TOP_SUCCESSORS, LONG_ROW = 16, 64
"""Maximum successors read of a graph's context; a context with more than ``LONG_ROW`` successors has its top cached."""
MAX_CANDIDATES, SMALLEST_CANDIDATE, SMALLEST_SHARE = 256, 2.0**-10, 0.03
"""Bounds of a mixture: most candidates, their least probability, and the least share left for a shorter context."""
NOTHING = (0.0, 0.0, 0.0)
"""Visits, expected hits and hits of an empty bin."""
PATH_MEMORY = 0.998
"""Decay factor of the counts of drafted paths per step."""
LEVEL_WORTH = 0.95
"""Discount in ranks for each level of a path below the first."""
NEURAL_BEFORE, LEAST_ASKED, FURTHER_MODELS = 3, 0.03, 4.0
"""Neural models come before contexts of at most this many tokens; least share of a path for which the first model is
run; how many times as much is needed for further ones."""
RECYCLED_SLOTS, RECYCLED_DEPTH, RECYCLED_WIDTH = 32_768, 4, 4
"""Number of slots for contexts, most rows of target top-k per context, and most tokens per row."""


@dataclass(frozen=True, slots=True)
class Entry:
    """Successor counts of one context of one source."""

    source: int
    length: int
    total: int
    counts: dict[TokenId, int]  # all known successors
    kept: dict[TokenId, int]  # the successors that are read, in reading order
    num_rows: int = 0  # target top-k: number of rows
    graph: int = 0  # corpus: number of the graph


@dataclass(slots=True)
class Candidate:
    """A token in a mixture."""

    probability: float = 0.0
    support: dict[int, int] = field(default_factory=dict)
    """Class of the first context that holds the token, per group of sources: session, corpus, learned, neural, and the
    other two together."""


@dataclass(slots=True)
class Tables:
    """Learned counts: back-offs per kind of context, and hits per bin of candidates and of paths."""

    escapes: dict[Kind, tuple[float, float]] = field(default_factory=dict)  # visits, back-offs
    agreements: dict[Range, tuple[float, float, float]] = field(default_factory=dict)  # visits, expected hits, hits
    paths: dict[tuple[int, int], tuple[float, float, float]] = field(default_factory=dict)  # as above, of drafted paths

    def counted_escapes(self, kind: Kind) -> tuple[float, float]:
        """Return (visits, back-offs) of a kind; an initial guess if it has no visits."""
        source, length, _, _ = kind
        first = max(0.08, 0.85 * 0.75 ** (min(length, 5) - 1))
        return self.escapes.get(kind, (2.0, 2.0 * {GAP: 0.8, RECYCLED: 0.7}.get(source, first)))

    def escape(self, entry: Entry) -> float:
        """Return the share b of the remaining probability mass that an entry passes on to shorter contexts."""
        visits, escapes = self.counted_escapes(kind_of(entry))
        return (escapes + 0.5) / (visits + 1.0)

    def agreed(self, candidate: Candidate, *, inside: bool) -> float:
        """Return a candidate's probability, moved towards the hit rate of its bin."""
        return moved(self.agreements.get(range_of(candidate, inside=inside), NOTHING), 5.0, candidate.probability)

    def of_path(self, depth: int, estimate: float) -> float:
        """Return the calibrated probability of a path of ``depth`` tokens, at least a quarter of ``estimate``."""
        return max(moved(self.paths.get(range_of_path(depth, estimate), NOTHING), 2.0, estimate), estimate / 4)

    def learn_paths(self, nodes: Sequence[tuple[Text, float]], token_ids: Text) -> None:
        """Learn from the tokens that followed a draft.

        Args:
            nodes: the path of every node, and its probability before calibration.
            token_ids: the accepted tokens.
        """
        for row, (visits, expected, hits) in self.paths.items():
            self.paths[row] = visits * PATH_MEMORY, expected * PATH_MEMORY, hits * PATH_MEMORY
        for path, estimate in nodes:
            before = path[:-1]
            if before == token_ids[: len(before)] and len(path) > len(token_ids):
                continue  # the tokens end before the path's last one, so its outcome is unknown
            row = range_of_path(len(path), estimate)
            visits, expected, hits = self.paths.get(row, NOTHING)
            is_right = path == token_ids[: len(path)]
            self.paths[row] = visits + 1.0, expected + estimate, hits + is_right

    def mixture(self, entries: Sequence[Entry]) -> dict[TokenId, Candidate]:
        """Interpolate entries, longest first, until less than ``SMALLEST_SHARE`` of the mass is left."""
        candidates: dict[TokenId, Candidate] = {}
        left = 1.0
        for entry in self.enough(entries):
            escape = self.escape(entry)
            unit = left * (1.0 - escape) / entry.total
            for token_id, count in entry.kept.items():
                if token_id in candidates or len(candidates) < MAX_CANDIDATES:
                    candidate = candidates.setdefault(token_id, Candidate())
                    candidate.probability += unit * count
                    group = GAP if entry.source == RECYCLED else entry.source
                    candidate.support.setdefault(group, support_class(entry, count))
            left *= escape
        return candidates

    def enough(self, entries: Sequence[Entry]) -> list[Entry]:
        """Return the first entries, up to the one that leaves less than ``SMALLEST_SHARE``."""
        left = 1.0
        for number, entry in enumerate(entries, start=1):
            left *= self.escape(entry)
            if left < SMALLEST_SHARE:
                return list(entries[:number])
        return list(entries)

    def learn(self, entries: Sequence[Entry], token_id: TokenId | None, *, inside: bool) -> None:
        """Learn bins and back-off weights from the token that followed the context of these entries.

        Args:
            entries: the entries of one position, longest first.
            token_id: the token; None for an invalid id.
            inside: whether the token before it was itself drafted.
        """
        for token, candidate in self.mixture(entries).items():
            if candidate.probability >= SMALLEST_CANDIDATE:
                row = range_of(candidate, inside=inside)
                visits, expected, hits = self.agreements.get(row, (0.0, 0.0, 0.0))
                self.agreements[row] = (
                    visits * 0.999 + 1.0,
                    expected * 0.999 + candidate.probability,
                    hits * 0.999 + (token == token_id),
                )
        below = 1e-4  # probability of a token that no context holds
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


def moved(counted: tuple[float, float, float], prior: float, probability: float) -> float:
    """Return a probability moved towards the hit rate of its bin, by scaling the rarer outcome.

    Args:
        counted: visits, expected hits and hits of the bin.
        prior: pseudo-counts of hits and of misses, all as expected.
        probability: the probability before calibration.
    """
    visits, expected, hits = counted
    if probability <= 0.5:
        return probability * (hits + prior) / (expected + prior)
    return 1.0 - (1.0 - probability) * (visits - hits + prior) / (visits - expected + prior)


def half_octave(probability: float) -> int:
    """Return the number of half octaves by which a probability is below 1; 19 at most."""
    octave = 0
    while octave < 10 and probability < 0.5 ** (octave + 1):
        octave += 1
    return min(2 * octave + (probability < 0.7071 * 0.5**octave), 19)


def range_of_path(depth: int, estimate: float) -> tuple[int, int]:
    """Return the bin of a path: its class of depth and its half octave."""
    return (0 if depth == 1 else 1 if depth == 2 else 2 if depth <= 4 else 3), half_octave(estimate)


def kind_of(entry: Entry) -> Kind:
    """Return the kind of an entry; entries of one kind share a back-off weight."""
    if entry.source in (CORPUS, NEURAL):
        length = min(entry.length, 10)
    else:
        length = min(entry.length, 5) + sum(entry.length >= least for least in (6, 8, 12, 20))
    total = entry.num_rows or entry.total
    occurrences = sum(total >= least for least in (2, 3, 5, 13, 51))
    source = FURTHER_GRAPHS + entry.graph - 1 if entry.graph else entry.source
    return source, length, occurrences, sum(len(entry.counts) >= least for least in (2, 4))


def support_class(entry: Entry, count: int) -> int:
    """Return the class of a context that supports a token with this count."""
    session = sum(entry.length >= least for least in (1, 2, 3, 6, 12))
    learned = 1 + (entry.length >= 6)
    recycled = 1 + entry.length
    neural = 1 + (count >= 400) + (count >= 2_000)
    corpus = min(entry.length, 10)
    return (session, corpus, 1, learned, recycled, neural)[entry.source]


def range_of(candidate: Candidate, *, inside: bool) -> Range:
    """Return the bin of a candidate."""
    session, corpus, learned, other, neural = (
        candidate.support.get(source, 0) for source in (SESSION, CORPUS, LEARNED, GAP, NEURAL)
    )
    return half_octave(candidate.probability), (session, corpus, learned, other, neural), inside


def common_end(first: Text, second: Text) -> int:
    """Return the length of the longest common suffix of two texts."""
    length = 0
    for one, other in zip(reversed(first), reversed(second), strict=False):
        if one is None or one != other:
            break
        length += 1
    return length


def newest_ends(text: Text, context: Text, least: int, most: int = MAX_MATCHES) -> Iterator[tuple[int, int]]:
    """Yield (position, match length) of the newest positions where at least ``least`` tokens match the context's end.

    Yields at most ``most`` positions, newest first.
    """
    found = 0
    for place in range(len(text), 0, -1):
        match = common_end(text[max(0, place - WINDOW) : place], context)
        if match >= least:
            found += 1
            yield place, match
        if found == most:
            break


def entries_of_text(source: int, text: Text, context: Text, chains: Sequence[int]) -> list[Entry]:
    """Return an entry for every match length at which more positions match than at the next longer one.

    Reads the newest positions of each chain. A position that a longer chain found is not counted again.
    """
    places = []
    limit = WINDOW + 1
    for least in chains:
        ends = newest_ends(text, context, least, MAX_LEARNED_MATCHES if source == LEARNED else MAX_MATCHES)
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
    """Count a successor; ignores None."""
    if token_id is not None:
        counts[token_id] = counts.get(token_id, 0) + 1


def entries_of_gap(text: Text, context: Text) -> list[Entry]:
    """Return the skip-gram entry: positions that match before the last token and differ in it; empty without any."""
    *before, last = context or [None]
    matches = []
    counts: dict[TokenId, int] = {}
    for place, match in newest_ends(text, before, 1):
        if place + 1 < len(text) and (last is None or text[place] != last) and match >= MIN_GAP_MATCH:
            matches.append(min(match, WINDOW - 1))
            count_one(counts, text[place + 1])
    return [Entry(GAP, max(matches), len(matches), counts, counts)] if counts else []


def entries_of_graph(graph: OracleGraph, context: Text, number: int = 0, least: int = 1) -> list[Entry]:
    """Return an entry for every context of a graph that occurs more often than the next longer one.

    Args:
        graph: the graph.
        context: the tokens before the token to predict.
        number: index of the graph.
        least: length of the shortest context.
    """
    entries: list[Entry] = []
    for order in range(min(graph.max_order, len(context)), least - 1, -1):
        counts = graph.context_index.get(tuple(context[-order:]))  # type: ignore[arg-type]
        if counts and (not entries or counts.total() != entries[-1].total):
            ranked = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
            kept = dict(ranked[:TOP_SUCCESSORS])
            entries.append(Entry(CORPUS, order, counts.total(), dict(counts), kept, graph=number))
    return entries


def entries_of_model(
    model: NeuralTables, graph: OracleGraph | None, context: Text, found: Sequence[Entry]
) -> list[Entry]:
    """Return the entry of a neural model; empty without proposals.

    The model scores its most frequent tokens, the successors in ``found``, and the graph's successors of the last one
    and two tokens.
    """
    others = [token_id for entry in found for token_id in entry.kept]
    for order in (2, 1) if graph is not None else ():
        others += [
            token_id for entry in entries_of_graph(graph, context[-order:], least=order) for token_id in entry.kept
        ]
    counts = dict(propose(model, context, others))
    best = max(counts.values(), default=0)
    return [Entry(NEURAL, confidence_class(best), WHOLE, counts, counts, 1)] if counts else []


def slot_of_rows(context: Text) -> int:
    """Return the slot of target top-k rows for a context of one or two tokens."""
    *before, last = [token_id for token_id in context if token_id is not None]
    key = (before[0] + 1 << 24) + last if before else last
    return (key * 0x1E3779B97F4A7C15 % 2**64 >> 40) % RECYCLED_SLOTS


def entries_of_rows(rows: Sequence[Sequence[TokenId]], length: int) -> list[Entry]:
    """Return the target top-k entry of one context; empty without rows.

    Weights halve from each token of a row to the next, and from each row to the next older one.

    Args:
        rows: top tokens of the target after this context, newest row first.
        length: length of the context.
    """
    counts: dict[TokenId, int] = {}
    for age, row in enumerate(rows):
        for rank, token_id in enumerate(row):
            weight = 2 ** (RECYCLED_DEPTH - 1 - age + RECYCLED_WIDTH - 1 - rank)
            counts[token_id] = counts.get(token_id, 0) + weight
    return [Entry(RECYCLED, length, sum(counts.values()), counts, counts, len(rows))] if counts else []
