"""Names of files that are not UTF-8: how they are stored and printed.

Python keeps such bytes as half surrogate pairs (``os.fsdecode``), which no encoder of text accepts.
"""

from __future__ import annotations

import json
import os
import re
from typing import Annotated, Any

_UNDECODABLE = re.compile("[\udc80-\udcff]")
_MARK = "\0"
"""Begins the stored form of a name that is not UTF-8; no name of a file holds it."""


def displayed(text: str) -> str:
    r"""Return a text with the bytes that were not UTF-8 spelt out: ``caf\xe9.txt``."""
    return _UNDECODABLE.sub(_spell_out, text)


def json_text(content: object, indent: int | None = None) -> str:
    """Return JSON in ASCII for other programs, with bytes of names that are not UTF-8 spelt out, too.

    Args:
        content: what ``json`` takes; values of other types become their text.
        indent: spaces of each level; None: all on one line.
    """
    text = json.dumps(content, indent=indent, default=str)
    if "\\udc" not in text:
        return text
    text = json.dumps(content, ensure_ascii=False, default=str)
    spelt_out = _UNDECODABLE.sub(lambda found: "\\" + _spell_out(found), text)
    return json.dumps(json.loads(spelt_out), indent=indent)


def _spell_out(found: re.Match[str]) -> str:
    return f"\\x{ord(found[0]) & 0xFF:02x}"


def stored_name(name: str) -> str:
    """Return a name as JSON can hold it: as it is, or a mark and one character for each of its bytes."""
    return _MARK + os.fsencode(name).decode("latin-1") if _UNDECODABLE.search(name) else name


def name_of_stored(stored: str) -> str:
    """Return the name that :func:`stored_name` made this of.

    Raises:
        ValueError: it made it of none.
    """
    if not stored.startswith(_MARK):
        return stored
    return os.fsdecode(stored.removeprefix(_MARK).encode("latin-1"))


class StoredName:
    """Has pydantic write names to JSON as :func:`stored_name` does, and read them back."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of a name; pydantic is imported by those alone who use it."""
        from pydantic import AfterValidator, PlainSerializer

        return handler.generate_schema(
            Annotated[str, AfterValidator(name_of_stored), PlainSerializer(stored_name, str, when_used="json")]
        )
