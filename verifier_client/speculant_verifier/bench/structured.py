"""``speculant bench structured``: measures typical agent requests, with structured output or a shared prefix."""

from __future__ import annotations

import json
import random
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speculant_graph.bench.report import begin, print_report
from speculant_graph.client import LocalDrafter
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.settings import ReportingSettings, load_settings
from speculant_graph.types import TokenId
from speculant_verifier.bench.decoding import Decoded, DecodingStatistics, EngineDecoding
from speculant_verifier.bench.workload import BenchRequest, load_target

if TYPE_CHECKING:
    from speculant_verifier.model import TargetModel

_RANDOM = "random:65M"
_LONGEST = 400
_Word = Annotated[str, Field(pattern="^[a-z]{1,8}$")]
_Number = Annotated[int, Field(ge=1, le=9999)]


class BenchStructuredSettings(ReportingSettings):
    """Measure drafts of the tokens that a strict schema forces, and the prefix cache in a long conversation.

    The exit status is 1 if drafts change an answer, or if an answer violates its schema.
    """

    verifier: VerifierConfig = VerifierConfig()
    """Target model; by default, a model with random weights and the named tokenizer."""
    records: Annotated[int, Field(ge=1)] = 16
    """Number of JSON records to decode."""
    batch: Annotated[int, Field(ge=1)] = 8
    """Sequences decoded together."""
    nodes: Annotated[int, Field(ge=1)] = 8
    """Maximum number of drafted tokens per sequence and step."""
    conversation: Annotated[int, Field(ge=64)] = 4000
    """Length of the long conversation in tokens, at least 64."""


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Customer(_Part):
    first_name: _Word
    last_name: _Word
    country: Literal["DE", "FR", "US", "JP"]


class _Item(_Part):
    article: _Word
    quantity: Annotated[int, Field(ge=1, le=99)]
    unit_price_in_cents: _Number
    delivery_status: Literal["ordered", "shipped", "delivered", "returned"]


class _Order(_Part):
    """Schema of the records that the model writes."""

    order_number: _Number
    customer: _Customer
    items: Annotated[list[_Item], Field(min_length=2, max_length=4)]
    paid: bool


def run(arguments: Sequence[str]) -> int:
    """Run the benchmark and print its figures; return 1 if an output violates its schema or was changed by drafts."""
    settings = load_settings(BenchStructuredSettings, "bench structured", arguments)
    begin("loading the model")
    verifier = settings.verifier
    if "model_name" not in verifier.model_fields_set:
        verifier = verifier.model_copy(update={"model_name": _RANDOM})
    target = load_target(verifier)
    runs = _Runs(target, settings.batch, settings.nodes)
    begin("writing records")
    figures = runs.records(settings.records)
    begin("making masks")
    figures |= runs.masks()
    begin("reading a long conversation")
    figures |= runs.second_call(settings.conversation)
    target.close()
    print_report("structured", figures, arguments, as_json=settings.json_output)
    return int(not figures["identical"] or figures["valid_share"] < 1.0)


class _Runs:
    """Runs the measurements with one model."""

    def __init__(self, target: TargetModel, batch: int, nodes: int) -> None:
        from speculant_verifier.conversation.tool_calls import STRICT

        self._target, self._batch, self._nodes = target, batch, nodes
        self._random = random.Random(0)
        schema = json.dumps({**_Order.model_json_schema(), "x-guidance": STRICT})
        self._settings = GenerationConfig(json_schema=schema, max_tokens=_LONGEST, speculation="on")
        if not target.end_token_ids:
            target.end_token_ids = frozenset([target.vocabulary_size - 1])  # random weights have none
        self._prompt = tuple(target.encode("The next order as JSON:\n"))
        grammar = target.grammar(self._settings, self._prompt)
        assert grammar is not None
        self._grammar = grammar

    def records(self, count: int) -> dict[str, Any]:
        """Decode records that the model chooses, with and without drafts, and forced records, with and without grammar.

        Forced records consist of the tokenizer's usual tokens. Only forced records show the gain from the grammar,
        because a model with random weights splits words into unusual tokens.
        """
        free = [
            BenchRequest((*self._prompt, *self._target.encode(f"{index}. ")), _LONGEST, grammar=self._grammar)
            for index in range(count)
        ]
        drafted, plain = self._decode(free, self._nodes), self._decode(free, 0)
        outputs = [self._target.encode(json.dumps(self._order())) for _ in range(count)]
        written = [BenchRequest(self._prompt, len(ids), tuple(ids), self._grammar) for ids in outputs]
        informed = DecodingStatistics([self._decode(written, self._nodes)])
        uninformed = self._decode([replace(each, grammar=None) for each in written], self._nodes)
        return {
            "model": self._target.name,
            "words": self._target.vocabulary_size,
            "identical": [row.token_ids for row in drafted.rows] == [row.token_ids for row in plain.rows],
            "valid_share": statistics.mean(self._is_valid(row.token_ids) for row in drafted.rows),
            "tokens_per_pass_with": round(informed.mean_accepted_tokens, 4),
            "tokens_per_pass_without": round(DecodingStatistics([uninformed]).mean_accepted_tokens, 4),
            "pass_ms": informed.phase_ms()["forward"],
        }

    def masks(self) -> dict[str, Any]:
        """Time the grammar's token check and logit mask at every draft node of some records."""
        import torch

        logits = torch.randn(self._target.vocabulary_size)
        masked, asked = [], []
        for _ in range(self._batch):
            row = (*self._prompt, *self._target.encode(json.dumps(self._order())))
            constraint = self._grammar.constraint(len(self._prompt))
            for start in range(len(self._prompt), len(row) - self._nodes, self._nodes):
                for node in range(start, start + self._nodes):
                    started = time.perf_counter()
                    constraint.allows(row[:start], row[start:node], row[node])
                    asked.append(time.perf_counter() - started)
                    started = time.perf_counter()
                    constraint.masked(logits, row[:start], row[start:node])
                    masked.append(time.perf_counter() - started)
        return {
            "mask_us_p50": round(1e6 * statistics.median(masked), 2),
            "asked_us_p50": round(1e6 * statistics.median(asked), 2),
        }

    def second_call(self, length: int) -> dict[str, Any]:
        """Answer a conversation and then a follow-up question, with and without the prefix cache."""
        words = self._target.vocabulary_size
        conversation, question = ([self._random.randrange(words) for _ in range(each)] for each in (length, 60))
        settings = GenerationConfig(ignore_end_tokens=True)
        seconds, token_ids = [], []
        for cache in (VerifierConfig().prefix_cache, 0):
            drafter = LocalDrafter(None, DraftConfig(), vocabulary_size=words)
            draft = DraftConfig(k=self._nodes)
            decoding = EngineDecoding(self._target, drafter, draft, 1, settings, prefix_cache=cache)
            [first] = decoding.decode([BenchRequest(tuple(conversation), 32)]).rows
            [second] = decoding.decode([BenchRequest((*conversation, *first.token_ids, *question), 32)]).rows
            seconds.append([row.arrivals[0][0] for row in (first, second)])
            token_ids.append((first.token_ids, second.token_ids))
            decoding.close()
            drafter.close()
        return {
            "first_call_s": round(seconds[0][0], 4),
            "second_call_s": round(seconds[0][1], 4),
            "second_call_share": round(seconds[0][1] / seconds[0][0], 4),
            "second_call_identical": token_ids[0] == token_ids[1],
        }

    def _decode(self, requests: Sequence[BenchRequest], nodes: int) -> Decoded:
        draft = DraftConfig(k=nodes)
        drafter = LocalDrafter(None, draft, vocabulary_size=self._target.vocabulary_size)
        decoded = EngineDecoding(self._target, drafter, draft, self._batch, self._settings).decode(requests)
        drafter.close()
        return decoded

    def _is_valid(self, token_ids: Sequence[TokenId]) -> bool:
        try:
            _Order.model_validate_json(self._target.decode(token_ids[:-1]))
        except ValidationError:
            return False
        return True

    def _order(self) -> dict[str, Any]:
        choice, randint = self._random.choice, self._random.randint

        def word() -> str:
            return "".join(choice("abcdefghijklmnopqrstuvwxyz") for _ in range(randint(1, 8)))

        return {
            "order_number": randint(1, 9999),
            "customer": {"first_name": word(), "last_name": word(), "country": choice(["DE", "FR", "US", "JP"])},
            "items": [
                {
                    "article": word(),
                    "quantity": randint(1, 99),
                    "unit_price_in_cents": randint(1, 9999),
                    "delivery_status": choice(["ordered", "shipped", "delivered", "returned"]),
                }
                for _ in range(randint(2, 4))
            ],
            "paid": choice([True, False]),
        }
