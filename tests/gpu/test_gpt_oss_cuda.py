"""On a GPU: gpt-oss-20b's real shape with random weights, in bfloat16. No checkpoint and no network are needed.

In bfloat16 a pass over nine nodes rounds differently from a pass over one, so equality of tokens is no test. Instead a
text is forced on the model: at every node its favourite must be the favourite of a fresh pass, or a near tie.
"""

from __future__ import annotations

import gc
import random

import pytest
import torch
from transformers import AutoModelForCausalLM, GptOssConfig, GptOssForCausalLM

from speculant_verifier.model import TargetModel
from support.caching import Rows, fresh_logits, path_to, random_draft
from support.drafters import chain
from support.tiny_models import byte_tokenizer, tiny_gpt_oss, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]

GIBIBYTES_OF_20B = 44  # decoded to bfloat16, with room for one pass


def config_of_20b(num_layers: int) -> GptOssConfig:
    """The published configuration of gpt-oss-20b; fewer layers where memory is short."""
    return GptOssConfig(
        vocab_size=201_088,
        hidden_size=2_880,
        intermediate_size=2_880,
        head_dim=64,
        num_attention_heads=64,
        num_key_value_heads=8,
        num_hidden_layers=num_layers,
        num_local_experts=32,
        num_experts_per_tok=4,
        sliding_window=128,
        max_position_embeddings=131_072,
        rope_parameters={
            "rope_type": "yarn", "rope_theta": 150_000.0, "factor": 32.0, "beta_fast": 32.0, "beta_slow": 1.0,
            "truncate": False, "original_max_position_embeddings": 4_096,
        },
        rms_norm_eps=1e-5,
        attention_bias=True,
        tie_word_embeddings=False,
        eos_token_id=200_002,
        pad_token_id=199_999,
        bos_token_id=None,
    )  # fmt: skip


@pytest.fixture(scope="module")
def large() -> TargetModel:
    gc.collect()
    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info()[0] / 2**30
    num_layers = 24 if free > GIBIBYTES_OF_20B else 4
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = GptOssForCausalLM._from_config(config_of_20b(num_layers), dtype=torch.bfloat16)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "sinks" in name or "bias" in name:
                parameter.normal_(std=0.5)
    return TargetModel(model, byte_tokenizer(), "gpt-oss-20b of random weights")


def near_ties(actual: torch.Tensor, expected: torch.Tensor, slack: float = 0.05) -> bool:
    """Whether the favourite of one is within ``slack`` standard deviations of the favourite of the other."""
    actual, expected = actual.float(), expected.float()
    return bool(expected.max() - expected[actual.argmax()] <= slack * expected.std())


@pytest.mark.parametrize("length", [1, 100, 127, 128, 129, 300, 1_500])
@pytest.mark.parametrize("shape", ["chain", "tree"])
def test_favourites_are_those_of_a_fresh_pass(large, length, shape):
    generator = random.Random(length)
    tokens = [generator.randrange(199_000) for _ in range(length)]
    cache = large.new_cache(1, widest_pass=512)
    for first in range(0, length - 1, 512):
        large.prefill([tokens[:-1][first : first + 512]], cache, [0])
    good = total = 0
    for _ in range(3):
        draft = random_draft(generator, 16, shape)
        logits = large.forward([tokens[cache.lengths[0] :]], cache, [0], [draft])[0]
        for node in (0, 5, 11, 16):
            expected = fresh_logits(large, tokens + [draft.token_ids[j] for j in path_to(draft, node)])[-1]
            good += near_ties(logits[node], expected)
            total += 1
        accepted = path_to(draft, generator.randint(0, 16))
        cache.commit_all([0], [[0, *(j + 1 for j in accepted)]])
        tokens += [draft.token_ids[j] for j in accepted] + [int(logits[0].argmax())]
    assert good == total


def test_the_same_pass_gives_the_same_bits(large):
    """At a fixed number of nodes and rows, run after run."""
    tokens = [list(range(10, 210)), list(range(500, 531))]
    first: torch.Tensor | None = None
    for _ in range(3):
        cache = large.new_cache(2, widest_pass=256)
        large.prefill([row[:-1] for row in tokens], cache, [0, 1])
        logits = large.forward([row[-1:] for row in tokens], cache, [0, 1], [chain(range(8))] * 2)
        first = logits if first is None else first
        assert torch.equal(first, logits)


@pytest.mark.parametrize("family", ["gpt_oss", "llama", "mistral", "qwen2", "qwen3", "qwen3_moe"])
def test_small_models_in_float32_verify_exactly(family):
    """What the tests without a GPU prove, with its kernels; TF32 is off by default."""
    made = tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)
    target = TargetModel(made.model.to("cuda"), made.tokenizer, family)
    rows = Rows(target, target.new_cache(4, widest_pass=10), family)
    for row, length in enumerate([1, 15, 17, 90]):
        rows.start(row, length, chunk=10)
    for _ in range(4):
        assert rows.verify(range(4)) < 1e-3


def test_a_model_saved_and_loaded_on_the_gpu(tmp_path):
    from speculant_graph.config import VerifierConfig

    made = tiny_gpt_oss()
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    target = TargetModel.load(VerifierConfig(model_name=str(tmp_path), device="cuda", dtype="bfloat16"))
    assert (target.device.type, target.model.dtype) == ("cuda", torch.bfloat16)
    assert isinstance(target.model, type(AutoModelForCausalLM.from_config(made.model.config)))
    cache = target.new_cache(1)
    target.prefill([[1, 2, 3]], cache, [0])
    assert target.forward([[4]], cache, [0]).isfinite().all()
