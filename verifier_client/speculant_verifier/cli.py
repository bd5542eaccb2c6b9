"""``speculant generate``: continue a prompt, with drafts from a graph file or from a sidecar."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic_settings import CliPositionalArg

from speculant_graph.config import ClientConfig, DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import ConfigError
from speculant_graph.log import log_to_stderr
from speculant_graph.settings import CommandSettings, load_settings

if TYPE_CHECKING:
    from speculant_verifier.results import GenerationResult


class GenerateSettings(CommandSettings):
    """Continue a prompt with a model, sooner with drafts. The text goes to standard output as it is made."""

    prompt: CliPositionalArg[str] = ""
    """Text to continue; without it standard input is read."""
    graph_path: Path | None = None
    """Draft in this process from this graph file."""
    json_output: bool = False
    """Print one JSON object with text and statistics instead of the text."""
    verifier: VerifierConfig = VerifierConfig()
    """The model."""
    draft: DraftConfig = DraftConfig()
    """How much to draft."""
    generation: GenerationConfig = GenerationConfig()
    """How tokens are chosen."""
    client: ClientConfig = ClientConfig()
    """The drafter sidecar, if there is one."""


def run(arguments: Sequence[str]) -> int:
    """Generate; print text as it comes and a line of statistics on standard error."""
    settings = load_settings(GenerateSettings, "generate", arguments)
    prompt = settings.prompt or sys.stdin.read().removesuffix("\n")
    if not prompt:
        raise ConfigError("there is no prompt; give one as an argument or on standard input")
    from rich.console import Console

    from speculant_verifier.console import print_event, quiet_transformers
    from speculant_verifier.decoder import SpeculativeDecoder

    quiet_transformers()
    log_to_stderr("INFO")
    console = Console(highlight=False, soft_wrap=True)
    with SpeculativeDecoder(
        settings.graph_path, settings.verifier, settings.draft, client_config=settings.client
    ) as decoder:
        if decoder.drafter.state == "off" and settings.draft.k:
            sys.stderr.write(
                f"plain decoding: strategy {settings.draft.strategy} needs --graph-path or --address; "
                "--strategy tree drafts from the sequence itself, too\n"
            )
        for event in decoder.stream(prompt, settings.generation):
            if not settings.json_output:
                print_event(console, event)
            result = event.result
    assert result is not None
    if settings.json_output:
        sys.stdout.write(json.dumps(_report(result)) + "\n")
        return 0
    sys.stdout.write("\n")
    sys.stderr.write(
        f"{len(result.token_ids)} tokens, {result.tokens_per_s:.1f} tokens/s, {result.mean_accepted_tokens:.2f} per "
        f"step, {result.num_accepted} of {result.num_drafted} drafted accepted ({result.acceptance_rate:.0%}), "
        f"{result.num_steps_without_drafter} of {result.num_steps} steps without the drafter\n"
    )
    return 0


def _report(result: GenerationResult) -> dict[str, object]:
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "tokens_per_s": round(result.tokens_per_s, 2),
        "mean_accepted_tokens": round(result.mean_accepted_tokens, 4),
        "acceptance_rate": round(result.acceptance_rate, 4),
        "num_steps": result.num_steps,
        "num_steps_without_drafter": result.num_steps_without_drafter,
        "num_drafted": result.num_drafted,
        "num_accepted": result.num_accepted,
        "drafted_by_depth": list(result.drafted_by_depth),
        "accepted_by_depth": list(result.accepted_by_depth),
    }
