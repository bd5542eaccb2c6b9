"""Finds where a context of tokens occurs in the files that a graph was built from."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.documents import Document, RecordError, pdf_pages, read_documents
from speculant_graph.corpus.file_patterns import STANDARD_INPUT
from speculant_graph.corpus.source import CorpusFile, Source
from speculant_graph.corpus.storage import address_of
from speculant_graph.corpus.tokenize import CorpusTokenizer, cut_text
from speculant_graph.errors import CorpusError
from speculant_graph.types import TokenId

FileState = Literal["missing", "changed", "unreadable", "not kept"]
"""Reason for not searching a corpus file: missing, changed, unreadable, or from a pipe or object storage."""

_ANY_ID = 1 << 32
"""Vocabulary size that accepts every token id, because the build has already checked the ids."""
_BLOCK_BYTES = 1 << 20
_AROUND = 256
_SHOWN_BEFORE, _SHOWN = 30, 90
_checked: dict[tuple[object, ...], bool] = {}
"""Files whose digest matched the graph's, cached so that the next search does not compute the digest again."""


class Place(NamedTuple):
    """The place in a file where a context begins."""

    file: str
    """Name of the file, as stored in the graph."""
    line: int
    """Line number in the file, from 1; in a PDF, line number in the page's text."""
    column: int
    """Character position in the line, from 1."""
    page: int
    """Page of a PDF, from 1; 0 for other files."""
    text: str
    """Text of the line, or a part of it."""


class Places(NamedTuple):
    """The result of a search for a context."""

    places: tuple[Place, ...]
    """The first places found, in the order of the files."""
    unsearched: tuple[tuple[str, FileState], ...]
    """Names of files that were not searched, with the reason; files after the search's end are not listed."""
    is_complete: bool
    """False if the search ended before all files were searched, because it found enough or took too long."""


def find_places(
    files: Sequence[CorpusFile],
    context: Sequence[TokenId],
    tokenizer: CorpusTokenizer,
    most: int,
    max_seconds: float | None = None,
) -> Places:
    """Search the files of a graph's corpus for the text of a context, block by block.

    A file is searched if its digest equals the digest in the graph. If the tokenizer can encode texts in pieces, a
    match of the text counts only if its tokens also match the context.

    Args:
        files: files in the graph's metadata; relative names are relative to the working directory.
        context: token ids.
        tokenizer: the graph's tokenizer.
        most: maximum number of places, after which the search ends.
        max_seconds: time limit of the search.
    """
    searched = _Searched.of(context, tokenizer)
    places: list[Place] = []
    unsearched: list[tuple[str, FileState]] = []
    deadline = time.monotonic() + max_seconds if max_seconds is not None else float("inf")

    def on_block(_: int) -> None:
        if time.monotonic() > deadline:
            raise _OverdueError

    try:
        for file in files:
            state = _state(file, on_block)
            if state is not None:
                unsearched.append((file.name, state))
                continue
            try:
                for place in _places_in(file, searched, on_block):
                    if len(places) >= most:
                        return Places(tuple(places), tuple(unsearched), False)
                    places.append(place)
            except (CorpusError, ModuleNotFoundError):
                unsearched.append((file.name, "unreadable"))
    except _OverdueError:
        return Places(tuple(places), tuple(unsearched), False)
    return Places(tuple(places), tuple(unsearched), True)


class _OverdueError(Exception):
    """The search exceeded its time limit."""


class _Searched(NamedTuple):
    """The text and the token ids to search for."""

    token_ids: tuple[TokenId, ...]
    text: str
    is_at_start: bool
    """Whether the context begins at the beginning of a document."""
    tokenizer: CorpusTokenizer
    is_cuttable: bool
    slack: int
    """Tolerance for a token's position, in characters: 1 if the context begins inside of a character, otherwise 0."""

    @classmethod
    def of(cls, context: Sequence[TokenId], tokenizer: CorpusTokenizer) -> _Searched:
        """Make the text to search for a context; omit BOS, EOS and partial characters, which no text contains."""
        borders = {tokenizer.bos_id, tokenizer.eos_id}
        token_ids = list(context)
        while token_ids and token_ids[-1] in borders:
            token_ids.pop()
        last_border = max((index for index, token_id in enumerate(token_ids) if token_id in borders), default=-1)
        own = token_ids[last_border + 1 :]
        text = tokenizer.decode(own) if own else ""
        slack = int(text.startswith("\ufffd"))
        return cls(tuple(own), text.strip("\ufffd"), last_border >= 0, tokenizer, tokenizer.is_cuttable, slack)


def _state(file: CorpusFile, on_block: Callable[[int], None]) -> FileState | None:
    """Return why a file is not searched; None if it is unchanged and therefore searched."""
    path = Path(file.name)
    if path == STANDARD_INPUT or address_of(path):
        return "not kept"
    try:
        if not path.exists():
            return "missing"
        if not path.is_file():
            return "not kept"
        facts = path.stat()
        if facts.st_size != file.size_bytes:
            return "changed"
        key = (file.name, file.sha256, facts.st_ino, facts.st_mtime_ns, facts.st_ctime_ns)
        if key not in _checked:
            digest = hashlib.sha256()
            with path.open("rb") as stored:
                while block := stored.read(_BLOCK_BYTES):
                    on_block(len(block))
                    digest.update(block)
            if digest.hexdigest() != file.sha256:
                return "changed"
            _checked[key] = True
        return None
    except (OSError, ValueError):
        return "unreadable"


def _places_in(file: CorpusFile, searched: _Searched, on_block: Callable[[int], None]) -> Iterator[Place]:
    if not searched.text:
        return
    source = Source(Path(file.name), on_bytes=on_block)
    source.encoding = file.encoding
    if source.format == "pdf":
        yield from _places_in_pdf(file, source, searched)
    elif source.format == "text" or not file.text_field:
        source.format = "text"
        for document in read_documents(source, GraphConfig(), 0):
            for found in _occurrences(document.texts, searched):
                yield Place(file.name, found.line, found.column, 0, found.shown)
    else:
        yield from _places_in_records(file, source, searched)


class _Occurrence(NamedTuple):
    position: int
    """Number of characters of the text before the occurrence."""
    line: int
    column: int
    shown: str


def _occurrences(texts: Iterator[str], searched: _Searched) -> Iterator[_Occurrence]:
    """Stream the occurrences of the searched text in a text that comes in blocks of any size."""
    needle, blanks = searched.text, len(searched.text) - len(searched.text.lstrip())
    blanks = 0 if blanks == len(needle) else blanks  # the reported position is the first visible character
    buffer, dropped, line, line_start = "", 0, 1, 0
    next_start = 0
    for text in chain(texts, [None]):
        buffer += text or ""
        end = len(buffer) if text is None else len(buffer) - len(needle) - _AROUND
        at = buffer.find(needle, next_start - dropped)
        while 0 <= at < end:
            next_start = dropped + at + 1
            if _has_tokens(buffer, at, searched, is_first=not dropped, is_last=text is None):
                shown_at = at + blanks
                new_lines = buffer.count("\n", 0, shown_at)
                start = buffer.rfind("\n", 0, shown_at) + 1 if new_lines else line_start - dropped
                shown = buffer[max(start, shown_at - _SHOWN_BEFORE, 0) :][:_SHOWN].partition("\n")[0]
                yield _Occurrence(dropped + shown_at, line + new_lines, shown_at - start + 1, shown)
            at = buffer.find(needle, at + 1)
        gone = max(0, end - _AROUND)
        if gone:
            last = buffer.rfind("\n", 0, gone)
            line += buffer.count("\n", 0, gone)
            line_start = dropped + last + 1 if last >= 0 else line_start
            buffer, dropped = buffer[gone:], dropped + gone
        next_start = max(next_start, dropped)


def _has_tokens(buffer: str, at: int, searched: _Searched, *, is_first: bool, is_last: bool) -> bool:
    """Return whether an occurrence of a context's characters also has the context's tokens."""
    if searched.is_at_start:
        return is_first and at == 0
    if not searched.is_cuttable:
        return True
    start, end = max(0, at - _AROUND), at + len(searched.text) + _AROUND
    pieces = list(cut_text([buffer[start:end]], 1))
    # Words at the ends of the window may be parts of longer ones.
    first = 0 if is_first and start == 0 else 1
    last = len(pieces) if is_last and end >= len(buffer) else len(pieces) - 1
    begin = start + sum(map(len, pieces[:first]))
    window = "".join(pieces[first:last])
    if begin > at or begin + len(window) < at + len(searched.text):
        return True  # there is no position to cut at nearby
    token_ids = searched.tokenizer.encode(window)
    wanted = list(searched.token_ids)
    for index in range(len(token_ids) - len(wanted) + 1):
        if token_ids[index : index + len(wanted)] == wanted:
            off = len(searched.tokenizer.decode(token_ids[:index])) - (at - begin)
            if abs(off) <= searched.slack:
                return True
    return False


def _places_in_pdf(file: CorpusFile, source: Source, searched: _Searched) -> Iterator[Place]:
    pages = pdf_pages(source)
    first_lines = [1]
    for page in pages:
        first_lines.append(first_lines[-1] + page.count("\n") + 1)
    for found in _occurrences(iter(["\n".join(pages)]), searched):
        number = next(index for index in range(len(pages), 0, -1) if first_lines[index - 1] <= found.line)
        yield Place(file.name, found.line - first_lines[number - 1] + 1, found.column, number, found.shown)


def _places_in_records(file: CorpusFile, source: Source, searched: _Searched) -> Iterator[Place]:
    config = GraphConfig(text_field=file.text_field)
    with source.reopened(lambda _: None).open_text() as raw_file:
        raw_lines = enumerate(raw_file, start=1) if source.format == "lines" else iter([(1, raw_file.read())])
        number, raw, position = 0, "", 0
        for document in read_documents(source, config, _ANY_ID, _ignore):
            wanted = int(document.label.rpartition(" ")[2]) if source.format == "lines" else 1
            while number < wanted:
                number, raw = next(raw_lines)
                position = 0
            text = "".join(document.texts)
            for found in _occurrences(iter([text]), searched):
                position = _position_in_raw(raw, position, text, found.position, searched.text)
                line = number + raw.count("\n", 0, position)
                yield Place(file.name, line, position - raw.rfind("\n", 0, position), 0, found.shown)
            if document.token_ids is not None and _has_ids(document, searched.token_ids):
                yield Place(file.name, number, 1, 0, searched.text)


def _position_in_raw(raw: str, start: int, text: str, position: int, needle: str) -> int:
    """Return where a character of a record's text is in the record's JSON, or the nearest known position."""
    for is_ascii in (False, True):
        whole, before = (json.dumps(part, ensure_ascii=is_ascii)[1:-1] for part in (text, text[:position]))
        value = raw.rfind(whole, 0, start + len(whole)) if start else -1  # another match in the same text
        value = value if value >= 0 else raw.find(whole, start)
        if value >= 0:
            return value + len(before)
    # The record's text joins several texts, or its escapes differ from Python's.
    found = max(raw.find(json.dumps(needle, ensure_ascii=is_ascii)[1:-1], start) for is_ascii in (False, True))
    return found if found >= 0 else start


def _ignore(_: RecordError) -> None:
    """Ignore the error of a bad record, because the build skipped the record, too."""


def _has_ids(document: Document, token_ids: Sequence[TokenId]) -> bool:
    """Return whether a document of ids contains a sequence of ids."""
    assert document.token_ids is not None
    ids = document.token_ids
    starts = np.flatnonzero(ids[: max(0, ids.size - len(token_ids) + 1)] == token_ids[0])
    return any(ids[start : start + len(token_ids)].tolist() == list(token_ids) for start in starts.tolist())
