"""What pydantic says of a value that is wrong, in plain words."""

from __future__ import annotations

import re

_RULE = re.compile(r"^\w+ should (?=be |have |match )")
_NOT_TOLD = re.compile(r"(, unable to | after validation,|, got a number with a fractional part).*", re.DOTALL)
_PLAIN = {
    "Extra inputs are not permitted": "there is no such setting",
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a finite number": "a number that is not infinite",
    "a valid boolean": "true or false",
    "a valid string": "text",
    "a valid list": "a list",
    "a valid tuple": "a list",
    "a valid dictionary": "an object",
}


def plainly(message: str) -> str:
    """Return a complaint as the rest of a sentence: ``must be a whole number``, or the text of a validator of ours.

    Args:
        message: pydantic's ``msg``.
    """
    message = _NOT_TOLD.sub("", message.removeprefix("Value error, "))
    message = _RULE.sub("must ", message)
    for theirs, ours in _PLAIN.items():
        message = message.replace(theirs, ours)
    return message[:1].lower() + message[1:]
