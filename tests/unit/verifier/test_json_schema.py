"""Schemas from libraries: a rewritten schema has the same meaning, and unsupported keywords are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from llguidance import LLMatcher, LLTokenizer

from speculant_verifier.structured.json_schema import prepared

TOKENIZER = LLTokenizer("byte")
RECORD = {"type": "object", "propertyNames": {"type": "string"}, "additionalProperties": {"type": "string"}}


def is_of(schema: Any, text: str, *, is_strict: bool) -> bool:
    grammar = json.dumps({"grammars": [{"json_schema": prepared(schema, is_strict=is_strict)}]})
    matcher = LLMatcher(TOKENIZER, grammar, log_level=0)
    assert not matcher.is_error(), matcher.get_error()
    tokens = TOKENIZER.tokenize_str(text)
    return matcher.try_consume_tokens(tokens) == len(tokens) and bool(matcher.is_accepting())


@pytest.mark.parametrize(
    ("schema", "right", "wrong"),
    [
        (RECORD, '{"a": "b"}', '{"a": 1}'),
        ({"anyOf": [{"items": RECORD, "type": "array"}]}, '[{"a": "b"}]', '[{"a": 1}]'),
        ({"$defs": {"R": RECORD}, "$ref": "#/$defs/R"}, '{"a": "b"}', '{"a": 1}'),
        ({"type": "object", "propertyNames": {"enum": ["a", "b"]}}, '{"b": 1}', '{"c": 1}'),
        ({"type": "object", "propertyNames": {"const": "a"}}, '{"a": 1}', '{"c": 1}'),
        ({"type": "object", "propertyNames": {"pattern": "^x+$"}}, '{"xx": 1}', '{"c": 1}'),
        (
            {
                "type": "object",
                "properties": {"a": {"type": "integer"}, "z": {}},
                "propertyNames": {"enum": ["a", "b"]},
                "additionalProperties": {"type": "string"},
            },
            '{"a": 1, "b": "x"}',
            '{"z": 1}',
        ),
        ({"type": "array", "items": {"enum": ["a", "b", "c"]}, "uniqueItems": True}, '["c", "a"]', '["a", "a"]'),
        ({"type": "array", "items": {"type": "boolean"}, "uniqueItems": True, "minItems": 1}, "[true]", "[]"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": True, "maxItems": 1}, "[3]", "[3, 3]"),
        ({"type": "array", "items": {"type": "integer"}, "uniqueItems": False}, "[3, 3]", '["a"]'),
        ({"not": {"type": "string"}}, '{"a": 1}', '"x"'),
        ({"not": {"type": ["string", "null"]}}, "3", "null"),
        ({"type": ["string", "number"], "not": {"type": "string"}}, "3", '"s"'),
        ({"type": "object", "properties": {"a": {"not": {}}}}, "{}", '{"a": 1}'),
        ({"type": "object", "additionalProperties": {"not": {}}}, "{}", '{"a": 1}'),
        ({"type": "integer", "not": False}, "1", '"x"'),
        ({"if": True, "then": {"type": "string"}, "else": {"type": "integer"}}, '"x"', "1"),
        ({"if": False, "then": {"type": "string"}, "else": {"type": "integer"}}, "1", '"x"'),
        ({"type": "string", "if": {"minLength": 3}}, '"x"', "1"),
        ({"type": "string", "then": {"minLength": 3}}, '"x"', "1"),
        ({"type": "object", "properties": {"propertyNames": {"type": "integer"}}}, '{"propertyNames": 1}', "[]"),
    ],
    ids=json.dumps,
)
def test_the_same_in_other_words(schema: Any, right: str, wrong: str) -> None:
    before = json.dumps(schema)
    for is_strict in (False, True):
        assert is_of(schema, right, is_strict=is_strict)
        assert not is_of(schema, wrong, is_strict=is_strict)
    assert json.dumps(schema) == before


@pytest.mark.parametrize(
    ("schema", "word"),
    [
        ({"not": {"const": "x"}}, "not"),
        ({"not": {"type": "integer"}}, "not"),
        ({"if": {"type": "string"}, "then": {"minLength": 3}}, "if"),
        ({"type": "object", "propertyNames": {"maxLength": 3}}, "propertyNames"),
        ({"type": "object", "propertyNames": {"enum": ["a"]}, "patternProperties": {"^a": {}}}, "propertyNames"),
    ],
    ids=json.dumps,
)
def test_what_has_no_other_words_is_refused(schema: Any, word: str) -> None:
    for is_strict in (False, True):
        grammar = json.dumps({"grammars": [{"json_schema": prepared(schema, is_strict=is_strict)}]})
        assert f'"{word}"' in LLMatcher(TOKENIZER, grammar, log_level=0).get_error()


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "array", "items": {"type": "integer"}, "uniqueItems": True},
        {"type": "array", "items": {"enum": [1, 2, 3, 4, 5]}, "uniqueItems": True, "minItems": "odd"},
        {"type": "string", "format": "path"},
    ],
    ids=json.dumps,
)
def test_what_is_left_to_the_model_unless_it_is_strict(schema: Any) -> None:
    errors = [
        LLMatcher(
            TOKENIZER,
            json.dumps({"grammars": [{"json_schema": prepared(schema, is_strict=is_strict)}]}),
            log_level=0,
        ).get_error()
        for is_strict in (False, True)
    ]
    assert "odd" in json.dumps(schema) or errors[0] == ""
    assert errors[1]
