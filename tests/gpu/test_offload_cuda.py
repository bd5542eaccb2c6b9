"""GPU tests: weights that do not fit into GPU memory are copied from host memory, with the same logits."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.model import TargetModel
from support.packed_checkpoint import tiny_config, write_packed
from support.tiny_models import byte_tokenizer, tiny_gpt_oss, tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.fixture(scope="module", params=["llama", "qwen2", "gpt_oss", "packed"])
def checkpoint(request, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "packed":
        byte_tokenizer().save_pretrained(folder)
        return write_packed(folder, tiny_config(num_layers=5))
    is_gpt_oss = request.param == "gpt_oss"
    target = tiny_gpt_oss(seed=3, num_layers=5) if is_gpt_oss else tiny_model(request.param, num_layers=5)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


def config_of(folder: Path, resident: int | None = None, **options) -> VerifierConfig:
    return VerifierConfig(
        model_name=str(folder), device="cuda", dtype="float32", resident_layers=resident, measure_costs=False, **options
    )


def logits(target: TargetModel, length: int, seed: int) -> torch.Tensor:
    ids = torch.randint(0, 250, (2, length), generator=torch.Generator().manual_seed(seed))
    with torch.inference_mode():
        return target.model(ids.cuda()).logits.cpu()


def test_logits_are_those_of_the_model_in_the_gpus_memory(checkpoint):
    whole = TargetModel.load(config_of(checkpoint))
    for resident in range(4):
        target = TargetModel.load(config_of(checkpoint, resident))
        assert target.offload is not None
        for number, length in enumerate((1, 40, 1, 2, 60, 60)):
            torch.testing.assert_close(logits(target, length, number), logits(whole, length, number))
        assert target.offload.num_bytes > 0
        while target.offload.reduce() is not None:
            torch.testing.assert_close(logits(target, 9, 0), logits(whole, 9, 0))
        target.close()


@pytest.mark.parametrize("host_budget", [1, 30_000])
def test_logits_are_the_same_where_memory_holds_a_part(checkpoint, host_budget):
    whole = TargetModel.load(config_of(checkpoint))
    target = TargetModel.load(config_of(checkpoint, 1, host_budget=host_budget))
    assert target.offload is not None
    assert target.offload.plan.host_bytes == host_budget
    for number, length in enumerate((1, 40, 1, 2, 60, 60)):
        torch.testing.assert_close(logits(target, length, number), logits(whole, length, number))
    target.close()


def test_texts_are_those_of_the_model_in_the_gpus_memory(checkpoint):
    settings = GenerationConfig(max_tokens=40)
    texts = []
    for resident in (None, 0):
        with SpeculativeDecoder(None, config_of(checkpoint, resident), DraftConfig(k=8)) as decoder:
            texts.append([each.token_ids for each in decoder.generate(["abcabcabc", "xyz"], settings)])
            assert (decoder.target.stall_s > 0.0) == (resident is not None)
    assert texts[0] == texts[1]
