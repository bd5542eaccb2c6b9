"""A sample of a corpus, taken before it is read: a little from many offsets, for comparing encoders."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from speculant_graph.corpus.files import format_of

_NUM_EXCERPTS = 16
_EXCERPT_BYTES = 1 << 14


def sample_texts(files: Sequence[Path]) -> Iterator[str]:
    """Return texts from offsets spread evenly over the stored bytes of all files.

    Whatever does not decode is left out. Files that can be read only once, and those that do not hold their text
    as it is (packed ones, PDF), are passed over.

    Args:
        files: the corpus; files that are gone or can't be read are passed over as well.
    """
    plain = [file for file in files if os.path.isfile(file) and _holds_its_text(file)]
    sizes = [os.path.getsize(file) for file in plain]
    total = sum(sizes)
    num_excerpts = min(_NUM_EXCERPTS, -(-total // _EXCERPT_BYTES))
    targets = [i * total // num_excerpts for i in range(num_excerpts)]
    begin = 0
    for file, size in zip(plain, sizes, strict=True):
        offsets = [target - begin for target in targets if begin <= target < begin + size]
        begin += size
        if offsets:
            yield from _texts_at(file, offsets)


def _holds_its_text(file: Path) -> bool:
    suffix, packing = format_of(file)
    return not packing and suffix != ".pdf"


def _texts_at(file: Path, offsets: Sequence[int]) -> Iterator[str]:
    try:
        with file.open("rb") as stream:
            for offset in offsets:
                stream.seek(offset)
                yield stream.read(_EXCERPT_BYTES).decode(errors="ignore")
    except OSError:  # reported where the corpus itself is read
        return
