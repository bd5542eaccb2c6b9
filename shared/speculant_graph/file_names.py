"""Stores and prints file names that are not UTF-8.

Python represents bytes that are not UTF-8 as unpaired surrogates (``os.fsdecode``), which no text encoder accepts.
"""

from __future__ import annotations

import json
import os
import re
from typing import Annotated, Any

_UNDECODABLE = re.compile("[\udc80-\udcff]")
_MARK = "\0"
"""Prefix that marks the stored form of a name that is not UTF-8; no file name can contain it."""


def displayed(text: str) -> str:
    r"""Return a text with escapes for bytes that were not UTF-8: ``caf\xe9.txt``."""
    return _UNDECODABLE.sub(_spell_out, text)


def json_text(content: object, indent: int | None = None) -> str:
    """Return JSON in ASCII for other programs, with escapes for bytes of names that are not UTF-8.

    Args:
        content: values that ``json`` accepts; others are converted to text.
        indent: spaces of indentation per level; None writes one line.
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
    """Return a name's form for JSON: the name itself if it is UTF-8, else a mark and one character per byte."""
    return _MARK + os.fsencode(name).decode("latin-1") if _UNDECODABLE.search(name) else name


def name_of_stored(stored: str) -> str:
    """Return the name from its stored form; the inverse of :func:`stored_name`.

    Raises:
        ValueError: no name has this stored form.
    """
    if not stored.startswith(_MARK):
        return stored
    return os.fsdecode(stored.removeprefix(_MARK).encode("latin-1"))


class StoredName:
    """Makes pydantic write names to JSON with :func:`stored_name`, and read them with :func:`name_of_stored`."""

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> Any:
        """Return pydantic's schema of a name; only this method imports pydantic, not the module."""
        from pydantic import AfterValidator, PlainSerializer

        return handler.generate_schema(
            Annotated[str, AfterValidator(name_of_stored), PlainSerializer(stored_name, str, when_used="json")]
        )
