"""Converts structured-output settings to grammars, and schemas to example JSON for drafts."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Collection, Sequence
from typing import Any

from llguidance import LLMatcher, LLParserLimits, LLTokenizer
from llguidance.hf import from_tokenizer
from transformers import PreTrainedTokenizerFast

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import TokenId
from speculant_verifier.structured.constraint import Constraint, reason_of
from speculant_verifier.structured.json_schema import prepared

LOOSE = {"whitespace_pattern": r"[ \t\n]{0,40}"}
"""Whitespace that a grammar allows in JSON. Without a limit, a weak model may emit whitespace forever."""
HARMONY_THOUGHT = (
    r'thought: <|channel|> ("analysis" | "commentary") <|message|> /(.|\n)*/ <|end|> <|start|> "assistant"'
)
"""Grammar rule for the harmony messages that precede the constrained message."""
_HARMONY = f"""start: thought{{0,4}} <|channel|> "final" (" "? <|constrain|> "json")? <|message|> @form
{HARMONY_THOUGHT}
"""
"""Grammar of the harmony format, in which the grammar of the answer constrains only the final message."""
_HARMONY_NAMES = ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|constrain|>")
_MOST_KEPT = 64
_LIMITS = LLParserLimits(
    max_grammar_size=200_000, initial_lexer_fuel=1_000_000, step_lexer_fuel=200_000, max_lexer_states=100_000
)
"""llguidance's limits for compiling a grammar, and for one decoding step with the grammar."""

_DEEPEST_EXAMPLE = 8
_LONGEST_EXAMPLE = 20_000
_OF_TYPE = {"string": '""', "integer": "0", "number": "0.0", "boolean": "true, false", "array": "[]", "object": "{}"}


def form_of(config: GenerationConfig) -> str:
    """Return the grammar that settings request; empty if they request none.

    Raises:
        GenerationRequestError: the settings request several grammars, or a grammar that can't be parsed.
    """
    if config.json_schema and config.grammar:
        raise GenerationRequestError(
            "{field} and grammar exclude each other", fix="give one of them", field="json_schema"
        )
    if (config.json_schema or config.grammar) and (config.ignore_end_tokens or config.end_token_ids == ()):
        raise GenerationRequestError(
            "output of a given form needs an end", fix="leave out {field}", field="ignore_end_tokens"
        )
    if config.json_schema:
        try:
            schema = prepared(json.loads(config.json_schema), is_strict=True)
            return json.dumps({"json_schema": {"x-guidance": LOOSE, **schema} if isinstance(schema, dict) else schema})
        except (ValueError, RecursionError) as error:
            raise GenerationRequestError(
                f"{{field}} is not JSON ({error})", fix="give a schema as JSON text", field="json_schema"
            ) from error
    if config.grammar.startswith("{"):
        try:
            if isinstance(json.loads(config.grammar)["grammars"], list):
                return config.grammar
        except (ValueError, RecursionError, LookupError, TypeError):
            pass
        raise GenerationRequestError(
            "{field} begins with '{', but is not JSON with a list of 'grammars'", fix="fix it", field="grammar"
        )
    return json.dumps({"lark_grammar": config.grammar}) if config.grammar else ""


def grammar_of_regex(regex: str) -> str:
    """Return the grammar of texts that fully match a regular expression in Rust's syntax."""
    grammar: str = LLMatcher.grammar_from_regex(regex)
    return grammar


def grammar_of_choices(texts: Sequence[str]) -> str:
    """Return the grammar that allows exactly the given texts."""
    return "start: " + " | ".join(json.dumps(each, ensure_ascii=False) for each in texts)


def example_of(schema: Any) -> str:
    """Return rough example JSON of a schema: keys, fixed values and punctuation; truncated if long."""
    return _example(schema, _DEEPEST_EXAMPLE)[:_LONGEST_EXAMPLE]


def _example(schema: Any, depth: int) -> str:
    if not isinstance(schema, dict) or not depth:
        return "null"
    if isinstance(values := schema.get("enum", [schema["const"]] if "const" in schema else None), list):
        return ", ".join(map(json.dumps, values[:256]))
    for name in ("anyOf", "oneOf", "allOf"):
        if isinstance(schema.get(name), list):
            return ", ".join(_example(each, depth - 1) for each in schema[name][:16])
    if isinstance(schema.get("properties"), dict):
        properties = list(schema["properties"].items())[:256]
        return "{" + ", ".join(f"{json.dumps(key)}: {_example(value, depth - 1)}" for key, value in properties) + "}"
    if "items" in schema:
        return f"[{_example(schema['items'], depth - 1)}]"
    kind = schema.get("type")
    return _OF_TYPE.get(kind, "null") if isinstance(kind, str) else "null"


class Grammar:
    """A compiled grammar that creates a constraint for every sequence."""

    def __init__(self, matcher: LLMatcher, vocabulary_size: int, end_token_ids: Collection[TokenId]) -> None:
        """Store the end tokens and the matcher, which is in its initial state."""
        self._matcher, self._vocabulary_size, self._ends = matcher, vocabulary_size, frozenset(end_token_ids)

    def constraint(self, prompt_length: int) -> Constraint:
        """Return a new constraint for a sequence.

        Args:
            prompt_length: length of the sequence's prompt, which is not constrained.
        """
        return Constraint(self._matcher.deep_copy(), prompt_length, self._vocabulary_size, self._ends)


class Grammars:
    """Compiles grammars for one model and caches the most recent ones. Thread-safe."""

    def __init__(
        self, tokenizer: PreTrainedTokenizerFast, vocabulary_size: int, end_token_ids: Collection[TokenId]
    ) -> None:
        """Set the model's tokenizer.

        Converting the tokenizer takes seconds; this happens in :meth:`prepare`, or for the first grammar.
        """
        self._source, self._vocabulary_size = tokenizer, vocabulary_size
        self._ends = sorted(end_token_ids)
        self._opening = _opening(tokenizer)
        self._tokenizer: LLTokenizer | None = None
        self._known: OrderedDict[str, Grammar] = OrderedDict()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Convert the tokenizer now, so that the first grammar does not wait for it."""
        with self._lock:
            if self._ends:
                self._read_tokenizer()

    def _read_tokenizer(self) -> LLTokenizer:
        if self._tokenizer is None:
            self._tokenizer = from_tokenizer(self._source, n_vocab=self._vocabulary_size, eos_token=self._ends)
        return self._tokenizer

    def compiled(self, form: str, prompt: Sequence[TokenId]) -> Grammar:
        """Return the compiled grammar for the output that follows a prompt.

        Args:
            form: the grammar, from :func:`form_of`.
            prompt: the prompt's tokens; if they end with the start of an answer in the harmony format, the grammar
                constrains only the final message.

        Raises:
            GenerationRequestError: the grammar is invalid or too large, or the model has no end tokens.
        """
        grammars = json.loads(form)
        grammars = grammars.get("grammars", [grammars])
        if len(grammars) == 1 and self._opening and list(prompt[-len(self._opening) :]) == self._opening:
            grammars = [{"lark_grammar": _HARMONY}, {"name": "form", **grammars[0]}]
        text = json.dumps({"grammars": grammars})
        with self._lock:
            if text in self._known:
                self._known.move_to_end(text)
                return self._known[text]
            if not self._ends:
                raise GenerationRequestError(
                    "the model declares no end token, which output of a given form needs",
                    fix="give {field}",
                    field="end_token_ids",
                )
            tokenizer = self._read_tokenizer()
        matcher = LLMatcher(tokenizer, text, log_level=0, limits=_LIMITS)
        probe = matcher.deep_copy()
        if not matcher.is_error() and not any(probe.compute_bitmask()) and not probe.is_accepting():
            raise GenerationRequestError("the output's form can't be enforced: no output has this form; fix it")
        if probe.is_error() or matcher.is_error():
            reason = reason_of(matcher if matcher.is_error() else probe)
            raise GenerationRequestError(f"the output's form can't be enforced: {reason}; fix or simplify it")
        grammar = Grammar(matcher, self._vocabulary_size, self._ends)
        with self._lock:
            self._known[text] = grammar
            if len(self._known) > _MOST_KEPT:
                self._known.popitem(last=False)
        return grammar


def _opening(tokenizer: PreTrainedTokenizerFast) -> list[TokenId]:
    """Return the tokens that end every harmony prompt; empty for other tokenizers."""
    added = {token.content: token_id for token_id, token in tokenizer.added_tokens_decoder.items() if token.special}
    if not added.keys() >= set(_HARMONY_NAMES):
        return []
    return [added["<|start|>"], *tokenizer.encode("assistant", add_special_tokens=False)]
