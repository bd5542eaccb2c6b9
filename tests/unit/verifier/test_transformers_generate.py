"""``model.generate`` gives the same output with this project's decoding as without."""

from __future__ import annotations

import pytest
import torch
from transformers import StoppingCriteria, StoppingCriteriaList

from speculant_graph.config import DraftConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.engine import ActiveSequence
from speculant_verifier.transformers_generate import speculant_generate
from support.drafters import ScriptedDrafter, knowing
from support.tiny_models import WINDOW, tiny_gpt_oss, tiny_model

PROMPTS = [[5, 6, 7, 8, 5, 6], list(range(WINDOW + 30)), [1] * 7, [200, 3, 200, 3, 200, 3, 9]]
PAD = 256


@pytest.fixture(scope="module", params=["gpt_oss", "llama", "qwen2"])
def model(request):
    target = tiny_gpt_oss() if request.param == "gpt_oss" else tiny_model(request.param)
    target.model.set_attn_implementation("eager")  # the attention of transformers
    return target.model


def padded():
    width = max(map(len, PROMPTS))
    ids = torch.tensor([[PAD] * (width - len(prompt)) + prompt for prompt in PROMPTS])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in PROMPTS])
    return {"input_ids": ids, "attention_mask": mask, "pad_token_id": PAD, "max_new_tokens": 16}


SETTINGS = [
    {},
    {"repetition_penalty": 1.3},
    {"repetition_penalty": 1.2, "no_repeat_ngram_size": 2, "min_new_tokens": 8},
    {"bad_words_ids": [[65], [66, 67]], "sequence_bias": [[[100], 2.0]], "suppress_tokens": [7, 8]},
    {"exponential_decay_length_penalty": (5, 1.5), "begin_suppress_tokens": [1, 2, 3]},
    {"forced_eos_token_id": 257, "renormalize_logits": True},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_greedy_batches_equal_those_of_transformers(model, settings):
    before = model.config._attn_implementation
    settings = {"do_sample": False, "eos_token_id": [257, 90, 120], **settings, **padded()}
    theirs = model.generate(**settings)
    sequences: list[ActiveSequence] = []
    drafter = ScriptedDrafter(knowing([[*row] for row in _unpadded(theirs)], 0.8, 258))
    ours = model.generate(**settings, custom_generate=speculant_generate, drafter=drafter, sequences=sequences)
    assert torch.equal(ours, theirs)
    assert sum(sum(sequence.accepted_by_depth) for sequence in sequences) > 0
    assert model.config._attn_implementation == before
    assert not drafter.open_sessions
    assert torch.equal(model.generate(**settings, custom_generate=speculant_generate), theirs)  # with its own drafter


def _unpadded(rows):
    width = max(map(len, PROMPTS))
    for row, prompt in zip(rows.tolist(), PROMPTS, strict=True):
        yield row[width - len(prompt) :]


def test_samples_depend_on_seeds_alone(model):
    settings = {**padded(), "do_sample": True, "temperature": 0.8, "top_p": 0.9, "custom_generate": speculant_generate}
    plain = model.generate(**settings, seeds=[1, 2, 3, 4], draft_config=DraftConfig(k=0))
    assert torch.equal(model.generate(**settings, seeds=[1, 2, 3, 4]), plain)
    assert not torch.equal(model.generate(**settings, seeds=[5, 6, 7, 8]), plain)
    torch.manual_seed(3)
    first = model.generate(**settings)
    torch.manual_seed(3)
    assert torch.equal(model.generate(**settings), first)


def test_stopping_criteria_are_asked_after_every_token(model):
    class AfterFourth(StoppingCriteria):
        def __call__(self, input_ids, scores, **_):
            return torch.tensor([input_ids.shape[1] >= 7] * len(input_ids))

    settings = {
        "input_ids": torch.tensor([[5, 6, 7]]), "do_sample": False, "max_new_tokens": 20, "pad_token_id": PAD,
        "eos_token_id": None, "stopping_criteria": StoppingCriteriaList([AfterFourth()]),
    }  # fmt: skip
    theirs = model.generate(**settings)
    told = []
    ours = model.generate(
        **settings, custom_generate=speculant_generate,
        spec_streamer=lambda row, tokens: told.append((row, *tokens)),
    )  # fmt: skip
    assert torch.equal(ours, theirs)
    assert [token for row, *tokens in told for token in tokens] == theirs[0, 3:].tolist()


@pytest.mark.parametrize(
    "settings", [{"num_beams": 2}, {"output_scores": True, "return_dict_in_generate": True}, {"seeds": [1, 2]}]
)
def test_what_can_not_be_done_is_refused(model, settings):
    with pytest.raises(ConfigError):
        model.generate(
            torch.tensor([[5, 6, 7]]),
            max_new_tokens=3,
            pad_token_id=PAD,
            custom_generate=speculant_generate,
            **settings,
        )
