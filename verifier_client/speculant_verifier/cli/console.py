"""Shows generated text on a terminal: accepted drafts in one colour, the target's own tokens in another."""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, Literal

from rich.console import Console
from rich.segment import Segment, Segments
from rich.status import Status
from rich.style import Style
from rich.text import Text

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.results import StepEvent

ACCEPTED_STYLE = "green"
OWN_STYLE = "bold yellow"
DIM_STYLE = "dim"

ColorChoice = Literal["auto", "never", "always"]
"""Whether output is coloured; 'auto' colours it only on a terminal, and not if NO_COLOR is set."""


_STEERING = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")


def make_console(color: ColorChoice, *, stderr: bool = False) -> Console:
    """Return a console that does not wrap lines.

    Args:
        color: whether to colour.
        stderr: write to standard error instead of standard output.
    """
    if color == "always":
        return Console(
            stderr=stderr, highlight=False, soft_wrap=True, force_terminal=True, no_color=False, color_system="standard"
        )
    is_plain = color == "never" or bool(os.environ.get("NO_COLOR"))
    return Console(stderr=stderr, highlight=False, soft_wrap=True, color_system=None if is_plain else "auto")


def write(console: Console, text: str, style: str = "") -> None:
    """Write text unchanged, including tabs.

    On a terminal, control characters are shown as escapes, because a model may output any characters.
    """
    if console.is_terminal:
        text = _STEERING.sub(lambda match: match[0].encode("unicode_escape").decode(), text.replace("\r", ""))
    if text:
        console.print(Segments([Segment(text, Style.parse(style))]), soft_wrap=True)


def print_event(console: Console, event: StepEvent) -> None:
    """Print the text of a decoding step without a line end; if colours are off, add no escape sequences."""
    write(console, event.accepted_text, ACCEPTED_STYLE)
    write(console, event.text[len(event.accepted_text) :], OWN_STYLE)


def legend() -> Text:
    """Return a legend that explains the colours of the text."""
    return Text.assemble(("accepted from the draft", ACCEPTED_STYLE), "  ", ("the model's own", OWN_STYLE))


class RunMeter:
    """Measures one run of a decoder, which must have no other callers. The measured run may be interrupted."""

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        """Start measuring."""
        self._decoder = decoder
        self._before = self._counts()
        self._started_s = time.perf_counter()
        self._first_token_s: float | None = None

    def note(self, event: StepEvent) -> None:
        """Record an event."""
        if self._first_token_s is None and event.token_ids:
            self._first_token_s = time.perf_counter() - self._started_s

    def line(self) -> str:
        """Return one line of statistics on the run so far, without a line end."""
        elapsed_s = time.perf_counter() - self._started_s
        tokens, steps, without_drafter, drafted, accepted, from_cache = (
            now - before for now, before in zip(self._counts(), self._before, strict=True)
        )
        if not tokens:
            return f"{elapsed_s:.1f} s"
        parts = [f"{tokens} token{'' if tokens == 1 else 's'}", f"{tokens / elapsed_s:.1f} tokens/s"]
        if self._first_token_s is not None:
            parts.append(f"first after {self._first_token_s:.2f} s")
        if steps:
            parts.append(f"{(tokens - from_cache) / steps:.2f} per step")
        if from_cache:
            parts.append(f"{from_cache} from the target cache")
        if drafted:
            parts.append(f"{accepted} of {drafted} drafted accepted ({accepted / drafted:.0%})")
        drafter = self._decoder.drafter
        if drafter.state == "off":
            return ", ".join([*parts, "no drafter"])
        failure = drafter.statistics.last_failure if drafter.state == "unavailable" else ""
        parts.append(f"drafter {drafter.state}" + (f" ({failure})" if failure else ""))
        if steps:
            parts.append(f"{without_drafter} of {steps} steps without the drafter")
        return ", ".join(parts)

    def _counts(self) -> tuple[int, ...]:
        """Return counts: tokens, passes, passes without drafter, drafted tokens, accepted tokens, target-cache hits."""
        totals = self._decoder.totals
        return (
            totals.num_tokens,
            totals.num_rows,
            totals.num_steps_without_drafter,
            sum(totals.drafted_by_depth),
            sum(totals.accepted_by_depth),
            self._decoder.engine.logits_cache.hits,
        )


def waiting_for(what: str, color: ColorChoice) -> Status:
    """Return a context manager that shows a status line on standard error if that is a terminal.

    Args:
        what: the text, such as "loading my-model".
        color: whether to colour the status; 'always' is treated as 'auto', because the status needs a terminal.
    """
    return make_console("never" if color == "never" else "auto", stderr=True).status(Text(what))
