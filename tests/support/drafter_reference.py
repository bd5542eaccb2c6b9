"""Slow reference for the session drafter, over lists and dictionaries; for tests and benches.

It follows the rules of ``session_drafter.py`` and of ``tree_drafter.hpp`` and ``sequence.hpp`` in ``shared/native``.
``tree_reference.py`` collects the contexts and mixes them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from speculant_graph.config import DraftConfig
from speculant_graph.graph.layout import MAX_VOCABULARY
from speculant_graph.strategies import STRATEGIES, StrategyName
from speculant_graph.types import TokenId
from support.mixer_reference import MixerTables, Position, mixed
from support.neural_reference import NeuralTables
from support.oracle import OracleGraph
from support.tree_reference import (
    FURTHER_MODELS,
    LEARNED,
    LEARNED_CHAINS,
    LEAST_ASKED,
    LEVEL_WORTH,
    NEURAL_BEFORE,
    RECYCLED_DEPTH,
    RECYCLED_WIDTH,
    SESSION,
    SESSION_CHAINS,
    SMALLEST_CANDIDATE,
    SMALLEST_SHARE,
    WINDOW,
    Entry,
    Tables,
    Text,
    entries_of_gap,
    entries_of_graph,
    entries_of_model,
    entries_of_rows,
    entries_of_text,
    slot_of_rows,
)


@dataclass(slots=True)
class Memory:
    """Text and target top-k rows that a tenant's sequences share."""

    text: Text = field(default_factory=list)
    rows: dict[int, tuple[Text, list[list[TokenId]]]] = field(default_factory=dict)
    """Per slot: a context, and the target's rows after it, newest first."""


@dataclass(slots=True)
class Node:
    """A node of a draft, with its parent's number, its path from the root and the calibrated path probability."""

    parent: int
    path: list[TokenId]
    probability: float
    estimate: float
    """Path probability before calibration."""


@dataclass(slots=True)
class SlowSequence:
    """One sequence and its latest draft."""

    memory: Memory
    learns: bool
    text: Text = field(default_factory=list)
    num_prompt_tokens: int = 0
    draft: list[Node] | None = None
    rows: list[tuple[Text, list[TokenId]]] = field(default_factory=list)
    own_rows: dict[int, tuple[Text, list[list[TokenId]]]] = field(default_factory=dict)
    """Rows of a sequence that does not share them, per slot; they precede the rows of the memory."""
    is_calibrated: bool = False
    omits_neural: bool = False
    """Whether the latest step omits the neural model. Learning before the next step omits it too."""


def level_worth(depth: int) -> float:
    """Return the discount in ranks of a path of ``depth`` tokens."""
    return math.prod([LEVEL_WORTH] * (depth - 1), start=1.0)


class SlowDrafter:
    """Reference for :class:`~speculant_graph.draft.session_drafter.SessionDrafter`, for ``adaptive`` and ``tree``."""

    def __init__(
        self,
        graphs: Sequence[OracleGraph],
        config: DraftConfig,
        vocabulary_size: int = MAX_VOCABULARY,
        max_session_tokens: int = 131_072,
        models: Sequence[NeuralTables | None] = (),
        mixer: MixerTables | None = None,
    ) -> None:
        """Create a drafter without sequences.

        Args:
            graphs: the graphs to draft from.
            config: drafting settings.
            vocabulary_size: ids below it are tokens.
            max_session_tokens: maximum number of recent tokens of a sequence that are searched.
            models: neural model of each graph, or None.
            mixer: weights of the mixer that adjusts candidates last; None: no mixer.
        """
        self.tables = Tables()
        self._mixer = mixer
        self.sequences: dict[int, SlowSequence] = {}
        self._graphs = graphs
        self._models = [(number, each) for number, each in enumerate(models) if each is not None]
        self._config, self._vocabulary_size, self._window = config, vocabulary_size, max_session_tokens
        self._memories: dict[str, Memory] = {}

    def open(self, session_id: int, *, tenant: str = "", learn: bool = False) -> None:
        """Open a sequence."""
        memory = self._memories.setdefault(tenant, Memory())
        learns = learn and self._config.max_learned_tokens > 0
        self.sequences[session_id] = SlowSequence(memory, learns)

    def recycle(self, session_id: int, nodes: Sequence[int], rows: Sequence[Sequence[TokenId]]) -> None:
        """Take the target's top tokens after some nodes of the latest draft."""
        sequence = self.sequences[session_id]
        if sequence.text:
            paths = [[], *(node.path for node in sequence.draft or [])]
            ends = [[*sequence.text[-2:], *path][-2:] for path in paths]
            sequence.rows += [(ends[node], list(row)) for node, row in zip(nodes, rows, strict=True)]

    def accept(self, session_id: int, token_ids: Sequence[TokenId], most_learned: int | None = None) -> None:
        """Add tokens, and learn from them unless they are the prompt.

        Args:
            session_id: the sequence.
            token_ids: the accepted tokens; the first call has the prompt.
            most_learned: learn only from this many of the latest tokens; None: from all.
        """
        sequence = self.sequences[session_id]
        if not token_ids:
            return
        is_prompt = not sequence.text
        if is_prompt:
            sequence.num_prompt_tokens = len(token_ids)
        first_learned = 0 if most_learned is None else max(0, len(token_ids) - most_learned)
        is_calibrated = STRATEGIES[self._config.strategy].is_calibrated or sequence.is_calibrated
        valid_ids = [token_id if 0 <= token_id < self._vocabulary_size else None for token_id in token_ids]
        if not is_prompt and is_calibrated:
            drafted = [(node.path, node.estimate) for node in sequence.draft or () if not first_learned]
            self.tables.learn_paths(drafted, valid_ids[first_learned:][:32])
        for place, valid in enumerate(valid_ids):
            if not is_prompt and is_calibrated and place >= first_learned:
                self.tables.learn(self.entries(sequence, [], 0.0), valid, inside=place > first_learned)
            sequence.text.append(valid)
        filled = sequence.memory.rows if sequence.learns else sequence.own_rows
        for end, row in sequence.rows:
            for context in (end[-1:], end) if len(end) == 2 else (end,):
                if None not in context and row:
                    slot = slot_of_rows(context)
                    known, older = filled.get(slot) or sequence.memory.rows.get(slot, (context, []))
                    rows = [row[:RECYCLED_WIDTH], *(older if known == context else [])][:RECYCLED_DEPTH]
                    filled[slot] = (context, rows)
        sequence.rows, sequence.draft = [], None

    def close(self, session_id: int) -> None:
        """Close a sequence; its generated text, with the end of the prompt, joins the learned text."""
        sequence = self.sequences.pop(session_id)
        if sequence.learns and len(sequence.text) > sequence.num_prompt_tokens and self._config.max_learned_tokens:
            learnable = sequence.text[max(0, sequence.num_prompt_tokens - WINDOW) :]
            sequence.memory.text += [None, *learnable[-self._window :]]

    def draft(
        self,
        session_id: int,
        strategy: StrategyName,
        budget: int,
        least: float = 0.0,
        *,
        omits_neural: bool = False,
    ) -> list[Node]:
        """Draft the highest-ranked paths whose probability is at least ``least``."""
        sequence = self.sequences[session_id]
        sequence.omits_neural = omits_neural
        branches = 1 if strategy == "adaptive" else self._config.max_branches
        sequence.draft = self._grown(sequence, budget, branches, least)
        sequence.is_calibrated = True
        return sequence.draft

    def _grown(self, sequence: SlowSequence, budget: int, branches: int, least: float) -> list[Node]:
        nodes: list[Node] = []
        waiting: list[Node] = []  # in the order found, which breaks ties
        while len(nodes) < budget:
            newest = nodes[-1] if nodes else Node(-1, [], 1.0, 1.0)
            if len(newest.path) < self._config.max_depth:
                children = []
                for token_id, probability in self.children(sequence, newest.path, newest.estimate):
                    path, estimate = [*newest.path, token_id], newest.estimate * probability
                    calibrated = min(self.tables.of_path(len(path), estimate), newest.probability)
                    children.append(Node(len(nodes), path, calibrated, estimate))
                children.sort(key=lambda child: -child.estimate)
                waiting += [child for child in children[:branches] if child.probability >= least]
            if not waiting:
                break
            best = max(waiting, key=lambda node: node.estimate * level_worth(len(node.path)))
            waiting.remove(best)
            nodes.append(best)
        return nodes

    def children(self, sequence: SlowSequence, path: list[TokenId], reach: float) -> list[tuple[TokenId, float]]:
        """Return the candidates after a path, with their probabilities.

        Args:
            sequence: the sequence.
            path: tokens from the end of the sequence.
            reach: probability of the path.
        """
        entries = self.entries(sequence, path, LEAST_ASKED / reach)
        mixture = self.tables.mixture(entries)
        agreed = {
            token_id: self.tables.agreed(each, inside=bool(path))
            if each.probability >= SMALLEST_CANDIDATE
            else each.probability
            for token_id, each in mixture.items()
        }
        has_model = self._models and "neural" in self._config.sources and not sequence.omits_neural
        if self._mixer is not None and has_model:
            position = Position(
                self.tables.enough(entries),
                sequence.text[-self._window :],
                len(sequence.text),
                self._config.sources,
                self._graphs[0] if self._graphs else None,
                self._models[0][1],
                bool(path),
                reach,
            )
            agreed = mixed(
                self._mixer, position, agreed, {token_id: each.probability for token_id, each in mixture.items()}
            )
        possible = [token_id for token_id, probability in agreed.items() if probability > SMALLEST_CANDIDATE]
        return [(token_id, min(1.0, agreed[token_id])) for token_id in possible]

    def entries(self, sequence: SlowSequence, path: list[TokenId], least_share: float) -> list[Entry]:
        """Return the entries for a path, longest first, until less than ``SMALLEST_SHARE`` is left.

        Args:
            sequence: the sequence.
            path: tokens from the end of the sequence.
            least_share: least remaining share for which the neural model is run.
        """
        sources = self._config.sources
        text = sequence.text[-self._window :]
        context = [*text, *path]
        longer: list[Entry] = []
        others: list[Entry] = []
        if "session" in sources:
            longer += entries_of_text(SESSION, text, context, SESSION_CHAINS)
            others += entries_of_gap(text, context)
        for number, graph in enumerate(self._graphs if "corpus" in sources else ()):
            longer += entries_of_graph(graph, context, number)
        if "learned" in sources and self._config.max_learned_tokens:
            learned = sequence.memory.text[-self._config.max_learned_tokens :]
            longer += entries_of_text(LEARNED, learned, context, LEARNED_CHAINS)
        for length in (2, 1) if "recycled" in sources else ():
            end = context[-length:]
            if len(end) == length and None not in end:
                slot = slot_of_rows(end)
                known, rows = sequence.own_rows.get(slot) or sequence.memory.rows.get(slot, (end, []))
                others += entries_of_rows(rows, length) if known == end else []
        longer.sort(key=lambda entry: -entry.length)  # among equal lengths: the session, the graphs, learned text
        place, place_of_model = (sum(entry.length > most for entry in longer) for most in (2, NEURAL_BEFORE))
        left = 1.0
        kept: list[Entry] = []
        for number in range(len(longer) + 1):
            least = max(least_share, SMALLEST_SHARE)
            is_place = number == place_of_model and "neural" in sources and not sequence.omits_neural
            for of_graph, model in self._models if is_place else ():
                if left < least:
                    break
                least = FURTHER_MODELS * max(least_share, SMALLEST_SHARE)
                graph = self._graphs[of_graph] if "corpus" in sources else None
                proposed = entries_of_model(model, graph, context, kept)
                kept += proposed
                left *= math.prod(map(self.tables.escape, proposed))
            for together in (others if number == place else [], longer[number : number + 1]):
                if left >= SMALLEST_SHARE:
                    kept += together
                    left *= math.prod(map(self.tables.escape, together))
        return kept
