"""What ``speculant generate`` is to continue: texts, conversations and token ids, from arguments, files and a pipe."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.types import TokenId
from speculant_graph.validation_messages import humanise

if TYPE_CHECKING:
    from speculant_verifier.chat_template import Message
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.text import Prompt

STANDARD_INPUT = Path("-")
_JSON_SUFFIXES = (".jsonl", ".ndjson")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt as it was given."""

    prompt: str | list[TokenId] | None
    """Text or token ids; None: it is a conversation."""
    messages: list[Message]
    """Those of the conversation."""
    config: GenerationConfig
    """How it is to be continued."""
    location: str
    """Where it was given, for messages to people; empty if there is only one."""


def read_prompts(texts: Sequence[str], path: Path | None, config: GenerationConfig) -> list[PromptLine]:
    """Collect prompts: the arguments, then the lines of a file; without both, all of standard input is one prompt.

    Args:
        texts: arguments; '-' alone is standard input.
        path: JSON Lines if its name ends in .jsonl or .ndjson, otherwise one text a line; '-' is standard input.
        config: settings of all prompts that do not bring their own.

    Raises:
        ConfigError: there is no prompt, or a file can't be read; the message names the line.
    """
    if list(texts) == [str(STANDARD_INPUT)] or (not texts and path is None):
        texts = [_standard_input().removesuffix("\n")]
        if not texts[0]:
            raise ConfigError("there is no prompt; give one as an argument, by --prompts or on standard input")
    locations = [f"prompt {i}" if len(texts) > 1 or path else "" for i in range(1, len(texts) + 1)]
    given = [PromptLine(text, [], config, location) for text, location in zip(texts, locations, strict=True)]
    if path is not None:
        given += _from_file(path, config)
    if not given:
        raise ConfigError(f"'{path}' holds no prompts; write one on each line")
    return given


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is no text ({error.reason}); give UTF-8") from error


def _from_file(path: Path, config: GenerationConfig) -> Iterator[PromptLine]:
    try:
        content = _standard_input() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise ConfigError(f"can't read the prompts in '{path}' ({reason}); give a text file in UTF-8") from error
    is_json = path.suffix.lower() in _JSON_SUFFIXES
    # Only line feeds end lines: prompts may hold other characters that str.splitlines takes for line ends.
    for line_number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            location = f"line {line_number} of '{path}'"
            yield (
                _from_json(line, config, location)
                if is_json
                else PromptLine(line.removesuffix("\r"), [], config, location)
            )


def _from_json(line: str, config: GenerationConfig, location: str) -> PromptLine:
    try:
        value: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{location} is no JSON; write {{"prompt": "..."}}, or name the file .txt') from error
    record: dict[str, Any] = value if isinstance(value, dict) else {"prompt": value}
    if ("prompt" in record) == ("messages" in record):
        raise ConfigError(f"{location} needs a 'prompt' (text or token ids) or 'messages'; give one of them")
    settings = _with(config, record.get("generation", {}), location)
    if "messages" in record:
        return PromptLine(None, record["messages"], settings, location)
    if not isinstance(record["prompt"], str) and not _are_token_ids(record["prompt"]):
        raise ConfigError(f"{location}: the prompt is neither text nor a list of token ids; give one of them")
    return PromptLine(record["prompt"], [], settings, location)


def _are_token_ids(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in value)


def _with(config: GenerationConfig, changes: object, location: str) -> GenerationConfig:
    if not isinstance(changes, dict):
        raise ConfigError(f'{location}: generation must be a table of settings such as {{"max_tokens": 20}}')
    try:
        return GenerationConfig.model_validate(config.model_dump() | changes)
    except ValidationError as error:
        first: Any = error.errors()[0]
        setting = ".".join(str(part) for part in first["loc"])
        raise ConfigError(f"{location}: generation.{setting}: {humanise(first)}") from error


def prompts_for(
    decoder: SpeculativeDecoder, lines: Sequence[PromptLine], *, is_chat: bool, system: str
) -> list[Prompt]:
    """Return what the decoder continues: conversations go through the model's chat template.

    Args:
        decoder: has the template.
        lines: the prompts.
        is_chat: whether texts are messages of a user.
        system: a system message before them, if it is not empty; conversations are left as they are.

    Raises:
        GenerationError: there is no template, or it refuses the messages; the message names the prompt.
    """
    head: list[Message] = [{"role": "system", "content": system}] if system else []
    prompts: list[Prompt] = []
    for line in lines:
        messages = line.messages
        if is_chat and isinstance(line.prompt, str):
            messages = [*head, {"role": "user", "content": line.prompt}]
        elif line.prompt is not None:
            prompts.append(line.prompt)
            continue
        try:
            prompts.append(decoder.chat_prompt(messages))
        except GenerationError as error:
            raise GenerationError(f"{line.location}: {error}" if line.location else str(error)) from error
    return prompts
