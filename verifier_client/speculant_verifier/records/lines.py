"""Records as lines of files: how they are written, and which lines are left out when they are read."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, TypeVar

from loguru import logger
from pydantic import AfterValidator, TypeAdapter, ValidationError

from speculant_verifier.records.record import RequestRecord

FAILURES, REPLAY = "failures-", "replay-"
"""How the names of files begin."""

Line = TypeVar("Line")


def _consistent(record: RequestRecord) -> RequestRecord:
    """Return a record in which every position has what is said per position, and every token there, too."""
    pairs = ((record.drafted, record.sources), (record.top_token_ids, record.top_logprobs))
    lengths = {len(each) for pair in pairs for each in pair} | {len(record.accepted), len(record.output)}
    if len(lengths) > 1 or any([*map(len, ids)] != [*map(len, others)] for ids, others in pairs):
        raise ValueError("what is said of the output differs from it in length")
    return record


RECORD: TypeAdapter[RequestRecord] = TypeAdapter(Annotated[RequestRecord, AfterValidator(_consistent)])


def line_of(record: RequestRecord) -> bytes:
    """Return the line of a record.

    Raises:
        ValueError: one of its texts is no Unicode.
    """
    return RECORD.dump_json(record, warnings="none") + b"\n"


def lines_in(path: Path, format: TypeAdapter[Line]) -> Iterator[Line]:
    """Yield the lines of a file; a warning says how many are torn, damaged or of another release and left out.

    A file that is not there, as it was deleted to make room, has none.

    Raises:
        OSError: it can't be read.
    """
    num_bad = 0
    try:
        with path.open("rb") as file:
            for line in file:
                try:
                    yield format.validate_json(line)
                except ValidationError:
                    num_bad += 1
    except FileNotFoundError:
        return
    if num_bad:
        logger.warning("{}: {} lines are damaged or of another release and left out", path, num_bad)
