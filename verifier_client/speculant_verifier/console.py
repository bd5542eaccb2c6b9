"""How generated text looks on a terminal: accepted drafts in one colour, the model's own tokens in another."""

from __future__ import annotations

from rich.console import Console
from rich.text import Text
from transformers.utils import logging

from speculant_verifier.results import StepEvent

ACCEPTED_STYLE = "green"
OWN_STYLE = "bold yellow"


def print_event(console: Console, event: StepEvent) -> None:
    """Print what a step emitted, without a line end; where there are no colours, the very characters."""
    if not console.is_terminal:
        console.file.write(event.text)
        return
    own = event.text[len(event.accepted_text) :]
    console.print(Text.assemble((event.accepted_text, ACCEPTED_STYLE), (own, OWN_STYLE)), end="")


def quiet_transformers() -> None:
    """Keep progress bars and advice of transformers out of a program's output; errors still raise."""
    logging.set_verbosity_error()
    logging.disable_progress_bar()
