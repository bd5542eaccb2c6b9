"""JSON to records, and the text or the token ids of a record."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

import numpy as np
from numpy.typing import NDArray

from speculant_graph.errors import CorpusError

_BLANKS = " \t\n\r"
# The longest thing that is wrong only because its end is missing, strings excepted, is two \\u escapes.
_LONGEST_PART = 16
_LISTED_FIELDS = 12


def read_json_lines(texts: Iterable[str], label: str) -> Iterator[tuple[str, object]]:
    """Stream the values of JSON Lines with a label for each, such as ``a.jsonl: line 3``; blank lines are left out.

    Raises:
        CorpusError: a line is no JSON.
    """
    for line_number, line in enumerate(_lines(texts), start=1):
        if line.strip(_BLANKS):
            line_label = f"{label}: line {line_number}"
            try:
                yield line_label, json.loads(line)
            except (ValueError, RecursionError) as error:
                raise _no_json(line_label, error) from error


def _lines(texts: Iterable[str]) -> Iterator[str]:
    parts: list[str] = []  # of a line that is longer than a block
    for text in texts:
        *lines, rest = text.split("\n")
        for line in lines:
            yield "".join([*parts, line]) if parts else line
            parts = []
        parts.append(rest)
    yield "".join(parts)


def read_json(texts: Iterable[str], label: str) -> Iterator[tuple[str, object]]:
    """Stream the elements of a JSON array with a label for each, or the one value that is no array.

    Only about one element and one block of text are held at a time.

    Raises:
        CorpusError: the text is no JSON.
    """
    buffer = _Buffer(texts)
    if buffer.next_character() != "[":
        if buffer.next_character():
            yield label, _element(buffer, label)
            _expect_end(buffer, label)
        return
    buffer.position += 1
    count = 0
    if buffer.next_character() == "]":
        buffer.position += 1
        _expect_end(buffer, label)
        return
    while True:
        count += 1
        record_label = f"{label}: record {count}"
        yield record_label, _element(buffer, record_label)
        separator = buffer.next_character()
        buffer.position += 1
        if separator == "]":
            _expect_end(buffer, label)
            return
        if separator != ",":
            raise _no_json(record_label, "no comma or bracket after it" if separator else "the file ends in its array")


class _Buffer:
    """What is read of a text and not yet used."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._texts = iter(texts)
        self.text = ""
        self.position = 0

    def grow(self) -> bool:
        """Drop what was used and add more, as much as is left of it or more; false, and no change, at the end."""
        rest = self.text[self.position :]
        parts: list[str] = []
        missing = max(1, len(rest))
        while missing > 0 and (text := next(self._texts, None)) is not None:
            parts.append(text)
            missing -= len(text)
        if missing == max(1, len(rest)):
            return False
        self.text, self.position = "".join([rest, *parts]), 0
        return True

    def next_character(self) -> str:
        """Pass over blanks and return the character after them, nothing at the end of the text."""
        while True:
            while self.position < len(self.text):
                if self.text[self.position] not in _BLANKS:
                    return self.text[self.position]
                self.position += 1
            if not self.grow():
                return ""


_DECODER = json.JSONDecoder()


def _element(buffer: _Buffer, label: str) -> object:
    buffer.next_character()
    while True:
        try:
            value, end = _DECODER.raw_decode(buffer.text, buffer.position)
        except json.JSONDecodeError as error:
            may_go_on = error.msg.startswith("Unterminated") or error.pos > len(buffer.text) - _LONGEST_PART
            if may_go_on and buffer.grow():
                continue
            raise _no_json(label, error.msg) from error
        except (ValueError, RecursionError) as error:
            raise _no_json(label, error) from error
        if end > len(buffer.text) - _LONGEST_PART and buffer.grow():  # a number may go on
            continue
        buffer.position = end
        return value


def _expect_end(buffer: _Buffer, label: str) -> None:
    if buffer.next_character():
        raise CorpusError(f"{label}: goes on after its JSON value; name it .jsonl if it holds one record a line")


def text_of_record(record: object, label: str, text_field: str) -> str:
    """Return the text of one record: a string itself, or what an object has in a field.

    Args:
        record: a JSON value.
        label: where it is, for messages.
        text_field: name of the field; dots lead into nested objects, unless the record has a field of that very
            name. A list of strings is joined with newlines.

    Raises:
        CorpusError: the record has no such field, or no text in it.
    """
    if isinstance(record, str):
        return record
    fix = "set --graph.text-field to one with text"
    value = _field(record, label, text_field, fix)
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return "\n".join(value)
    raise CorpusError(f"{label}: field {text_field!r} is {_kind(value)}, not text; {fix}")


def token_ids_of_record(record: object, label: str, token_ids_field: str, vocabulary_size: int) -> NDArray[np.uint32]:
    """Return the token ids of one record, shape ``[num_tokens]``.

    Args:
        record: a JSON value.
        label: where it is, for messages.
        token_ids_field: name of the field, as in :func:`text_of_record`; it holds a list.
        vocabulary_size: the ids must be below.

    Raises:
        CorpusError: the record has no such field, or anything but token ids in it.
    """
    fix = "set --graph.token-ids-field to one with token ids"
    value = _field(record, label, token_ids_field, fix)
    if not isinstance(value, list):
        raise CorpusError(f"{label}: field {token_ids_field!r} is {_kind(value)}, not a list of token ids; {fix}")
    for index, item in enumerate(value):
        if type(item) is not int:
            kind = "a fraction" if isinstance(item, float) else _kind(item)
            raise CorpusError(f"{label}: item {index} of field {token_ids_field!r} is {kind}, not a token id; {fix}")
        if not 0 <= item < vocabulary_size:
            raise CorpusError(
                f"{label}: item {index} of field {token_ids_field!r} is none of the ids 0 to {vocabulary_size - 1}; "
                "set --graph.tokenizer-name to the tokenizer of these ids"
            )
    return np.array(value, np.uint32)


def _field(record: object, label: str, field: str, fix: str) -> object:
    value = record
    is_plain = isinstance(record, dict) and field in record
    for name in [field] if is_plain else field.split("."):
        if not isinstance(value, dict):
            raise CorpusError(
                f"{label}: {_kind(value)} where an object with field {field!r} should be; correct the record"
            )
        if name not in value:
            fields = ", ".join(list(value)[:_LISTED_FIELDS]) or "none"
            more = ", ..." if len(value) > _LISTED_FIELDS else ""
            raise CorpusError(f"{label}: no field {field!r} (there are: {fields}{more}); {fix}")
        value = value[name]
    return value


def _kind(value: object) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _no_json(label: str, reason: object) -> CorpusError:
    return CorpusError(f"{label}: is no JSON ({reason}); correct it, or name the file .txt to read it as plain text")
