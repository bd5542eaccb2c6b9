"""Bodies of HTTP requests: what is right is read as ``json`` reads it, what is wrong is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.errors import DraftRequestError
from speculant_graph.serving.json_body import MAX_DEPTH, JsonBodyError, read_json, read_model_json, require_json_type
from speculant_graph.view.question import Question

VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters()),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(st.characters(), max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


def is_right(value: Any) -> bool:
    """Say slowly whether a value can be sent."""
    if isinstance(value, str):
        return not any("\ud800" <= character <= "\udfff" for character in value)
    if isinstance(value, float):
        return abs(value) < float("inf")
    if isinstance(value, dict):
        return all(is_right(name) and is_right(each) for name, each in value.items())
    return all(map(is_right, value)) if isinstance(value, list) else True


@settings(max_examples=150)
@given(VALUES)
def test_values(value: Any) -> None:
    body = json.dumps(value).encode()
    if is_right(value):
        assert read_json(body) == value
    else:
        with pytest.raises(JsonBodyError) as caught:
            read_json(body)
        assert str(caught.value).isprintable()
        assert not any("\ud800" <= character <= "\udfff" for character in str(caught.value))
    text = json.dumps(read_model_json(json.dumps(value)), ensure_ascii=False)
    assert text.encode()  # can be tokenised


@settings(max_examples=50)
@given(st.binary(max_size=40))
def test_bytes(body: bytes) -> None:
    with suppress(JsonBodyError):
        read_json(body)


def test_depth() -> None:
    for count, is_deep in ((MAX_DEPTH, False), (MAX_DEPTH + 1, True)):
        text = "[" * count + "]" * count
        assert (read_model_json(text) == text) is is_deep
        if is_deep:
            with pytest.raises(JsonBodyError):
                read_json(text.encode())
        else:
            assert read_json(text.encode()) == json.loads(text)
    wide = {"a": [[], {}] * 1_000}
    assert read_json(json.dumps(wide).encode()) == wide


def test_types() -> None:
    for kind in ("application/json", "Application/JSON ; charset=utf-8", 'application/x+json; charset="UTF-8"'):
        require_json_type(kind)
    for kind in ("", "text/json", "application/jsonp", "application/json; charset=latin-1", "a\nb"):
        with pytest.raises(JsonBodyError):
            require_json_type(kind)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"text": "\\ud800"}', "text has half of a surrogate pair"),
        ('{"text": "a"}'.encode("utf-16"), "the body is in UTF-16"),
        (b"[" * 9_999, "more than 100 levels"),
        (b'{"seed": 1, "seed": 2, "text": ""}', "seed occurs twice"),
        (b'{"seed": ' + b"1" * 5_000 + b"}", "more than 4300 digits"),
        (b"{", "the body is not valid JSON at character 2"),
        (b"", "the body is empty"),
        (b"[]", "this is not a question; send one JSON object"),
    ],
)
def test_questions_of_the_explorer(body: bytes, says: str) -> None:
    with pytest.raises(DraftRequestError) as caught:
        Question.read(body)
    assert says in str(caught.value)
