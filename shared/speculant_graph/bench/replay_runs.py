"""All runs of a replay: every workload by every strategy at every budget, each with a fresh drafter."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

from speculant_graph.bench.progress import BenchProgress
from speculant_graph.bench.replay_baselines import PROMPT_LOOKUP, PromptLookupDrafter
from speculant_graph.bench.replay_loop import ReplayDrafter, ReplayOptions, replay
from speculant_graph.bench.replay_statistics import replay_figures
from speculant_graph.bench.traces import Workload
from speculant_graph.config import DraftConfig
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.view.wording import counted

if TYPE_CHECKING:
    from speculant_graph.draft.cost import CostCurve

_WARM_UP_TOKENS = 16


@dataclass(frozen=True, slots=True)
class ReplayRuns:
    """What the runs have in common."""

    graph: NgramGraph | None
    """What to draft from, beside the sequences themselves."""
    config: DraftConfig
    """How to draft; ``k`` and ``strategy`` are set for each run."""
    cost: CostCurve | None
    """Prices the drafts."""
    is_cost_told: bool
    """Whether the drafter knows the price."""
    is_online: bool
    """Whether it learns across sequences."""
    seed: int
    """Of strategies that draw, and of intervals."""

    def replay_all(
        self,
        workloads: Sequence[Workload],
        strategies: Sequence[str],
        budgets: Sequence[int],
        progress: BenchProgress,
    ) -> list[dict[str, Any]]:
        """Replay everything and return the figures of each run, in this order."""
        results: list[dict[str, Any]] = []
        total = sum(workload.num_tokens for workload in workloads) * len(strategies) * len(budgets)
        done = 0
        for workload, strategy, budget in product(workloads, strategies, budgets):
            label = f"{workload.name}, {strategy}, {counted(budget, 'node')}"

            def on_tokens(num_tokens: int, label: str = label) -> None:
                nonlocal done
                done += num_tokens
                progress.show(label, done, total)

            progress.show(label, done, total)
            start = time.perf_counter()
            figures = self._replay(workload, strategy, budget, on_tokens)
            seconds = round(time.perf_counter() - start, 3)
            progress.tell(f"{label}: {figures['mean_accepted_tokens']:.3f} tokens per step, {seconds:.1f} s")
            results.append({"workload": workload.name, "strategy": strategy, "budget": budget, **figures})
        compare_with_prompt_lookup(results)
        return results

    def _replay(
        self, workload: Workload, strategy: str, budget: int, on_tokens: Callable[[int], None]
    ) -> dict[str, Any]:
        options = ReplayOptions(budget, self.is_online, self.cost if self.is_cost_told else None, self.seed)
        # Pages are read before anything is timed.
        first = workload.traces[0]
        replay(self._drafter(strategy, budget), [replace(first, output=first.output[:_WARM_UP_TOKENS])], options)
        replayed = replay(self._drafter(strategy, budget), workload.traces, options, on_tokens)
        return replay_figures(replayed, self.cost, self.seed)

    def _drafter(self, strategy: str, budget: int) -> ReplayDrafter:
        if strategy == PROMPT_LOOKUP:
            return PromptLookupDrafter()
        from speculant_graph.draft.session_drafter import SessionDrafter

        config = DraftConfig.model_validate(self.config.model_dump() | {"strategy": strategy, "k": budget})
        return SessionDrafter(self.graph, config)


def compare_with_prompt_lookup(results: Sequence[dict[str, Any]]) -> None:
    """Add ``over_prompt_lookup`` to every run: its tokens per step over those of prompt lookup at the same budget.

    It is None where prompt lookup was not replayed.
    """
    baselines = {
        (run["workload"], run["budget"]): run["mean_accepted_tokens"]
        for run in results
        if run["strategy"] == PROMPT_LOOKUP
    }
    for run in results:
        baseline = baselines.get((run["workload"], run["budget"]))
        run["over_prompt_lookup"] = None if baseline is None else round(run["mean_accepted_tokens"] / baseline, 4)
