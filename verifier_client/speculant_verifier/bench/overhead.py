"""What a step of the engine takes beside the forward pass and the drafter, by phase."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.report import print_report
from speculant_graph.config import DraftConfig, GenerationConfig
from speculant_graph.types import EMPTY_DRAFT, Draft, DrafterState, DrafterStatistics, SequenceStep, SessionOptions
from speculant_verifier.bench.cases import Case
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.tally import PHASES, Tally
from speculant_verifier.model import TargetModel

if TYPE_CHECKING:
    from speculant_graph.bench.replay_progress import BenchProgress

NODES = 16
"""Drafted for each row and step: two at each of eight depths."""

_PROMPT, _OUTPUT, _ROUNDS = 64, 160, 3


class HalfRightDrafter:
    """Drafts what will come, beside it a wrong token at every depth, and goes wrong at depths that change.

    The right one is the second of the two, so what is accepted must be moved in the cache.
    """

    def __init__(self, cases: Sequence[Case], vocabulary_size: int) -> None:
        """Take the requests, whose outputs are known."""
        self._texts = [(*case.prompt, *(case.forced or ())) for case in cases]
        self._vocabulary_size = vocabulary_size

    @property
    def state(self) -> DrafterState:
        """Always there."""
        return "ok"

    @property
    def statistics(self) -> DrafterStatistics:
        """All zero."""
        return DrafterStatistics()

    def open(self, session_id: int, options: SessionOptions | None = None) -> None:
        """Do nothing."""

    def draft(self, steps: Sequence[SequenceStep]) -> list[Draft]:
        """Draft a tree for every sequence."""
        return [self._draft(step) for step in steps]

    def finish(self, session_id: int) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""

    def _draft(self, step: SequenceStep) -> Draft:
        known = len(step.token_ids)
        text = next((text for text in self._texts if list(text[:known]) == list(step.token_ids)), None)
        if text is None:
            return EMPTY_DRAFT
        num_right = known % (NODES // 2 + 1)
        token_ids: list[int] = []
        parents: list[int] = []
        for depth, token in enumerate(text[known : known + min(NODES, step.node_budget) // 2]):
            wrong = (token + 1) % self._vocabulary_size
            parent = len(token_ids)
            token_ids += [wrong, token if depth < num_right else (token + 2) % self._vocabulary_size]
            parents += [parent, parent]
        return Draft(tuple(token_ids), tuple(parents), strategy="tree")


def measure_overhead(target: TargetModel, batch: int, progress: BenchProgress) -> dict[str, Any]:
    """Decode made-up requests and return the milliseconds of a step by phase, ready for JSON."""
    generator = random.Random(0)

    def tokens(number: int) -> tuple[int, ...]:
        return tuple(generator.randrange(target.vocabulary_size) for _ in range(number))

    cases = [Case(tokens(_PROMPT), _OUTPUT, tokens(_OUTPUT)) for _ in range(batch)]
    drafter = HalfRightDrafter(cases, target.vocabulary_size)
    decoding = OwnDecoding(target, drafter, DraftConfig(k=NODES, strategy="tree"), batch)
    tally = Tally()
    tell = progress.teller("decoding")
    for number in range(1 + _ROUNDS):
        tell(number, 1 + _ROUNDS)
        run = decoding.decode(cases, GenerationConfig(speculation="on"))
        if number:  # the first one warms up
            tally.add(run)
    tell(1, 1)
    phases = tally.phase_ms(PHASES)
    return {
        "phase_ms": phases,
        "overhead_ms": round(sum(phases[phase] for phase in ("verify", "commit", "other")), 4),
        "overhead_us_per_row": round(1e3 * sum(phases[p] for p in ("verify", "commit", "other")) / batch, 2),
        "nodes_per_row": round(tally.mean_nodes - 1, 3),
        "mean_accepted_tokens": round(tally.mean_accepted_tokens, 4),
        "steps": tally.num_passes,
    }


def print_overhead(figures: Mapping[str, Any], arguments: Sequence[str], *, as_json: bool) -> None:
    """Print the phases of a step."""
    rows = [
        ("model", f"{figures['model']}, {figures['dtype']} on {figures['device']}"),
        ("rows, nodes of each, on average", f"{figures['batch']}, {figures['nodes_per_row']:.1f}"),
        *((f"{phase}, ms a step", f"{milliseconds:.3f}") for phase, milliseconds in figures["phase_ms"].items()),
        ("verify, commit and other, ms a step", f"{figures['overhead_ms']:.3f}"),
        ("the same, µs a row", f"{figures['overhead_us_per_row']:.0f}"),
    ]
    print_report("generate", rows, figures, arguments, as_json=as_json)
