"""Reads prompts for ``speculant generate``: texts, conversations and token ids from arguments, files and a pipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.json_lines import DoubledNameError, read_json
from speculant_graph.types import TokenId

if TYPE_CHECKING:
    from speculant_verifier.conversation.template_prompt import Message
    from speculant_verifier.conversation.text import Prompt
    from speculant_verifier.decoder import SpeculativeDecoder

STANDARD_INPUT = Path("-")


@dataclass(frozen=True, slots=True)
class PromptLine:
    """One prompt as the user gave it."""

    prompt: str | list[TokenId] | None
    """The prompt's text or token ids; None if the prompt is a conversation."""
    messages: list[Message]
    """Messages of the conversation; empty if the prompt is text or token ids."""
    location: str
    """Location of the prompt, for error messages; empty for a single prompt that is not from a file."""
    document: str = ""
    """Name of the document that the prompt belongs to, for the request records; empty if unknown."""


def read_prompts(texts: Sequence[str], path: Path | None) -> list[PromptLine]:
    """Return the prompts from arguments, then from a file; if neither is given, standard input is one prompt.

    Args:
        texts: prompts given as arguments; a single '-' is standard input.
        path: a file of JSON Lines if its name ends in .jsonl, otherwise with one text per line; '-' is standard input.

    Raises:
        ConfigError: there is no prompt, or a file can't be read; the message names the line.
    """
    if list(texts) == [str(STANDARD_INPUT)] or (not texts and path is None):
        texts = [_standard_input().removesuffix("\n")]
        if not texts[0]:
            raise ConfigError("there is no prompt; give one as an argument, with --prompts or on standard input")
    locations = [f"prompt {i}" if len(texts) > 1 or path else "" for i in range(1, len(texts) + 1)]
    given = [PromptLine(text, [], location) for text, location in zip(texts, locations, strict=True)]
    if path is not None:
        given += _from_file(path)
    if not given:
        raise ConfigError(f"'{path}' holds no prompts; write one on each line")
    return given


def _standard_input() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not text ({error.reason}); give UTF-8") from error


def _from_file(path: Path) -> Iterator[PromptLine]:
    try:
        content = _standard_input() if path == STANDARD_INPUT else path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error.reason
        raise ConfigError(f"can't read the prompts in '{path}' ({reason}); give a text file in UTF-8") from error
    is_json = path.suffix == ".jsonl"
    # Only line feeds end lines, because prompts may contain other characters that str.splitlines splits at.
    for line_number, line in enumerate(content.split("\n"), 1):
        if line.strip():
            location = f"line {line_number} of '{path}'"
            yield _from_json(line, location) if is_json else PromptLine(line.removesuffix("\r"), [], location)


def _from_json(line: str, location: str) -> PromptLine:
    try:
        value: Any = read_json(line)
    except DoubledNameError as error:
        raise ConfigError(f"{location}: {error}; leave one of them out") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f'{location} is not JSON; write {{"prompt": "..."}}, or name the file .txt') from error
    record: dict[str, Any] = value if isinstance(value, dict) else {"prompt": value}
    if "prompt" in record and "messages" in record:
        raise ConfigError(f"{location} has a 'prompt' and 'messages'; leave one of them out")
    if "prompt" not in record and "messages" not in record:
        raise ConfigError(f"{location} has no 'prompt' (text or token ids) and no 'messages'; give one of them")
    if "generation" in record:
        raise ConfigError(
            f"{location}: prompts have no settings of their own; give them as flags, without 'generation'"
        )
    document = record.get("document", "")
    if not isinstance(document, str):
        raise ConfigError(f"{location}: the document is not text; name the prompt's document")
    if "messages" in record:
        return PromptLine(None, record["messages"], location, document)
    prompt = record["prompt"]
    is_ids = isinstance(prompt, list) and all(isinstance(item, int) and not isinstance(item, bool) for item in prompt)
    if not is_ids and not isinstance(prompt, str):
        raise ConfigError(f"{location}: the prompt is neither text nor a list of token ids; give one of them")
    return PromptLine(prompt, [], location, document)


def prompts_for(
    decoder: SpeculativeDecoder, lines: Sequence[PromptLine], *, is_chat: bool, system: str
) -> list[Prompt]:
    """Return prompts for the decoder, with conversations rendered by the model's chat template.

    Args:
        decoder: the decoder whose chat template is applied.
        lines: the prompts.
        is_chat: whether texts are user messages.
        system: a system message before the user messages, if not empty; conversations are unchanged.

    Raises:
        GenerationError: there is no template, or it rejects the messages; the error names the prompt.
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
