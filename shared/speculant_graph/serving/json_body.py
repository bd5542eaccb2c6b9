"""Reads JSON bodies of HTTP requests strictly, with a specific message for each problem."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from math import isfinite
from typing import Any

from speculant_graph.errors import DraftRequestError

MAX_DEPTH = 100
"""Maximum depth of nested lists and objects; JSON schemas and tools need a few dozen levels."""

_HALF_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
_HALF = re.compile("[\ud800-\udfff]")
_ENCODINGS = ("utf-8", "utf8", "us-ascii", "ascii")
_MAX_NAME = 64

_Path = tuple["_Path", object] | None
"""Path of a JSON value: the enclosing value's path, and the key or index in it; None for the whole body."""


class JsonBodyError(DraftRequestError):
    """Error for a body that is not valid JSON; ``field`` is the path of the wrong value, if known."""


class _Doubled(dict[str, Any]):
    """A JSON object in which a name occurs more than once."""

    name = ""


def require_json_type(content_type: str) -> None:
    """Raise an error for a body that is not declared as JSON in UTF-8.

    Args:
        content_type: value of the header; empty if there is none.

    Raises:
        JsonBodyError: the header declares another type or charset.
    """
    media_type, *parameters = [part.strip().lower() for part in content_type.split(";")]
    if media_type != "application/json" and not re.fullmatch(r"application/[^/]+\+json", media_type):
        given = f"is '{_printable(media_type)}'" if media_type else "is missing"
        raise JsonBodyError(f"the header content-type {given}; send 'content-type: application/json'")
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip() == "charset" and (charset := value.strip(' "')) not in _ENCODINGS:
            raise JsonBodyError(f"the header content-type declares '{_printable(charset)}'; send JSON in UTF-8")


def read_json(body: bytes) -> Any:
    """Return the JSON value in a body.

    Raises:
        JsonBodyError: the body is not UTF-8, not JSON, or nested too deeply; a string has an unpaired surrogate, which
            UTF-8 can't encode; a number is not finite or has too many digits; or an object repeats a name.
    """
    if not body.strip():
        raise JsonBodyError("the body is empty; send a JSON object")
    text = _decoded(body)
    is_odd = False

    def number(digits: str) -> float:
        nonlocal is_odd
        value = float(digits)
        is_odd |= not isfinite(value)
        return value

    def table(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal is_odd
        made = dict(pairs)
        if len(made) == len(pairs):
            return made
        is_odd = True
        doubled = _Doubled(made)
        names = [name for name, _ in pairs]
        doubled.name = next(name for index, name in enumerate(names) if name in names[:index])
        return doubled

    try:
        value = json.loads(text, parse_constant=number, parse_float=number, object_pairs_hook=table)
    except json.JSONDecodeError as error:
        raise JsonBodyError(f"the body is not valid JSON at character {error.pos + 1}; correct it there") from None
    except RecursionError:
        raise _too_deep() from None
    except ValueError:  # Python's limit, because longer numbers take long to parse
        raise JsonBodyError("the body has a whole number of more than 4300 digits; send a smaller one") from None
    if is_odd or _HALF_ESCAPE.search(text) or text.count("[") + text.count("{") > MAX_DEPTH:
        _check(value)
    return value


def escape_half_pairs(text: str) -> str:
    """Return JSON text with escapes for unpaired surrogates, which UTF-8 can't encode."""
    return text.encode("utf-8", "backslashreplace").decode()


def read_model_json(text: str) -> Any:
    """Parse a model's JSON for use with a tokenizer: unpaired surrogates become replacement characters.

    Text is returned unchanged if it is not JSON or is nested too deeply.
    """
    try:
        value = json.loads(text)
        if _is_deep(value):
            return text
        written = json.dumps(value, ensure_ascii=False)
    except (ValueError, RecursionError):
        return text
    return json.loads(_HALF.sub("\N{REPLACEMENT CHARACTER}", written)) if _HALF.search(written) else value


def _is_deep(value: Any) -> bool:
    level = [value]
    for _ in range(MAX_DEPTH):
        inner = [each.values() if isinstance(each, dict) else each for each in level if isinstance(each, dict | list)]
        level = [each for values in inner for each in values]
    return any(isinstance(each, dict | list) for each in level)


def _decoded(body: bytes) -> str:
    encoding = json.detect_encoding(body)
    if not encoding.startswith("utf-8"):
        raise JsonBodyError(f"the body is in {encoding[:6].upper()}; send JSON in UTF-8")
    try:
        return body.decode(encoding)
    except UnicodeDecodeError as error:
        raise JsonBodyError(f"the body is not valid UTF-8 at byte {error.start + 1}; send JSON in UTF-8") from None


def _check(value: Any) -> None:
    """Check a JSON value; raise an error about the first problem in the text, if any.

    Raises:
        JsonBodyError: the value has a problem.
    """
    if _is_deep(value):
        raise _too_deep()
    stack: list[tuple[Any, _Path]] = [(value, None)]
    while stack:
        value, path = stack.pop()
        if isinstance(value, str):
            if half := _HALF.search(value):
                raise _wrong(
                    path, f"has half of a surrogate pair (\\u{ord(half[0]):04x}), which is not a character; correct it"
                )
        elif isinstance(value, float):
            if not isfinite(value):
                raise _wrong(path, "is not a finite number; give one")
        elif isinstance(value, dict | list):
            if isinstance(value, _Doubled):
                raise _wrong((path, value.name), "occurs twice in its object; leave one out")
            entries = list(value.items() if isinstance(value, dict) else enumerate(value))
            for name, _ in entries:
                if isinstance(name, str) and (half := _HALF.search(name)):
                    raise _wrong(
                        (path, name), f"has half of a surrogate pair (\\u{ord(half[0]):04x}) in its name; correct it"
                    )
            stack += [(each, (path, name)) for name, each in reversed(entries)]


def _wrong(path: _Path, problem: str) -> JsonBodyError:
    field = ".".join(reversed([_printable(str(name)) for name in _names(path)]))
    return JsonBodyError(f"{field or 'the body'} {problem}", field=field)


def _names(path: _Path) -> Iterator[object]:
    while path is not None:
        path, name = path
        yield name


def _too_deep() -> JsonBodyError:
    return JsonBodyError(f"the body has more than {MAX_DEPTH} levels of nested lists and objects; send fewer")


def _printable(name: str) -> str:
    """Return a name from a client, shortened and without control characters."""
    return "".join(character if character.isprintable() else "?" for character in name[:_MAX_NAME])
