"""Files to documents: plain text, JSON records, PDF."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from loguru import logger
from numpy.typing import NDArray

from speculant_graph.corpus.records import read_json, read_json_lines, text_of_record, token_ids_of_record
from speculant_graph.corpus.source import Source
from speculant_graph.corpus.text import read_text
from speculant_graph.errors import CorpusError
from speculant_graph.extras import needed_for


@dataclass(frozen=True, slots=True)
class Document:
    """One text of its own inside of a file, or the token ids of one."""

    label: str
    """Where it is, for messages: the file, and the line or record in it."""
    texts: Iterator[str]
    """Its text in blocks of any size; to be read before the next document. Nothing if there are ids."""
    token_ids: NDArray[np.uint32] | None = None
    """Its token ids, shape ``[num_tokens]``, if the file has these instead of text."""


def read_documents(
    source: Source, text_field: str, token_ids_field: str = "", vocabulary_size: int = 0
) -> Iterator[Document]:
    """Stream the documents of a file, whose name determines how it is read; all of the file has been read at the end.

    ``.jsonl`` and ``.ndjson`` hold one record a line, ``.json`` an array of records or one of them: each record is a
    document. ``.pdf`` is one document, pages joined by newlines. Everything else is one document of plain text.
    A record and a PDF are held whole in memory, plain text is not.

    Args:
        source: the file.
        text_field: where a record has its text; dots lead into nested objects, unless it has a field of that very name.
        token_ids_field: where a record has its token ids, in the same way; then no text of records is read.
        vocabulary_size: such ids must be below.

    Raises:
        CorpusError: the file can't be read, unpacked, decoded or parsed; the message names file, position and fix.
        ModuleNotFoundError: the module that reads such files is not installed.
    """
    if source.suffix == ".pdf":
        yield Document(source.label, iter([_read_pdf(source)]))
        return
    texts = read_text(source.blocks(), source.label)
    if source.suffix in {".jsonl", ".ndjson", ".json"}:
        read_records = read_json if source.suffix == ".json" else read_json_lines
        for label, record in read_records(texts, source.label):
            if token_ids_field:
                yield Document(label, iter(()), token_ids_of_record(record, label, token_ids_field, vocabulary_size))
            else:
                yield Document(label, iter([text_of_record(record, label, text_field)]))
    else:
        yield Document(source.label, texts)


def _read_pdf(source: Source) -> str:
    with needed_for(f"reading {source.label}", "build"):
        from pypdf import PdfReader
        from pypdf.errors import EmptyFileError

    logging.getLogger("pypdf").setLevel(logging.ERROR)  # it reports every flaw that it gets over
    file = io.BytesIO(b"".join(source.blocks()))
    try:
        reader = PdfReader(file)
        if reader.is_encrypted:
            raise CorpusError(f"{source.label}: is encrypted; save it without a password")
        text = "\n".join(page.extract_text() for page in reader.pages)
    except CorpusError:
        raise
    except EmptyFileError:
        return ""
    except Exception as error:  # damaged files make the library raise whatever its code meets
        raise CorpusError(
            f"{source.label}: is no PDF that can be read ({type(error).__name__}: {error}); repair it or leave it out"
        ) from error
    if not text.strip():
        logger.warning("{} has pages but no text, as scans do; recognise its text first", source.label)
        return ""
    # Fonts may map glyphs to halves of surrogate pairs, which are no text.
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
