"""The runs of ``speculant bench structured``."""

from __future__ import annotations

import json
import random
import re
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.types import Draft, TokenId
from speculant_verifier.bench.cases import Case, replay_cases
from speculant_verifier.bench.own_decoding import OwnDecoding
from speculant_verifier.bench.tally import Decoded, Tally
from speculant_verifier.engine import Engine, Request
from speculant_verifier.model import TargetModel
from speculant_verifier.structured import Constraint, Grammar
from speculant_verifier.text import hint_of
from speculant_verifier.tool_calls.styles import STRICT

_WORD = {"type": "string", "pattern": "^[a-z]{1,8}$"}
_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "order_number": {"type": "integer", "minimum": 1, "maximum": 9999},
        "customer": {
            "type": "object",
            "properties": {"first_name": _WORD, "last_name": _WORD, "country": {"enum": ["DE", "FR", "US", "JP"]}},
            "required": ["first_name", "last_name", "country"],
            "additionalProperties": False,
        },
        "items": {
            "type": "array",
            "minItems": 2,
            "maxItems": 4,
            "items": {
                "type": "object",
                "properties": {
                    "article": _WORD,
                    "quantity": {"type": "integer", "minimum": 1, "maximum": 99},
                    "unit_price_in_cents": {"type": "integer", "minimum": 1, "maximum": 9999},
                    "delivery_status": {"enum": ["ordered", "shipped", "delivered", "returned"]},
                },
                "required": ["article", "quantity", "unit_price_in_cents", "delivery_status"],
                "additionalProperties": False,
            },
        },
        "paid": {"type": "boolean"},
    },
    "required": ["order_number", "customer", "items", "paid"],
    "additionalProperties": False,
}
_LONGEST, _ROUNDS = 400, 3
_CODE = re.compile(r"```\w*\n(.*?)```", re.DOTALL)


class _Unsaid(Constraint):
    """A form that is kept to, and tells drafts nothing."""

    def usable(self, token_ids: Sequence[TokenId], draft: Draft) -> list[int]:
        del token_ids
        return list(range(len(draft)))

    def forced(self, token_ids: Sequence[TokenId], path: Sequence[TokenId] = ()) -> list[TokenId]:
        del token_ids, path
        return []


class _UnsaidGrammar(Grammar):
    constraint_type = _Unsaid


class StructuredRuns:
    """Runs on one model."""

    def __init__(self, target: TargetModel, batch: int, nodes: int) -> None:
        """Take the model, and how many rows and nodes a pass has."""
        self._target, self._batch, self._nodes = target, batch, nodes
        self._generator = random.Random(0)
        self._settings = GenerationConfig(
            json_schema=json.dumps({**_SCHEMA, "x-guidance": STRICT}), max_tokens=_LONGEST, speculation="on"
        )
        if not target.end_token_ids:
            target.end_token_ids = frozenset([target.vocabulary_size - 1])  # random weights have none
        self._prompt = tuple(target.encode("The next order as JSON:\n"))

    def records(self, number: int) -> dict[str, Any]:
        """Let the model write records, with drafts and without; and force others upon it, in a tokenizer's own words.

        The latter tell what drafts bring: a model of random weights spells words as no real one does.
        """
        grammar = self._target.grammar(self._settings, self._prompt)
        assert grammar is not None
        free = [
            Case((*self._prompt, *self._target.encode(f"{index}. ")), _LONGEST, grammar=grammar)
            for index in range(number)
        ]
        plain_settings = self._settings.model_copy(update={"speculation": "off"})
        texts = []
        for nodes, settings in ((self._nodes, self._settings), (0, plain_settings)):
            with self._decoding(nodes) as decoding:
                texts.append([tuple(row.token_ids) for row in decoding.decode(free, settings).rows])
        written = [self._written(self._target.encode(json.dumps(self._record())), grammar) for _ in range(number)]
        unsaid = _UnsaidGrammar.like(grammar)
        figures = {}
        for name, form in (("with", grammar), ("without", unsaid)):
            with self._decoding(self._nodes) as decoding:
                run = decoding.decode([replace(case, grammar=form) for case in written], self._settings)
            figures[f"tokens_per_pass_{name}"] = _tokens_per_pass(run)
        return {
            "model": self._target.name,
            "words": self._target.vocabulary_size,
            "identical": texts[0] == texts[1],
            "valid_share": statistics.mean(map(self._is_valid, texts[0])),
            **figures,
        }

    def _written(self, output: Sequence[TokenId], grammar: Grammar) -> Case:
        return Case(self._prompt, len(output), tuple(output), grammar)

    def masks(self) -> dict[str, Any]:
        """Make the masks of a pass, and decode with and without a form where every node needs one."""
        grammar = self._target.grammar(self._settings, self._prompt)
        assert grammar is not None
        rows = [(*self._prompt, *self._target.encode(json.dumps(self._record()))) for _ in range(self._batch)]
        logits = torch.randn(self._target.vocabulary_size)
        masked, asked = [], []
        for row in rows:
            constraint, length = grammar.constraint(len(self._prompt)), len(self._prompt)
            for start in range(length, len(row) - self._nodes, self._nodes):
                for node in range(self._nodes):
                    path = row[start : start + node]
                    started = time.perf_counter()
                    constraint.allows(row[:start], path, row[start + node])
                    asked.append(time.perf_counter() - started)
                    started = time.perf_counter()
                    constraint.masked(logits, row[:start], path)
                    masked.append(time.perf_counter() - started)
        cases = [self._written(row[len(self._prompt) :], grammar) for row in rows]
        figures: dict[str, Any] = {
            "mask_us_p50": round(1e6 * statistics.median(masked), 2),
            "asked_us_p50": round(1e6 * statistics.median(asked), 2),
            "mask_nodes": self._batch * self._nodes,
        }
        for name in ("form", "free"):
            tally = Tally()
            some = cases if name == "form" else [replace(case, grammar=None) for case in cases]
            with self._decoding(self._nodes) as decoding:
                for number in range(1 + _ROUNDS):
                    run = decoding.decode(some, GenerationConfig(speculation="on"))
                    if number:  # the first one warms up
                        tally.add(run)
            phases = tally.phase_ms(("verify", "commit", "other", "forward"))
            figures[f"host_ms_{name}"] = round(phases["verify"] + phases["commit"] + phases["other"], 3)
            figures["pass_ms"] = phases["forward"]
        return figures

    def second_call(self, length: int) -> dict[str, Any]:
        """Read a conversation, and then the same with another question at its end."""
        words = self._target.vocabulary_size
        conversation = tuple(self._generator.randrange(words) for _ in range(length))
        question = tuple(self._generator.randrange(words) for _ in range(60))
        seconds, tokens = {}, {}
        for name, cache in (("cached", VerifierConfig().prefix_cache), ("uncached", 0)):
            config = VerifierConfig(max_batch_size=1, prefix_cache=cache)
            drafter = LocalDrafter(None, DraftConfig(), vocabulary_size=words)
            engine = Engine(self._target, drafter, config, DraftConfig(k=self._nodes))
            first_s, first = self._first_token(engine, conversation)
            second_s, second = self._first_token(engine, (*conversation, *first, *question))
            seconds[name], tokens[name] = (first_s, second_s), (first, second)
            engine.close()
            drafter.close()
        return {
            "first_call_s": round(seconds["cached"][0], 4),
            "second_call_s": round(seconds["cached"][1], 4),
            "second_call_uncached_s": round(seconds["uncached"][1], 4),
            "second_call_share": round(seconds["cached"][1] / seconds["cached"][0], 4),
            "second_call_identical": tokens["cached"] == tokens["uncached"],
        }

    def predictions(self, paths: Sequence[Path], limit: int) -> dict[str, Any]:
        """Replay recorded edits, with the code that is in their prompts as a prediction, and without."""
        cases = []
        for group in replay_cases(paths, self._target, limit, _LONGEST):
            for case in group.cases:
                code = _CODE.search(self._target.decode(case.prompt))
                hint = hint_of(case.prompt, self._target.encode(code[0])) if code else ()
                cases.append(replace(case, hint=hint))
        figures = {}
        for name in ("prediction", "prompt"):
            some = cases if name == "prediction" else [replace(case, hint=()) for case in cases]
            with self._decoding(self._nodes) as decoding:
                run = decoding.decode(some, GenerationConfig(speculation="on"))
            figures[f"tokens_per_pass_{name}"] = _tokens_per_pass(run)
        return figures

    @contextmanager
    def _decoding(self, nodes: int) -> Iterator[OwnDecoding]:
        draft = DraftConfig(k=nodes)
        drafter = LocalDrafter(None, draft, vocabulary_size=self._target.vocabulary_size)
        yield OwnDecoding(self._target, drafter, draft, self._batch)
        drafter.close()

    @staticmethod
    def _first_token(engine: Engine, prompt: tuple[TokenId, ...]) -> tuple[float, tuple[TokenId, ...]]:
        started_s, first_s = time.perf_counter(), 0.0
        settings = GenerationConfig(max_tokens=32, ignore_end_tokens=True)
        token_ids: list[TokenId] = []
        for emission in engine.run([Request(0, prompt, settings)]):
            first_s = first_s or time.perf_counter() - started_s
            token_ids += emission.token_ids
        return first_s, tuple(token_ids)

    def _is_valid(self, token_ids: tuple[TokenId, ...]) -> bool:
        try:
            record = json.loads(self._target.decode(token_ids[:-1]))
        except ValueError:
            return False
        return _fits(record, _SCHEMA)

    def _record(self) -> dict[str, Any]:
        made = _made(_SCHEMA, self._generator)
        assert isinstance(made, dict)
        return made


def _tokens_per_pass(run: Decoded) -> float:
    return round(sum(len(row.token_ids) for row in run.rows) / sum(row.num_steps for row in run.rows), 4)


def _made(schema: dict[str, Any], generator: random.Random) -> Any:
    """Return something of a schema of the kind above."""
    if "enum" in schema:
        return generator.choice(schema["enum"])
    kind = schema["type"]
    if kind == "object":
        return {name: _made(each, generator) for name, each in schema["properties"].items()}
    if kind == "array":
        return [_made(schema["items"], generator) for _ in range(generator.randint(2, 4))]
    if kind == "integer":
        return generator.randint(schema["minimum"], schema["maximum"])
    if kind == "boolean":
        return generator.random() < 0.5
    return "".join(generator.choice("abcdefghijklmnopqrstuvwxyz") for _ in range(generator.randint(1, 8)))


def _fits(value: Any, schema: dict[str, Any]) -> bool:
    """Whether something is of a schema of the kind above."""
    if "enum" in schema:
        return value in schema["enum"]
    kind = schema["type"]
    if kind == "object":
        parts = schema["properties"]
        return (
            isinstance(value, dict) and value.keys() == parts.keys() and all(_fits(value[p], parts[p]) for p in parts)
        )
    if kind == "array":
        return isinstance(value, list) and 2 <= len(value) <= 4 and all(_fits(each, schema["items"]) for each in value)
    if kind == "integer":
        return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
    if kind == "boolean":
        return isinstance(value, bool)
    return isinstance(value, str) and re.fullmatch(schema["pattern"], value) is not None
