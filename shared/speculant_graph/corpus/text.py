"""Bytes to characters, and where a text may be cut without changing its token ids."""

from __future__ import annotations

import codecs
import io
import re
from collections.abc import Iterable, Iterator

from speculant_graph.errors import CorpusError

# GPT-style pre-tokenizers split text into words first, and no token crosses a word. Two positions begin a word
# in all of them, whatever is around: the space between two letters, and a letter after a newline. That
# newline must follow a visible character: GPT-2's \s+(?!\S) takes a longer run of blanks whole at the end of
# a text, but leaves its last blank over inside of one. And the letter must be one: "/" belongs to the newline
# before it in o200k.
_CUT = re.compile(r"(?<=[^\W\d_])(?= [^\W\d_])|(?<=\S\n)(?=[^\W\d_])")
# Tables of numbers have no such position, and must not fill the memory. The published patterns of GPT-2 and its
# successors begin a word at these as well: a lone space, and whatever visible but "/" follows a newline.
_RARE_CUT = re.compile(r"(?<=\S)(?= \S)|(?<=\S\n)(?=[^\s/])")
_PATIENCE = 1 << 18


def read_text(blocks: Iterable[bytes], label: str) -> Iterator[str]:
    r"""Stream the characters of a UTF-8 file; line ends are read as ``\n``, a byte order mark is left out.

    Args:
        blocks: the file's bytes, none of them empty.
        label: the file's name for messages.

    Raises:
        CorpusError: the file is not UTF-8, or is no text at all.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    offset = held_bytes = 0
    mark = "\ufeff"
    try:
        for block in blocks:
            if offset == 0 and b"\0" in block:
                raise CorpusError(f"{label}: looks binary; leave it out, or convert it to UTF-8 if it is text")
            text = decoder.decode(block)
            if mark and text:
                text, mark = text.removeprefix(mark), ""
            offset += len(block)
            held_bytes = len(decoder.getstate()[0])
            yield newlines.decode(text)
        yield newlines.decode(decoder.decode(b"", final=True), final=True)
    except UnicodeDecodeError as error:
        position = offset - held_bytes + error.start
        raise CorpusError(
            f"{label}: byte {position} is not UTF-8 ({error.reason}); convert the file first, as by 'iconv -t UTF-8'"
        ) from error


def may_be_cut(token: str) -> bool:
    """Return whether :func:`cut_text` may cut inside of these characters, whatever is around them."""
    return any(1 < cut.start() <= len(token) for cut in _RARE_CUT.finditer(f"x{token}x"))


def cut_text(texts: Iterable[str], chunk_size: int) -> Iterator[str]:
    """Cut a text into non-empty pieces whose token ids, one after another, are those of the whole.

    Pieces end where GPT-style tokenizers separate words in any case
    (:attr:`~speculant_graph.corpus.tokenize.CorpusTokenizer.is_cuttable` is true for this kind). They
    have at least ``chunk_size`` characters (the last one excepted), and more where the text has no such position.

    Args:
        texts: the text in blocks of any size.
        chunk_size: least characters of a piece.
    """
    pending = ""
    searched = rarely_searched = 0
    for text in texts:
        pending += text
        start = 0
        while True:
            cut = _CUT.search(pending, max(start + chunk_size, searched))
            if cut is None:
                # A cut is known by the two characters behind it, which the next block may bring.
                searched = max(start, len(pending) - 1)
                if len(pending) - start <= _PATIENCE:
                    break
                cut = _RARE_CUT.search(pending, max(start + chunk_size, rarely_searched))
                if cut is None:
                    rarely_searched = searched
                    break
            yield pending[start : cut.start()]
            start = cut.start()
        pending = pending[start:]
        searched -= start
        rarely_searched = max(0, rarely_searched - start)
    if pending:
        yield pending
