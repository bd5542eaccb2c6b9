"""Converts messages to prompts in the harmony format, with the same tokens that OpenAI's own library produces.

Every instruction, tool call and tool output of a conversation is kept. Message texts never become control tokens; only
the frame around the messages has control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from loguru import logger

from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import TokenId
from speculant_verifier.conversation.harmony_tokens import (
    CALL,
    CHANNEL,
    CONSTRAIN,
    END,
    MESSAGE,
    RETURN,
    START,
    HarmonyTokens,
)
from speculant_verifier.conversation.harmony_tools import namespace_of

_IDENTITY = "You are ChatGPT, a large language model trained by OpenAI."
_KNOWLEDGE_CUTOFF = "2024-06"
_CHANNELS = "# Valid channels: analysis, commentary, final. Channel must be included for every message."
_CALLS_GO_TO = "\nCalls to these tools must go to the commentary channel: 'functions'."
INSTRUCTING = ("system", "developer")
"""Roles of the messages that contain instructions."""
_REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
_TAKEN = {
    "model_identity", "knowledge_cutoff", "conversation_start_date", "reasoning_effort", "add_generation_prompt",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HarmonyMessage:
    """One message in the harmony format."""

    author: str
    """Author of the message: a tool, or a role with an optional name."""
    text: str
    """Text of the message, without its header."""
    recipient: str = ""
    """Recipient of the message: a tool, or 'assistant'; empty for the user."""
    channel: str = ""
    """Channel of the message: 'analysis', 'commentary' or 'final'; empty if the message has no channel."""
    is_json: bool = False
    """Whether the message's header declares the text as JSON."""
    is_call: bool = False
    """Whether the message is a tool call."""


class HarmonyPrompt:
    """Converts conversations to token ids of one tokenizer, in the harmony format."""

    def __init__(self, tokens: HarmonyTokens, encode: Callable[[Sequence[str]], list[list[TokenId]]]) -> None:
        """Store the control tokens, and a function that encodes text and never returns a control token."""
        self._ids, self._encode = tokens.ids, encode

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
    ) -> list[TokenId]:
        """Return the token ids of a conversation.

        Args:
            messages: messages of the conversation, in the format of OpenAI's chats.
            tools: the available tools.
            options: options of the prompt: ``reasoning_effort``, ``model_identity``, ``knowledge_cutoff``,
                ``conversation_start_date``, and ``add_generation_prompt``. ``builtin_tools`` is refused; all other
                options are ignored.

        Raises:
            GenerationRequestError: a message has an unknown role, or answers no call.
        """
        is_open = bool(options.get("add_generation_prompt", True))
        parts: list[str | TokenId] = []
        rendered = harmony_messages(messages, tools, options)
        for message in rendered:
            parts += self._parts(message)
        if is_open:
            parts += [self._ids[START], "assistant"]
        elif rendered[-1].channel == "final":
            parts[-1] = self._ids[RETURN]
        encoded = iter(self._encode([part for part in parts if isinstance(part, str)]))
        token_ids: list[TokenId] = []
        for part in parts:
            token_ids += next(encoded) if isinstance(part, str) else [part]
        return token_ids

    def _parts(self, message: HarmonyMessage) -> Iterator[str | TokenId]:
        """Yield a message's texts and control tokens in order; each text is encoded separately."""
        yield from (self._ids[START], message.author)
        if message.recipient:
            yield f" to={message.recipient}"
        if message.channel:
            yield from (self._ids[CHANNEL], message.channel)
        if message.is_json:
            yield from (" ", self._ids[CONSTRAIN], "json")
        yield from (self._ids[MESSAGE], message.text)
        yield self._ids[CALL if message.is_call else END]


def harmony_messages(
    messages: Sequence[Mapping[str, Any]], tools: Sequence[Mapping[str, Any]], options: Mapping[str, Any]
) -> list[HarmonyMessage]:
    """Return the messages of a conversation in the harmony format, without outdated reasoning.

    Reasoning before the last message of channel ``final`` is dropped, as OpenAI's documentation says. Reasoning after
    the last ``final`` message stays, because a chain of tool calls depends on it.

    Raises:
        GenerationRequestError: a message has an unknown role, or answers no call.
    """
    head = 0
    while head < len(messages) and messages[head]["role"] in INSTRUCTING and not messages[head].get("name"):
        head += 1
    rendered = [_system(options, has_tools=bool(tools))]
    told = [text for message in messages[:head] if (text := text_of(message.get("content")))]
    sections = ["# Instructions", "\n\n".join(told)] if told else []
    sections += ["# Tools", namespace_of(tools)] if tools else []
    if sections:
        rendered.append(HarmonyMessage("developer", "\n\n".join(sections)))
    calls = _Calls()
    for index, message in enumerate(messages[head:], head):
        rendered += _rendered(message, index, calls)
    last = len(rendered) if options.get("add_generation_prompt", True) else len(rendered) - 1
    finals = [index for index, message in enumerate(rendered[:last]) if message.channel == "final"]
    kept_from = finals[-1] if finals else 0
    return [each for index, each in enumerate(rendered) if index >= kept_from or each.channel != "analysis"]


def text_of(content: object) -> str:
    """Return the text of a message's content; the texts of several parts are joined by line feeds."""
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, Sequence):
        texts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if all(isinstance(text, str) for text in texts):
            return "\n".join(map(str, texts))
    raise GenerationRequestError("a content is neither a text nor a list of text parts; give one of them")


def _system(options: Mapping[str, Any], *, has_tools: bool) -> HarmonyMessage:
    if options.get("builtin_tools"):
        raise GenerationRequestError("builtin_tools are not served; give them as tools of the type 'function'")
    if unknown := sorted(options.keys() - _TAKEN):
        logger.debug("harmony's prompt ignores the options {}", ", ".join(unknown))
    today = f"{datetime.now():%Y-%m-%d}"
    lines = [
        str(options.get("model_identity") or _IDENTITY),
        f"Knowledge cutoff: {options.get('knowledge_cutoff') or _KNOWLEDGE_CUTOFF}",
        f"Current date: {options.get('conversation_start_date') or today}\n",
        f"Reasoning: {options.get('reasoning_effort') or 'medium'}\n",
        _CHANNELS + (_CALLS_GO_TO if has_tools else ""),
    ]
    return HarmonyMessage("system", "\n".join(lines))


class _Calls:
    """Tool calls of the messages read so far; finds the call to which an output belongs."""

    def __init__(self) -> None:
        self._names: dict[str, str] = {}
        self._unanswered: list[tuple[str | None, str]] = []

    def add(self, call_id: str | None, name: str) -> None:
        """Record a call."""
        self._unanswered.append((call_id, name))
        if call_id is not None:
            self._names[call_id] = name

    def answered(self, message: Mapping[str, Any], index: int) -> str:
        """Return the name of the tool that produced the output in a message."""
        call_id, name = message.get("tool_call_id"), message.get("name")
        if call_id is not None and (known := self._names.get(str(call_id))) is not None:
            self._unanswered = [each for each in self._unanswered if each[0] != call_id]
            return known
        if call_id is None or not self._names:  # without ids, outputs are in the order of the calls
            if name:
                return str(name)
            if self._unanswered:
                return self._unanswered.pop(0)[1]
        what = "no call" if call_id is None else f"no call '{call_id}'"
        raise GenerationRequestError(
            f"messages.{index} is the output of a tool, but {what} came before it; "
            "put the assistant's message with its tool_calls before it"
        )


def _rendered(message: Mapping[str, Any], index: int, calls: _Calls) -> Iterator[HarmonyMessage]:
    role, text = message["role"], text_of(message.get("content"))
    author = f"{role}:{message['name']}" if message.get("name") else str(role)
    if role == "user":
        yield HarmonyMessage(author, text)
    elif role in INSTRUCTING:
        if text:
            yield HarmonyMessage(author.replace("system", "developer", 1), f"# Instructions\n\n{text}")
    elif role == "assistant":
        yield from _of_assistant(message, author, text, calls)
    elif role in ("tool", "function"):
        name = calls.answered(message, index)
        yield HarmonyMessage(f"functions.{name}", text, "assistant", "commentary")
    else:
        raise GenerationRequestError(
            f"messages.{index} has the role '{role}'; give system, developer, user, assistant or tool"
        )


def _of_assistant(message: Mapping[str, Any], author: str, text: str, calls: _Calls) -> Iterator[HarmonyMessage]:
    reasoning = next((thought for name in _REASONING_FIELDS if (thought := text_of(message.get(name)))), "")
    made = message.get("tool_calls") or ()
    if not isinstance(made, list | tuple) or not all(isinstance(call, Mapping) for call in made):
        raise GenerationRequestError("tool_calls is not a list of calls; give one")
    if reasoning:
        yield HarmonyMessage(author, reasoning, channel="analysis")
    if text or not (reasoning or made):
        yield HarmonyMessage(author, text, channel="commentary" if made else "final")
    for call in made:
        name, body, is_json = call_of(call)
        calls.add(call.get("id"), name)
        called = HarmonyMessage(author, body, f"functions.{name}", "commentary", is_call=True)
        yield replace(called, is_json=is_json)


def call_of(call: Mapping[str, Any]) -> tuple[str, str, bool]:
    """Return the tool name and arguments of a call in an earlier answer, and whether the arguments are JSON.

    Raises:
        GenerationRequestError: the call names no function.
    """
    for kind, body in (("function", "arguments"), ("custom", "input")):
        called = call.get(kind)
        if isinstance(called, Mapping) and isinstance(called.get("name"), str):
            given = called.get(body, {} if kind == "function" else "")
            text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
            return called["name"], text, kind == "function"
    if isinstance(call.get("name"), str):
        return call_of({"function": call})
    raise GenerationRequestError("a call in tool_calls has no function with a name; give one")
