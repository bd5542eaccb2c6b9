"""Where a text may be cut without changing its token ids."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

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
