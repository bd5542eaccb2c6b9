"""``speculant collect-data``: what ``generate --prompts FILE --record DIR`` does, without the text."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_verifier.command_settings import DecodingSettings

if TYPE_CHECKING:
    from speculant_verifier.records.writer import WriterStatistics


class CollectSettings(DecodingSettings):
    """Continue the prompts of a file, as 'generate' does, and write records of them, which 'train' needs.

    The text goes nowhere. Ctrl-C keeps what was finished. The exit status is 1 if a prompt could not be continued.
    """

    prompts: CliPositionalArg[Path]
    """File with prompts, as for 'generate --prompts'; '-' is standard input."""
    chat: bool = False
    """Put every prompt through the model's chat template, as a message of the user."""
    system: str = ""
    """With --chat: a system message before it."""
    json_output: bool = False
    """Print one JSON object with the counts as the last line."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour progress: 'auto' does on a terminal, unless NO_COLOR is set."""


def run(arguments: Sequence[str]) -> int:
    """Decode and record; counts on standard output, progress on standard error."""
    settings = load_settings(CollectSettings, "collect-data", arguments)
    if settings.record.folder is None:
        raise ConfigError("there is no folder for records; name one with --record")
    if settings.system and not settings.chat:
        raise ConfigError("--system is for conversations; add --chat")
    from speculant_verifier.generate.command import open_decoder
    from speculant_verifier.generate.input import prompts_for, read_prompts

    lines = read_prompts((), settings.prompts, settings.generation)
    log_to_stderr("INFO")
    from rich.progress import track

    from speculant_verifier.console import make_console

    num_tokens = num_errors = 0
    with open_decoder(settings, settings.color) as decoder:
        prompts = prompts_for(decoder, lines, is_chat=settings.chat, system=settings.system)
        events = decoder.stream(prompts, [line.config for line in lines])
        ended = ((event.prompt_index, event.result) for event in events if event.result is not None)
        total = sum(line.config.n for line in lines)
        notes = make_console(settings.color, stderr=True)
        try:
            for index, result in track(ended, "requests", total, console=notes, disable=not notes.is_terminal):
                num_tokens += len(result.token_ids)
                num_errors += bool(result.error)
                if result.error:
                    sys.stderr.write(f"speculant: collect-data: {printable(f'{lines[index].place}: {result.error}')}\n")
        finally:
            assert decoder.recorder is not None
            decoder.recorder.flush()
            counts = decoder.recorder.statistics
            print_counts(counts, num_tokens, as_json=settings.json_output)
    return 1 if num_errors or counts.lost else 0


def print_counts(counts: WriterStatistics, num_tokens: int, *, as_json: bool) -> None:
    """Print what was recorded."""
    shown = {
        "requests": counts.recorded,
        "failures": counts.failures,
        "replay": counts.written - counts.failures,
        "passed_over": counts.passed_over,
        "lost": counts.lost,
        "tokens": num_tokens,
    }
    text = ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in shown.items())
    sys.stdout.write(f"{json.dumps(shown) if as_json else text}\n")
