"""``speculant generate``: continue prompts, with drafts from a graph file or from a sidecar."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic_settings import CliPositionalArg

from speculant_graph.cli.terminal import printable
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_verifier.command_settings import DecodingSettings

if TYPE_CHECKING:
    from speculant_verifier.console import ColorChoice
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.generate.input import PromptLine
    from speculant_verifier.results import StepEvent
    from speculant_verifier.text import Prompt


class GenerateSettings(DecodingSettings):
    """Continue prompts with a model, sooner with drafts. The text goes to standard output as it is made.

    A line of statistics goes to standard error, also after Ctrl-C. The exit status is 1 if a prompt could not be
    continued.
    """

    prompt: CliPositionalArg[list[str]] = []  # noqa: RUF012 - every instance gets its own copy
    """Text to continue; several are decoded together. Without any and without --prompts, or for '-', all of standard
    input."""
    prompts: Path | None = None
    """File with more prompts, one on each line; '-' is standard input. In a file named .jsonl a line is a text, or an
    object with 'prompt' (text or token ids) or 'messages' (a conversation), and 'generation', its own settings."""
    chat: bool = False
    """Put every prompt through the model's chat template, as a message of the user."""
    system: str = ""
    """With --chat: a system message before it."""
    json_output: bool = False
    """Print one JSON object a line for every result, with text, token ids, statistics and any error, and with
    log-probabilities where they are asked for, instead of the text."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour accepted drafts and the model's own tokens: 'auto' does on a terminal, unless NO_COLOR is set."""


def run(arguments: Sequence[str]) -> int:
    """Generate; print text as it comes and a line of statistics on standard error."""
    settings = load_settings(GenerateSettings, "generate", arguments)
    if settings.system and not settings.chat:
        raise ConfigError("--system is for conversations; add --chat")
    from speculant_verifier.generate.input import prompts_for, read_prompts

    lines = read_prompts(settings.prompt, settings.prompts, settings.generation)
    log_to_stderr("INFO")
    with open_decoder(settings, settings.color) as decoder:
        prompts = prompts_for(decoder, lines, is_chat=settings.chat, system=settings.system)
        try:
            return _generate(decoder, prompts, lines, settings)
        finally:
            if decoder.recorder is not None:
                decoder.recorder.flush()
                sys.stderr.write(f"recorded: {decoder.recorder.statistics.line()}\n")


def open_decoder(settings: DecodingSettings, color: ColorChoice) -> SpeculativeDecoder:
    """Load what the settings name, with a warning if it drafts nothing."""
    from speculant_verifier.console import quiet_transformers, waiting_for
    from speculant_verifier.sources import require_sources

    with waiting_for(f"loading {printable(settings.verifier.model_name)}", color):
        require_sources(settings.verifier, settings.graph_path, settings.client)
        from speculant_verifier.decoder import SpeculativeDecoder

        quiet_transformers()
        decoder = SpeculativeDecoder(
            settings.graph_path,
            settings.verifier,
            settings.draft,
            client_config=settings.client,
            draft_model=settings.draft_model,
            record=settings.record,
        )
    if decoder.drafter.state == "off" and settings.draft.k:
        sys.stderr.write(
            f"plain decoding: strategy {settings.draft.strategy} needs --graph-path or --address; "
            "--strategy tree drafts from the sequence itself, too\n"
        )
    return decoder


def _generate(
    decoder: SpeculativeDecoder, prompts: list[Prompt], lines: Sequence[PromptLine], settings: GenerateSettings
) -> int:
    from speculant_verifier.console import legend, make_console
    from speculant_verifier.generate.output import InOrder, JsonPrinter, TextPrinter, ending
    from speculant_verifier.run_statistics import RunMeter

    num_samples = [line.config.n for line in lines]
    console, notes = make_console(settings.color), make_console(settings.color, stderr=True)
    meter = RunMeter(decoder)
    printer = (
        JsonPrinter(sys.stdout, decoder.target.decode) if settings.json_output else TextPrinter(console, num_samples)
    )
    reasons: list[str] = []

    def show(events: Iterator[StepEvent]) -> None:
        for event in events:
            printer.print(event)
            if event.result is None:
                continue
            reasons.append(event.result.finish_reason)
            if event.result.error:
                location = lines[event.prompt_index].location
                message = f"{location}: {event.result.error}" if location else event.result.error
                sys.stderr.write(f"speculant: generate: {printable(message)}\n")

    def conclude(missing: str = "") -> None:
        if not settings.json_output and any(reason != "error" for reason in (*reasons, missing or "error")):
            notes.print(meter.statistics().line() + ending(reasons, sum(num_samples), missing), style="dim")

    is_coloured = not settings.json_output and console.color_system and notes.is_terminal
    needs_legend = is_coloured and decoder.drafter.state != "off"
    order = InOrder(num_samples)
    try:
        for event in decoder.stream(prompts, [line.config for line in lines]):
            meter.note(event)
            if needs_legend:
                notes.print(legend())
                needs_legend = False
            show(order.push(event))
    except BrokenPipeError:
        raise  # no reader is left
    except BaseException as end:
        show(order.rest())  # what was decoded before an interruption is not lost
        printer.stop()
        conclude("error" if isinstance(end, Exception) else "interrupted")
        raise
    conclude()
    return 1 if "error" in reasons else 0
