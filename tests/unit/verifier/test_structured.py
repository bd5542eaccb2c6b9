"""Constrained output: equal with and without drafts, always valid, and tokens that the grammar forces are drafted."""

from __future__ import annotations

import json
import random
import re

import pytest
import torch

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import Draft
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.structured.grammar import grammar_of_choices, grammar_of_regex


def many_properties(count: int) -> str:
    return json.dumps({"type": "object", "properties": {f"p{number}": {} for number in range(count)}})


SCHEMA = {
    "x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "},
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "kind": {"enum": ["residential", "commercial"]},
        "rooms": {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "maxItems": 3},
    },
    "required": ["name", "kind", "rooms"],
    "additionalProperties": False,
}
REGEX = r"[a-f]{3,9}/\d{2}-(yes|no)"
CHOICES = ("residential lease", "Zwölf 🦊", 'a "quoted" one\n')
FORMS = {
    "schema": {"json_schema": json.dumps(SCHEMA)},
    "regex": {"grammar": grammar_of_regex(REGEX)},
    "choices": {"grammar": grammar_of_choices(CHOICES)},
    "grammar": {"grammar": 'start: item ("," item)* "."\nitem: /[a-z]{1,5}/ | "(" item ")"'},
}


def fits(form: str, text: str) -> bool:
    if form == "schema":
        value = json.loads(text)
        return list(value) == ["name", "kind", "rooms"] and value["kind"] in ("residential", "commercial")
    if form == "regex":
        return re.fullmatch(REGEX, text) is not None
    if form == "choices":
        return text in CHOICES
    return re.fullmatch(r"[a-z(),]+\.", text) is not None and text.count("(") == text.count(")")


@pytest.fixture(scope="module", params=["tree", "greedy"])
def decoder(request, llama):
    config = VerifierConfig(max_batch_size=4, measure_costs=False)
    with SpeculativeDecoder(None, config, DraftConfig(k=8, strategy=request.param), target=llama) as made:
        yield made


SETTINGS = (
    GenerationConfig(),
    GenerationConfig(temperature=1.0, seed=3),
    GenerationConfig(temperature=1.3, top_p=0.9, top_k=40, seed=5),
    GenerationConfig(repetition_penalty=1.3, presence_penalty=0.5, frequency_penalty=-0.3),
)


@pytest.mark.parametrize("form", FORMS)
def test_the_same_as_without_drafts_and_of_the_form(decoder, form):
    configs = [each.model_copy(update={"max_tokens": 250, **FORMS[form]}) for each in SETTINGS]
    drafted = decoder.generate(["The contract", "x", "abcabc", "{"], configs)
    plain = [each.model_copy(update={"speculation": "off"}) for each in configs]
    for prompt, result, config in zip(["The contract", "x", "abcabc", "{"], drafted, plain, strict=True):
        alone = decoder.generate(prompt, config)
        assert result.token_ids == alone.token_ids
        assert alone.finish_reason == "stop", alone.text
        assert fits(form, alone.text), alone.text


@pytest.mark.parametrize("rule", ["token", "block", "tree-wor", "gumbel"])
def test_every_rule_keeps_to_the_form(llama, rule):
    config = VerifierConfig(max_batch_size=4, measure_costs=False)
    strategy = "sampling" if rule != "tree-wor" else "tree"
    with SpeculativeDecoder(None, config, DraftConfig(k=6, strategy=strategy), target=llama) as decoder:
        for seed in range(4):
            settings = GenerationConfig(max_tokens=250, temperature=1.0, seed=seed, rule=rule, **FORMS["schema"])
            assert fits("schema", decoder.generate("abc", settings).text)


def test_what_a_form_forces_costs_no_passes(llama):
    config = VerifierConfig(max_batch_size=1, measure_costs=False)
    with SpeculativeDecoder(None, config, DraftConfig(k=32, max_depth=32), target=llama) as decoder:
        settings = GenerationConfig(max_tokens=250, **FORMS["schema"])
        result = decoder.generate("abc", settings)
        assert len(result.token_ids) / result.num_steps > 3.0, "a token is a byte here"
        plain = decoder.generate("abc", settings.model_copy(update={"speculation": "off"}))
        assert plain.num_steps == len(plain.token_ids)


def test_masks_at_nodes_are_those_of_their_paths(llama):
    """Visit paths below a growing sequence in any order; compare with a fresh matcher."""
    wanted = GenerationConfig(**FORMS["schema"])
    text = llama.encode('{"name": "ab", "kind": "commercial", "rooms": [1, 22]}')
    prompt = [1, 2, 3]
    one = llama.grammar(wanted, prompt).constraint(3)
    generator = random.Random(0)
    end = min(llama.end_token_ids)
    logits = torch.randn(llama.vocabulary_size, generator=torch.Generator().manual_seed(0))
    places = [sorted(generator.randrange(len(text) + 1) for _ in range(2)) for _ in range(60)]
    for known, path in sorted(places, key=lambda place: place[0]):
        fresh = llama.grammar(wanted, prompt).constraint(3)
        sequence = [*prompt, *text[:known]]
        if path == len(text) and generator.random() < 0.5:  # after the end, anything is allowed
            assert one.allows(sequence, [*text[known:], end], 5)
            assert one.forced(sequence, [*text[known:], end]) == []
            assert torch.equal(one.masked(logits, sequence, [*text[known:], end]), logits)
            assert one.usable(sequence, Draft((*text[known:], end, 5), tuple(range(len(text) - known + 2)))) == list(
                range(len(text) - known + 1)
            )
        masked = one.masked(logits, sequence, text[known:path])
        assert torch.equal(masked, fresh.masked(logits, [*prompt, *text[:path]], []))
        for token in (*map(int, generator.sample(range(llama.vocabulary_size), 5)), *text[path : path + 1]):
            assert one.allows(sequence, text[known:path], token) == bool(masked[token].isfinite())


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        ({"json_schema": "{"}, "json_schema is not JSON"),
        ({"json_schema": "{}", "grammar": "start: /a/"}, "json_schema and grammar exclude each other"),
        ({"grammar": grammar_of_regex("(")}, "the output's form can't be enforced"),
        ({"json_schema": '{"allOf": [{"type": "string"}, {"type": "number"}]}'}, "the output's form can't be enforced"),
        ({"grammar": "start: /a/", "ignore_end_tokens": True}, "needs an end; leave out ignore_end_tokens"),
    ],
)
def test_forms_that_are_refused(llama, settings, complaint):
    # Promised behaviour: the message says what is wrong with the grammar.
    with pytest.raises(GenerationRequestError, match=complaint):
        llama.grammar(GenerationConfig(**settings), [1])


@pytest.mark.parametrize(
    ("settings", "is_kept_to"),
    [
        ({"grammar": grammar_of_choices(("<|endoftext|>",))}, None),
        ({"json_schema": many_properties(2_000)}, None),
        ({"grammar": grammar_of_choices(("a<|endoftext|>b", "<|start|>"))}, True),
        ({"grammar": grammar_of_regex("(?:a?){5000}a{5000}")}, False),
        ({"grammar": "start: r0\n" + "".join(f"r{n}: r{n + 1} r{n + 1}\n" for n in range(60)) + 'r60: "a"'}, None),
    ],
)
def test_a_form_that_is_too_much_ends_its_own_request_alone(decoder, settings, is_kept_to):
    expected = decoder.generate("The contract", GenerationConfig(max_tokens=60)).token_ids
    odd, other = decoder.generate(
        ["The", "The contract"], [GenerationConfig(max_tokens=40, **settings), GenerationConfig(max_tokens=60)]
    )
    assert other.token_ids == expected
    if odd.error:
        assert is_kept_to is not True
        assert odd.error.kind == "wrong_request"
        assert re.search("form is too complex|form can't be enforced", str(odd.error))
        assert len(str(odd.error)) < 400
    else:
        assert is_kept_to is not False or odd.finish_reason == "length"
        assert not is_kept_to or odd.text in ("a<|endoftext|>b", "<|start|>")
