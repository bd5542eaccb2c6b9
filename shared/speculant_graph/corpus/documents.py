"""Reads the documents of a file: plain text, JSON records or PDF, gzipped or not."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.source import Source
from speculant_graph.errors import CorpusError
from speculant_graph.extras import needed_for
from speculant_graph.json_lines import DoubledNameError, read_json

_BLOCK_CHARACTERS = 1 << 20
_LISTED_FIELDS = 12
_KINDS = {type(None): "null", bool: "true or false", int: "a number", float: "a number", dict: "an object"}
# The pattern matches strings first, so that it finds no comment inside of a string.
_COMMENTS = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/|,(?=(?:\s|//[^\n]*|/\*.*?\*/)*[}\]])', re.DOTALL)


class RecordError(CorpusError):
    """One record of a file can't be used, but later records can be read."""


OnBadRecord = Callable[[RecordError], None]
"""Callback that receives the error of a bad record; the record is left out."""


@dataclass(frozen=True, slots=True)
class Document:
    """One document of a file: its text, or its token ids."""

    label: str
    """Location of the document, for messages: the file, and the line or record in it."""
    texts: Iterator[str]
    """Blocks of text, of any size, to be read before the next document; none if there are token ids."""
    token_ids: NDArray[np.uint32] | None = None
    """Token ids of the document, shape ``[num_tokens]``, if the file has ids instead of text."""


def read_documents(
    source: Source, config: GraphConfig, vocabulary_size: int, on_bad_record: OnBadRecord | None = None
) -> Iterator[Document]:
    r"""Yield the documents of a file, and read the file to its end.

    :attr:`Source.format` decides how the file is read. JSON Lines have one record per line. A JSON file has an array of
    records, or one record. Each record is a document. A PDF is one document, with its pages joined by newlines. Every
    other file is one document of plain text, with line ends read as ``\n``. Each JSON Lines record, JSON file or PDF is
    in memory as a whole; plain text is read in blocks.

    Args:
        source: the file.
        config: ``text_field`` names the field with a record's text or token ids. Dots in the name lead into nested
            objects, and into each element of a list. If a record has a field with exactly this name, dots included,
            that field is used. The texts of several list elements are joined by newlines.
        vocabulary_size: token ids of records must be below this number.
        on_bad_record: called for every bad record; without it, a bad record raises an error.

    Raises:
        CorpusError: the file can't be read, unpacked, decoded or parsed; the message names file, record and fix.
        ModuleNotFoundError: the module that reads such files is not installed.
    """
    if source.format == "pdf":
        yield Document(source.label, iter([_pdf_text(source)]))
    elif source.format == "text":
        yield Document(source.label, _read_text(source))
    else:
        for label, record in _read_json(source) if source.format == "json" else _read_json_lines(source):
            try:
                if isinstance(record, RecordError):
                    raise record
                document = _document_of(record, label, config.text_field, vocabulary_size)
            except RecordError as error:
                if on_bad_record is None:
                    raise
                on_bad_record(error)
            else:
                yield document


def is_configuration(source: Source, field: str) -> bool:
    """Return whether a JSON file is one object without the text field; comments and trailing commas are allowed.

    Configuration files, such as ``package.json`` and ``tsconfig.json``, are source text, not records.

    Raises:
        CorpusError: the file can't be read, unpacked or decoded.
    """
    with source.open_text() as file:
        text = file.read()
    if not re.match(r"\s*(?:[{/]|$)", text):
        return False
    try:
        value = json.loads(_COMMENTS.sub(r"\1", text))
        if not isinstance(value, dict):
            return False
        _values(value, _path(value, field), "", field)
    except RecordError:
        return True
    except (ValueError, RecursionError):
        return False
    return False


def _read_text(source: Source) -> Iterator[str]:
    with source.open_text() as reader:
        text = reader.read(_BLOCK_CHARACTERS)
        if "\0" in text:
            raise CorpusError(f"{source.label}: looks binary; leave it out, or convert it to UTF-8 if it is text")
        if source.span is None and text.isspace() and len(text) < _BLOCK_CHARACTERS:  # the whole file is blank
            return
        while text:
            yield text
            text = reader.read(_BLOCK_CHARACTERS)


def _pdf_text(source: Source) -> str:
    if source.extracted is None:
        return extract_pdf(source)
    for _ in source.blocks():
        pass
    return source.extracted.read_bytes().decode()


def extract_pdf(source: Source) -> str:
    """Return the text of a PDF, with pages joined by newlines; empty if it has none. Raises as :func:`pdf_pages`."""
    pages = pdf_pages(source)
    text = "\n".join(pages)
    if pages and not text.strip():
        logger.warning("{} has pages but no text, as scans do; run OCR on it first", source.label)
    return text if text.strip() else ""


def pdf_pages(source: Source) -> list[str]:
    """Return the text of each page of a PDF.

    Raises:
        CorpusError: the file can't be read, is damaged, or needs a password.
        ModuleNotFoundError: the module that reads PDF is not installed.
    """
    with needed_for(f"reading {source.label}", "build"):
        from pypdf import PdfReader
        from pypdf.errors import DependencyError, EmptyFileError, FileNotDecryptedError

    logging.getLogger("pypdf").setLevel(logging.CRITICAL)  # pypdf reports every flaw, even flaws that it can ignore
    with source.open() as stored:
        file = io.BytesIO(stored.read())
    try:
        pages = [page.extract_text() for page in PdfReader(file).pages]
    except EmptyFileError:
        return []
    except (DependencyError, FileNotDecryptedError) as error:
        raise CorpusError(
            f"{source.label}: is encrypted or needs a password; decrypt it, for instance with 'qpdf --decrypt'"
        ) from error
    except Exception as error:  # the library raises any exception for damaged files
        raise CorpusError(
            f"{source.label}: is not a readable PDF ({type(error).__name__}: {error}); repair it or leave it out"
        ) from error
    # Fonts may map glyphs to unpaired surrogates, which are not text.
    return [page.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for page in pages]


def _read_json_lines(source: Source) -> Iterator[tuple[str, object]]:
    """Stream the values of JSON Lines with a label for each, such as ``a.jsonl: line 3``; omit blank lines.

    For a line that is not JSON, yield an error instead of a value.
    """
    with source.open_text() as file:
        for line_number, line in enumerate(file, start=1):
            if line.strip():
                label = f"{source.label}: line {line_number}"
                try:
                    _check_decoded(line, label)
                    yield label, _parse(line, label, "correct or remove the line")
                except RecordError as error:
                    yield label, error


def _check_decoded(line: str, label: str) -> None:
    try:
        line.encode()
    except UnicodeEncodeError as error:
        byte = ord(line[error.start]) & 0xFF
        raise RecordError(f"{label}: is not UTF-8 (byte 0x{byte:02x}); correct or remove the line") from error


def _read_json(source: Source) -> Iterator[tuple[str, object]]:
    """Stream the elements of a JSON array with a label for each; any other value is one element."""
    with source.open_text() as file:
        text = file.read()
    if not text.strip():
        return
    try:
        fix = "correct it, or name the file .jsonl if it holds one record per line, .txt to read it as plain text"
        value = _parse(text, source.label, fix)
    except RecordError as error:  # no record can be read
        raise error.as_class(CorpusError) from error.__cause__
    if isinstance(value, list):
        for index, record in enumerate(value, start=1):
            yield f"{source.label}: record {index}", record
    else:
        yield source.label, value


def _parse(text: str, label: str, fix: str) -> object:
    try:
        value: object = read_json(text)
    except DoubledNameError as error:
        raise RecordError(f"{label}: {error}; leave one of them out") from error
    except RecursionError as error:
        raise RecordError(f"{label}: is nested too deeply; correct it, or leave it out") from error
    except json.JSONDecodeError as error:
        # A truncated file ends inside of a string, or at a position where a value must follow.
        is_cut = not text.endswith("\n") and (error.msg.startswith("Unterminated") or not text[error.pos :].strip())
        reason = "it is cut off: " if is_cut else ""
        reason += f"{error.msg.removesuffix(' starting at')} at character {error.pos + 1}"
        raise RecordError(f"{label}: is not JSON ({reason}); {fix}") from error
    except ValueError as error:  # a number with thousands of digits
        raise RecordError(f"{label}: is not JSON ({error}); {fix}") from error
    return value


def _document_of(record: object, label: str, field: str, vocabulary_size: int) -> Document:
    """Return the document of a record. The record is a string, or an object with a field of text or of token ids."""
    if isinstance(record, str):
        values: list[object] = [record]
    else:
        values = _values(record, _path(record, field), label, field)
    if values and all(isinstance(value, list) and all(type(item) is int for item in value) for value in values):
        token_ids: list[Any] = list(chain.from_iterable(values))  # type: ignore[arg-type]
        if token_ids and not 0 <= min(token_ids) <= max(token_ids) < vocabulary_size:
            raise RecordError(
                f"{label}: field {field!r} has ids outside 0 to {vocabulary_size - 1}",
                fix="set {field} to the tokenizer of these ids",
                field="graph.tokenizer_name",
            )
        return Document(label, iter(()), np.array(token_ids, np.uint32))
    text = "\n".join(_checked_text(value, label, field) for value in values)
    return Document(label, iter([text]))


def _checked_text(value: object, label: str, field: str) -> str:
    if not isinstance(value, str):
        kind = _KINDS.get(type(value), "a list that contains more than token ids")
        what = f"{label}: field {field!r} is {kind}, neither text nor token ids"
        raise RecordError(what, fix="correct the record, or set {field}", field="graph.text_field")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise RecordError(
            f"{label}: half of a surrogate pair ({value[error.start]!r}) is not a character; correct the text"
        ) from error
    return value


def _path(record: object, field: str) -> list[str]:
    return [field] if isinstance(record, dict) and field in record else field.split(".")


def _values(record: object, path: list[str], label: str, field: str) -> list[object]:
    """Return the values at a path of field names: one value, or one per element of the lists on the path."""
    values = [record]
    for depth, name in enumerate(path):
        if depth:
            values = list(chain.from_iterable(value if isinstance(value, list) else [value] for value in values))
        for value in values:
            if not isinstance(value, dict) or name not in value:
                fields = ", ".join(list(value)[:_LISTED_FIELDS]) if isinstance(value, dict) else ""
                raise RecordError(
                    f"{label}: no field {field!r} (there are: {fields or 'none'})",
                    fix="set {field} to one with text or token ids",
                    field="graph.text_field",
                )
        values = [value[name] for value in values]  # type: ignore[index]
    return values
