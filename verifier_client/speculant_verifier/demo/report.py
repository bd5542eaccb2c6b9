"""How the demo looks: coloured text while it decodes, a table, and one JSON object for machines."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from rich.console import Console
from rich.table import Table
from rich.text import Text

from speculant_graph.machine import describe_machine
from speculant_verifier.console import ACCEPTED_STYLE, OWN_STYLE, print_event
from speculant_verifier.results import GenerationResult, StepEvent


@dataclass(frozen=True, slots=True)
class Outcome:
    """What was measured for one prompt, or for all of them together."""

    prompt: str
    num_tokens: int
    plain_s: float
    speculative_s: float
    num_steps: int
    num_drafted: int
    num_accepted: int
    num_steps_without_drafter: int
    round_trips_s: tuple[float, ...]
    identical: bool

    @property
    def speedup(self) -> float:
        """Plain time over speculative time."""
        return self.plain_s / self.speculative_s

    def figures(self) -> dict[str, object]:
        """Return the keys that every demo object has."""
        return {
            "identical": self.identical,
            "speedup": round(self.speedup, 3),
            "plain_tokens_per_s": round(self.num_tokens / self.plain_s, 2),
            "speculative_tokens_per_s": round(self.num_tokens / self.speculative_s, 2),
            "mean_accepted_tokens": round(self.num_tokens / self.num_steps, 3),
            "acceptance_rate": round(self.num_accepted / self.num_drafted, 4) if self.num_drafted else 0.0,
            "draft_us_p50": _quantile_us(self.round_trips_s, 0.50),
            "draft_us_p99": _quantile_us(self.round_trips_s, 0.99),
            "tokens": self.num_tokens,
            "steps": self.num_steps,
            "steps_without_drafter": self.num_steps_without_drafter,
        }


def total(outcomes: Sequence[Outcome]) -> Outcome:
    """Add outcomes up: times and counts are sums, so the speed-up is that of all prompts decoded in a row."""
    return Outcome(
        prompt="all",
        num_tokens=sum(o.num_tokens for o in outcomes),
        plain_s=sum(o.plain_s for o in outcomes),
        speculative_s=sum(o.speculative_s for o in outcomes),
        num_steps=sum(o.num_steps for o in outcomes),
        num_drafted=sum(o.num_drafted for o in outcomes),
        num_accepted=sum(o.num_accepted for o in outcomes),
        num_steps_without_drafter=sum(o.num_steps_without_drafter for o in outcomes),
        round_trips_s=tuple(time for o in outcomes for time in o.round_trips_s),
        identical=all(o.identical for o in outcomes),
    )


class DemoReport:
    """Prints what happens, and collects what was measured."""

    def __init__(self, arguments: Sequence[str]) -> None:
        """Begin a report about a run with these arguments."""
        self._arguments = list(arguments)
        self._console = Console(highlight=False)
        self._outcomes: list[Outcome] = []

    def show_line(self, line: str) -> None:
        """Print a line about the preparations."""
        self._console.print(line, soft_wrap=True)

    def show_prompt(self, index: int, count: int, prompt: str) -> None:
        """Print the head of a prompt's section."""
        self._console.rule(f"prompt {index} of {count}", align="left")
        self._console.print(Text(prompt, "bold"))

    def show_stream(self, name: str, events: Iterator[StepEvent]) -> GenerationResult:
        """Print text as it is decoded and return the result."""
        legend = f"[dim]\\[{name}][/]"
        if name != "plain" and self._console.color_system:
            legend += f"  [{ACCEPTED_STYLE}]accepted from the draft[/]  [{OWN_STYLE}]the model's own[/]"
        self._console.print(legend)
        result = None
        for event in events:
            if name == "plain":
                self._console.print(Text(event.text, "dim"), end="", soft_wrap=True)
            else:
                print_event(self._console, event)
            result = event.result
        self._console.print()
        assert result is not None
        return result

    def add(self, outcome: Outcome, *, identical: bool) -> None:
        """Take in what was measured for a prompt."""
        self._outcomes.append(replace(outcome, identical=identical))

    def finish(self, *, as_json: bool) -> int:
        """Print the table (and the JSON object); the exit status of the demo."""
        everything = total(self._outcomes)
        self._console.rule("tokens per second, tokens per forward pass, accepted share of drafted tokens", align="left")
        self._console.print(self._table(everything))
        if everything.identical:
            self._console.print("every text is identical to plain decoding")
        else:
            self._console.print("[bold red]a speculative text differs from plain decoding: this is a defect[/]")
        if as_json:
            report = everything.figures() | {
                "prompts": [{"prompt": o.prompt} | o.figures() for o in self._outcomes],
                "machine": describe_machine(),
                "command": ["speculant", "demo", *self._arguments],
            }
            sys.stdout.write(json.dumps(report) + "\n")
        return 0 if everything.identical else 1

    def _table(self, everything: Outcome) -> Table:
        table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0))
        for name in (
            "prompt",
            "tokens",
            "plain/s",
            "spec./s",
            "faster",
            "per step",
            "accepted",
            "RPC p50",
            "p99",
            "same",
        ):
            table.add_column(name, justify="right", no_wrap=True)
        for index, outcome in enumerate([*self._outcomes, everything], start=1):
            figures = outcome.figures()
            table.add_row(
                "all" if outcome is everything else f"{index}",
                f"{outcome.num_tokens}",
                f"{figures['plain_tokens_per_s']:.0f}",
                f"{figures['speculative_tokens_per_s']:.0f}",
                f"×{outcome.speedup:.2f}",
                f"{figures['mean_accepted_tokens']:.2f}",
                f"{figures['acceptance_rate']:.0%}",
                f"{figures['draft_us_p50']:.0f} µs",
                f"{figures['draft_us_p99']:.0f} µs",
                "yes" if outcome.identical else "NO",
                style="bold" if outcome is everything else "",
            )
        return table


def _quantile_us(times_s: Sequence[float], share: float) -> float:
    if not times_s:
        return 0.0
    ordered = sorted(times_s)
    return round(1e6 * ordered[min(len(ordered) - 1, int(share * len(ordered)))], 1)
