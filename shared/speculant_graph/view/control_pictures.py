"""Characters that can't be seen, and what the page shows for them."""

from __future__ import annotations

CONTROL_PICTURES = {
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
"""By character."""
