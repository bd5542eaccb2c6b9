"""``speculant generate``: continues prompts, with drafts from a graph file or a sidecar."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from pydantic_settings import CliPositionalArg

from speculant_graph.errors import ConfigError, GenerationRequestError
from speculant_graph.file_names import json_text
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import load_settings
from speculant_graph.terminal import printable
from speculant_graph.types import TokenId
from speculant_verifier.cli.decoding_settings import DecodingSettings

if TYPE_CHECKING:
    from rich.console import Console

    from speculant_verifier.cli.console import ColorChoice
    from speculant_verifier.cli.prompt_input import PromptLine
    from speculant_verifier.conversation.text import Prompt
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.results import StepEvent

_REPORTED = (
    "sample", "text", "token_ids", "finish_reason", "error", "tokens_per_s", "mean_accepted_tokens", "acceptance_rate",
    "num_steps", "num_steps_without_drafter", "num_drafts", "num_drafted", "num_accepted", "num_from_target_cache",
    "num_from_prefix_cache", "num_tried", "rolling_acceptance", "tree_hit_rate", "target_cache_hit_rate",
    "drafted_by_depth", "accepted_by_depth",
)  # fmt: skip
"""Names of the result fields that --json-output prints."""


class GenerateSettings(DecodingSettings):
    """Continue prompts with a model; drafts make this faster.

    The text goes to standard output during generation. A line of statistics goes to standard error, even after Ctrl-C.
    The exit status is 1 if a prompt failed.
    """

    prompt: CliPositionalArg[list[str]] = []  # noqa: RUF012 - every instance gets its own copy
    """Text to continue; several texts are decoded together. '-' reads standard input to its end, which is also the
    default if --prompts is absent."""
    prompts: Path | None = None
    """File with more prompts, one per line; '-' is standard input. In a .jsonl file, each line is a text, or an object
    with the field 'prompt' (text or token ids) or 'messages' (a conversation). The object's field 'document' names the
    document of the prompt, for the request records."""
    chat: bool = False
    """Treat every prompt as a user message, and apply the model's chat template to it."""
    system: str = ""
    """System message to put before every prompt; requires --chat."""
    json_output: bool = False
    """Print each result as one line of JSON instead of plain text. The JSON contains text, token ids, statistics, any
    error and, if requested, log-probabilities."""
    color: Literal["auto", "never", "always"] = "auto"
    """Colour accepted draft tokens and the model's own tokens. 'auto' does this only on a terminal, and not if NO_COLOR
    is set."""


def run(arguments: Sequence[str]) -> int:
    """Continue the prompts; print text as it arrives, and a line of statistics to standard error."""
    settings = load_settings(GenerateSettings, "generate", arguments)
    if settings.system and not settings.chat:
        raise ConfigError("--system is for conversations; add --chat")
    from speculant_verifier.cli.prompt_input import prompts_for, read_prompts

    lines = read_prompts(settings.prompt, settings.prompts)
    log_to_stderr("INFO")
    with open_decoder(settings, settings.color) as decoder:
        _require_settings(decoder, settings)
        prompts = prompts_for(decoder, lines, is_chat=settings.chat, system=settings.system)
        try:
            return _generate(decoder, prompts, lines, settings)
        finally:
            if decoder.engine.recorder is not None:
                decoder.engine.recorder.flush()
                sys.stderr.write(f"recorded: {decoder.engine.recorder.statistics.line()}\n")


def _require_settings(decoder: SpeculativeDecoder, settings: GenerateSettings) -> None:
    """Reject settings that are invalid for every prompt.

    Raises:
        ConfigError: a setting is invalid; the message names it.
    """
    from speculant_verifier.sampling.sampler import check_settings

    try:
        check_settings(settings.generation, decoder.target.vocabulary_size)
        decoder.target.grammar(settings.generation, ())
    except GenerationRequestError as error:
        raise error.as_class(ConfigError) from error


def open_decoder(settings: DecodingSettings, color: ColorChoice) -> SpeculativeDecoder:
    """Load the model and open the drafter, while a status line is shown."""
    from speculant_verifier.cli.console import waiting_for
    from speculant_verifier.sources import require_sources

    with waiting_for(f"loading {printable(settings.verifier.model_name)}", color):
        require_sources(settings.verifier, settings.graph_path, settings.client)
        return settings.open_decoder()


def _generate(
    decoder: SpeculativeDecoder, prompts: list[Prompt], lines: Sequence[PromptLine], settings: GenerateSettings
) -> int:
    from speculant_verifier.cli.console import RunMeter, legend, make_console

    console, notes = make_console(settings.color), make_console(settings.color, stderr=True)
    meter = RunMeter(decoder)
    output = _JsonOutput(decoder) if settings.json_output else _TextOutput(console, len(lines), settings.generation.n)
    reasons: list[str] = []

    def conclude() -> None:
        if not settings.json_output and any(reason != "error" for reason in reasons):
            counts = ", ".join(f"{count} {reason}" for reason, count in sorted(Counter(reasons).items()))
            how = f"{len(reasons)} results ({counts})" if len(reasons) > 1 else f"ended by {reasons[0]}"
            notes.print(f"{meter.line()}, {how}", style="dim")

    if not settings.json_output and console.color_system and notes.is_terminal and decoder.drafter.state != "off":
        notes.print(legend())
    try:
        for event in decoder.stream(prompts, settings.generation, documents=[line.document for line in lines]):
            meter.note(event)
            output.add(event)
            if event.result is None:
                continue
            reasons.append(event.result.finish_reason)
            if event.result.error is not None:
                location = lines[event.prompt_index].location
                message = f"{location}: {event.result.error}" if location else str(event.result.error)
                sys.stderr.write(f"speculant: generate: {printable(message)}\n")
    except BrokenPipeError:
        raise  # the reader closed the pipe
    except BaseException as end:
        output.stop()  # show the text decoded before an interruption
        num_missing = len(lines) * settings.generation.n - len(reasons)
        reasons += ["error" if isinstance(end, Exception) else "interruption"] * num_missing
        conclude()
        raise
    conclude()
    return 1 if "error" in reasons else 0


class _TextOutput:
    """Text output. A single text is shown as it arrives; several texts are shown when complete, each with a heading."""

    def __init__(self, console: Console, num_prompts: int, num_samples: int) -> None:
        self._console, self._is_single, self._num_samples = console, num_prompts * num_samples == 1, num_samples
        self._held: dict[tuple[int, int], list[StepEvent]] = {}

    def add(self, event: StepEvent) -> None:
        self._held.setdefault((event.prompt_index, event.sample), []).append(event)
        if self._is_single or event.result is not None:
            self._show(event.prompt_index, event.sample)
        if event.result is not None:
            del self._held[event.prompt_index, event.sample]
            if event.result.token_ids or not event.result.error:
                self._console.file.write("\n")
        self._console.file.flush()

    def stop(self) -> None:
        """Show interrupted texts."""
        for prompt, sample in [*self._held]:
            self._show(prompt, sample)
            self._console.file.write("\n")
        self._console.file.flush()

    def _show(self, prompt: int, sample: int) -> None:
        from speculant_verifier.cli.console import print_event

        if not self._is_single:
            which = f", sample {sample + 1}" if self._num_samples > 1 else ""
            self._console.print(f"--- prompt {prompt + 1}{which}", style="dim", markup=False)
        events, self._held[prompt, sample] = self._held[prompt, sample], []
        for event in events:
            print_event(self._console, event)


class _JsonOutput:
    """JSON output: one line with one object for every finished sample."""

    def __init__(self, decoder: SpeculativeDecoder) -> None:
        self._decode = decoder.target.decode

    def add(self, event: StepEvent) -> None:
        if (result := event.result) is None:
            return
        report = {name: getattr(result, name) for name in _REPORTED} | {
            "error": str(result.error or ""),
            "prompt_index": event.prompt_index,
            "num_prompt_tokens": len(result.prompt_token_ids),
            "times": result.times.as_dict(),
        }
        if result.logprobs:
            report["logprobs"] = [
                self._entry(at.token_id, at.logprob)
                | {"top": [self._entry(*top) for top in zip(at.top_token_ids, at.top_logprobs, strict=True)]}
                for at in result.logprobs
            ]
        sys.stdout.write(json_text(report) + "\n")
        sys.stdout.flush()

    def stop(self) -> None:
        """Do nothing, because no JSON object is printed for interrupted samples."""

    def _entry(self, token: TokenId, logprob: float) -> dict[str, object]:
        return {"token_id": token, "text": self._decode([token]), "logprob": logprob}
