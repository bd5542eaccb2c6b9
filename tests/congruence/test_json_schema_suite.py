"""JSON Schema's own test suite: what is written under a schema is valid, and nothing invalid can be written.

``SPECULANT_JSON_SCHEMA_SUITE`` names the folder of a draft, such as ``tests/draft2020-12`` of the suite's repository.
"""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
import torch

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError

FOLDER = os.environ.get("SPECULANT_JSON_SCHEMA_SUITE")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="SPECULANT_JSON_SCHEMA_SUITE names no folder of the suite"),
]
LONGEST = 300


def accepts(target, grammar, text):
    """Whether a text, byte by byte, is all of an output."""
    tokens, end = target.encode(text), min(target.end_token_ids)
    constraint = grammar.constraint(1)
    return all(constraint.allows([1], tokens[:index], token) for index, token in enumerate([*tokens, end]))


def written(target, grammar, seed):
    """Any text of a form; None if it does not end soon."""
    generator, rng = torch.Generator().manual_seed(seed), random.Random(seed)
    constraint, output, end = grammar.constraint(1), [], min(target.end_token_ids)
    while len(output) < LONGEST:
        if constraint.allows([1], output, end) and rng.random() < 0.7:
            return target.decode(output)
        logits = torch.randn(target.vocabulary_size, generator=generator)
        logits[[byte for byte in b'"]},0' if byte < len(logits)]] += 2.0  # what ends something
        token = int(constraint.masked(logits, [1], output).argmax())
        if token in target.end_token_ids:
            return target.decode(output)
        output.append(token)
    return None


def test_all_of_it(llama, capsys):
    validation = pytest.importorskip("jsonschema")
    counts = {"schemas": 0, "refused": 0, "invalid": 0, "valid": 0, "valid and writable": 0, "written": 0}
    wrong = []
    for path in sorted(Path(FOLDER or "").glob("*.json")):
        for group in json.loads(path.read_text(encoding="utf-8")):
            counts["schemas"] += 1
            config = GenerationConfig(json_schema=json.dumps(group["schema"]))
            try:
                grammar = llama.grammar(config, [1])
            except GenerationRequestError:
                counts["refused"] += 1
                continue
            for case in group["tests"]:
                kind = "valid" if case["valid"] else "invalid"
                counts[kind] += 1
                try:
                    can_be = accepts(llama, grammar, json.dumps(case["data"], ensure_ascii=False))
                except GenerationRequestError:
                    can_be = False
                if can_be and not case["valid"]:
                    wrong.append(f"{path.name}: {group['description']}: {case['description']}")
                counts["valid and writable"] += can_be and case["valid"]
            validator = validation.Draft202012Validator(group["schema"])
            for seed in range(3):
                try:
                    text = written(llama, grammar, seed)
                except GenerationRequestError:
                    continue
                if text is None:
                    continue
                counts["written"] += 1
                if not validator.is_valid(json.loads(text)):
                    wrong.append(f"{path.name}: {group['description']}: wrote {text}")
    with capsys.disabled():
        pass
    assert not wrong
