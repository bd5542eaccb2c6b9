"""Tool calls in a model's output, split into any pieces."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_verifier.conversation.json_calls import JsonCalls


def split(text: str, cuts: list[int], *, is_cut: bool = False) -> tuple[str, list[tuple[str, str]]]:
    """Return the content and the calls of an output that arrives in pieces."""
    calls: list[tuple[str, str]] = []
    content = ""
    splitter = JsonCalls("<tool_call>", "</tool_call>")
    edges = [0, *sorted(cuts), len(text)]
    for number in range(len(edges) - 1):
        final = number == len(edges) - 2
        for kind, piece in splitter.push(
            (), text[edges[number] : edges[number + 1]], final=final, is_cut=final and is_cut
        ):
            if kind == "content":
                content += piece
            elif kind == "name":
                calls.append((piece, ""))
            else:
                calls[-1] = calls[-1][0], calls[-1][1] + piece
    return content, calls


CASES = [
    (
        'Let me see.\n<tool_call>\n{"name": "f", "arguments": {"a": "}{\\"", "b": [1, {"c": 2}]}}\n</tool_call>',
        "Let me see.\n",
        [("f", '{"a": "}{\\"", "b": [1, {"c": 2}]}')],
    ),
    (
        '<tool_call>{"arguments": {"x": 1} , "name": "f"}</tool_call>\n<tool_call>{"name": "g"}</tool_call>',
        "",
        [("f", '{"x": 1}'), ("g", "{}")],
    ),
    ("<tool_call>none of this</tool_call>", "<tool_call>none of this</tool_call>", []),
    ('<tool_call>{"name": "f", "arguments": {"x": ', "", [("f", '{"x": ')]),
    ('<tool_call>{"arguments": {"x": 1}, "name": "f', '<tool_call>{"arguments": {"x": 1}, "name": "f', []),
    ('<tool_call>{"name": "f", "arguments": {"x": [}</tool_call>.', ".", [("f", '{"x": [}')]),
    (
        '<tool_call>{"name": "f", "arguments": {"x": "</tool_call>"}, "id": 3} </tool_call>\n',
        "",
        [("f", '{"x": "</tool_call>"}')],
    ),
    ('<tool_call>{"name": "f", "arguments": "{\\"x\\": 1}"}</tool_call>', "", [("f", '{"x": 1}')]),
    ('<tool_call>{"name": "f", "arguments": null}</tool_call>', "", [("f", "{}")]),
    ('<tool_call>{"name": "f", "arguments": {}} and more', " and more", [("f", "{}")]),
    (
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>x',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call>x',
        [],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {}}</tool_call> <tool_call>no</tool_call>',
        " <tool_call>no</tool_call>",
        [("f", "{}")],
    ),
    (
        '<tool_call>{"name": "f", "arguments": {}}</tool_call> and <b>text</b>',
        " and <b>text</b>",
        [("f", "{}")],
    ),
]


@pytest.mark.parametrize(("text", "content", "calls"), CASES)
def test_what_is_found_does_not_depend_on_the_cuts(text, content, calls):
    assert split(text, []) == (content, calls)
    assert split(text, list(range(1, len(text)))) == (content, calls)
    for cut in range(len(text)):
        assert split(text, [cut]) == (content, calls)


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("See. <tool_call>", "See. "),
        ('See.<tool_call>\n{"name": "', "See."),
        ('<tool_call>{"name": "f", "arg', ""),
        ('<tool_call>{"arguments": {"x": 1}, "name": "f', ""),
        ("<tool_call>none of this", "<tool_call>none of this"),
        ('<tool_call>{"name": "f</tool_call> and more', '<tool_call>{"name": "f</tool_call> and more'),
        ("a <tool_c", "a <tool_c"),
    ],
)
def test_half_a_call_that_a_limit_cuts_off_is_no_text(text, content):
    assert split(text, [], is_cut=True) == (content, [])
    assert split(text, list(range(1, len(text))), is_cut=True) == (content, [])
    assert split(text, []) == (text, []), "whatever else ends an answer leaves it as it is"


@given(text=st.text(alphabet='<tool_cal>/{}":, nmefg[]\\', max_size=80), cuts=st.lists(st.integers(0, 80), max_size=4))
def test_any_text_is_split_without_complaint(text, cuts):
    text = text.replace("ee", "<tool_call>").replace("gg", "</tool_call>")
    cuts = [min(cut, len(text)) for cut in cuts]
    for is_cut in (False, True):
        assert split(text, cuts, is_cut=is_cut) == split(text, [], is_cut=is_cut)


@given(
    name=st.text(min_size=1, max_size=8),
    arguments=st.dictionaries(st.text(max_size=5), st.recursive(st.integers() | st.text(), st.lists), max_size=4),
    flat=st.booleans(),
)
def test_calls_come_back(name, arguments, flat):
    text = json.dumps({"name": name, "arguments": arguments}, indent=None if flat else 2)
    _, [(found, given_arguments)] = split(f"<tool_call>{text}</tool_call>", [])
    assert (found, json.loads(given_arguments)) == (name, arguments)
