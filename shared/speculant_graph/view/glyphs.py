"""Characters that can't be seen, and what stands for them in a picture."""

from __future__ import annotations

GLYPHS = {
    **{chr(code): chr(0x2400 + code) for code in range(0x20)},
    "\t": "⇥",
    "\n": "↵",
    " ": "·",
    "\x7f": "␡",
    "\u00a0": "⍽",
    "\u200b": "∅",
    "\u2028": "↵",
    "\u2029": "¶",
}
"""Character -> glyph."""

_TABLE = str.maketrans(GLYPHS)


def visible(text: str) -> str:
    """Return a text with a glyph for every character that can't be seen."""
    return text.translate(_TABLE)
