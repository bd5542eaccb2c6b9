"""Builds the output items of a response, and the events that report their progress."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from speculant_graph.types import TokenId
from speculant_verifier.conversation.text import Detokenizer
from speculant_verifier.conversation.tool_calls import Splitter
from speculant_verifier.http.custom_calls import AnswerPiece
from speculant_verifier.http.responses_items import Fields, ToolOrigin
from speculant_verifier.http.token_texts import TokenTexts
from speculant_verifier.results import StepEvent, TokenLogprobs

Event = tuple[str, Fields]
"""A stream event: its type without the prefix "response.", and its fields."""
_KINDS = {
    "content": "message",
    "reasoning": "reasoning",
    "arguments": "function_call",
    "input": "custom_tool_call",
}
_TEXTS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Maps each type of call to the name of the field with the model's text."""
_PREFIXES = {"message": "msg", "reasoning": "rs", "function_call": "fc", "custom_tool_call": "ctc"}
_PARTS: dict[str, Fields] = {
    "message": {"type": "output_text", "annotations": [], "logprobs": []},
    "reasoning": {"type": "reasoning_text"},
}
_NAMES = {
    "message": "output_text",
    "reasoning": "reasoning_text",
    "function_call": "function_call_arguments",
    "custom_tool_call": "custom_tool_call_input",
}
"""Maps each type of item to the prefix of the events that report the item's text."""


class Output:
    """Builds the output items of one response, and their events."""

    def __init__(self, origins: Mapping[str, ToolOrigin], seal: Callable[[str], str] | None) -> None:
        """Start without any output item.

        Args:
            origins: origins of tools, by their names in the prompt.
            seal: seals reasoning; None: reasoning is returned only as text.
        """
        self.items: list[Fields] = []
        """Finished items."""
        self._origins, self._seal = origins, seal
        self._item: Fields | None = None
        self._text = ""
        self._logprobs: list[Fields] = []

    @property
    def is_empty(self) -> bool:
        """Whether no output item has begun yet."""
        return not self.items and self._item is None

    def add(self, pieces: Sequence[AnswerPiece], logprobs: Sequence[Fields] = ()) -> Iterator[Event]:
        """Add pieces of the answer; yield the events that report them.

        Args:
            pieces: new pieces.
            logprobs: log-probability entries of the tokens of message text in these pieces.
        """
        for kind, text in pieces:
            if kind in ("name", "custom"):
                yield from self.end("completed")
                yield from self._begin_call("function_call" if kind == "name" else "custom_tool_call", text)
                continue
            wanted = _KINDS[kind]
            if self._item is None or self._item["type"] != wanted:
                yield from self.end("completed")
                more: Fields = {"role": "assistant"} if wanted == "message" else {"summary": []}
                yield from self._begin(wanted, more | {"content": []})
            self._text += text
            known = list(logprobs) if wanted == "message" else []
            logprobs = [] if wanted == "message" else logprobs
            self._logprobs += known
            more = {"logprobs": known} if wanted == "message" else {}
            yield f"{_NAMES[wanted]}.delta", self._position | {"delta": text} | more

    def end(self, status: str) -> Iterator[Event]:
        """Finish the open output item, if there is one; yield the events that report its end."""
        if (item := self._item) is None:
            return
        kind = item["type"]
        if kind in _TEXTS:
            item = item | {_TEXTS[kind]: self._text, "status": status}
            own = {"name": item["name"]} if kind == "function_call" else {}
            yield f"{_NAMES[kind]}.done", self._position | own | {_TEXTS[kind]: self._text}
        else:
            of_message = {"logprobs": self._logprobs} if kind == "message" else {}
            part = _PARTS[kind] | {"text": self._text} | of_message
            item = item | {"content": [part], "status": status}
            if kind == "reasoning" and self._seal is not None:
                item["encrypted_content"] = self._seal(self._text)
            yield f"{_NAMES[kind]}.done", self._position | {"text": self._text} | of_message
            yield "content_part.done", self._position | {"part": part}
        yield "output_item.done", {"output_index": len(self.items), "item": item}
        self.items.append(item)
        self._item = None

    def _begin_call(self, kind: str, name: str) -> Iterator[Event]:
        origin = self._origins.get(name, ToolOrigin(name))
        fields: Fields = {"call_id": f"call_{secrets.token_hex(12)}", "name": origin.name, _TEXTS[kind]: ""}
        yield from self._begin(kind, fields | ({} if origin.namespace is None else {"namespace": origin.namespace}))

    def _begin(self, kind: str, fields: Fields) -> Iterator[Event]:
        self._text, self._logprobs = "", []
        item_id = f"{_PREFIXES[kind]}_{secrets.token_hex(16)}"
        self._item = {"id": item_id, "type": kind, "status": "in_progress", **fields}
        yield "output_item.added", {"output_index": len(self.items), "item": self._item}
        if kind not in _TEXTS:
            yield "content_part.added", self._position | {"part": _PARTS[kind] | {"text": ""}}

    @property
    def _position(self) -> dict[str, Any]:
        assert self._item is not None
        position = {"item_id": self._item["id"], "output_index": len(self.items)}
        return position if self._item["type"] in _TEXTS else position | {"content_index": 0}


class ContentLogprobs:
    """Selects the log-probabilities of message text; leaves out reasoning, headers and calls."""

    def __init__(
        self, splitter: Splitter | None, texts: TokenTexts, decode: Callable[[Sequence[TokenId]], str]
    ) -> None:
        """Start at the first token of the answer.

        Args:
            splitter: a second splitter of the answer, used only here; None if answers are plain text.
            texts: texts of tokens.
            decode: converts token ids to text.
        """
        self._splitter, self._texts, self._detokenizer = splitter, texts, Detokenizer(decode)
        self._held: list[TokenLogprobs] = []

    def push(self, event: StepEvent) -> list[Fields]:
        """Add a step's tokens; return log-probability entries of the tokens that are now known to be message text."""
        found: list[TokenLogprobs] = []
        for at in event.logprobs:
            text = self._detokenizer.push([at.token_id])
            pieces = [("content", text)] if self._splitter is None else self._splitter.push([at.token_id], text)
            if self._texts.is_added(at.token_id):
                self._held.clear()
                continue
            self._held.append(at)
            if any(piece for _, piece in pieces):
                found += self._held if any(kind == "content" and piece for kind, piece in pieces) else ()
                self._held.clear()
        return self._texts.entries(found)
