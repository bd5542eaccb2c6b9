"""Models in bfloat16 or float16 on a CPU with and without instructions for them: same results, up to rounding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from speculant_graph.config import VerifierConfig
from speculant_verifier import half_precision
from speculant_verifier.model import TargetModel
from speculant_verifier.offload import packed_experts
from support.packed_checkpoint import tiny_config, write_packed
from support.tiny_models import byte_tokenizer, tiny_gpt_oss, tiny_model

HALVES = (torch.bfloat16, torch.float16)
FAMILIES = ("llama", "qwen3_moe", "gpt_oss", "packed")


@pytest.fixture(scope="module", params=FAMILIES)
def checkpoint(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "packed":
        write_packed(folder, tiny_config())
        byte_tokenizer().save_pretrained(folder)
        return folder
    target = tiny_gpt_oss(seed=3, num_layers=4) if request.param == "gpt_oss" else tiny_model(request.param)
    target.model.save_pretrained(folder)
    target.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def lacking(monkeypatch):
    """Return a function that pretends that this CPU has, or lacks, instructions for half precision."""

    def pretend(lacks: bool) -> None:
        for module in (half_precision, packed_experts):
            monkeypatch.setattr(module, "lacks_instructions", lambda dtype: lacks and dtype in HALVES)

    return pretend


def logits(folder, length: int, resident: int | None = None, dtype: str = "bfloat16") -> torch.Tensor:
    config = VerifierConfig(model_name=str(folder), num_threads=1, resident_layers=resident, dtype=dtype)
    target = TargetModel.load(config)
    ids = torch.randint(0, 250, (2, length), generator=torch.Generator().manual_seed(length)).tolist()
    found = target.forward(ids, target.new_cache(2), [0, 1], num_before=length - 1).float()
    target.close()
    return found


@settings(max_examples=80, deadline=None)
@given(
    sizes=st.tuples(st.integers(0, 9), st.integers(0, 40), st.integers(1, 40)),
    dtype=st.sampled_from(HALVES),
    space=st.sampled_from([1, 700, 1 << 21]),
    is_by_column=st.booleans(),
    has_bias=st.booleans(),
    seed=st.integers(0, 1_000),
)
def test_a_product_is_that_of_float64_rounded(sizes, dtype, space, is_by_column, has_bias, seed):
    num_rows, inner, width = sizes
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(num_rows, inner, generator=generator).to(dtype)
    weights = torch.randn(inner, width, generator=generator).to(dtype)
    bias = torch.randn(width, generator=generator).to(dtype) if has_bias else None
    if is_by_column:
        weights = weights.T.contiguous().T
    expected = inputs.double() @ weights.double() + (0.0 if bias is None else bias.double())
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(half_precision, "_SPACE_BYTES", space)
        found = half_precision.product(inputs, weights, bias)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), expected, rtol=torch.finfo(dtype).eps, atol=1e-4)


@settings(max_examples=40, deadline=None)
@given(counts=st.lists(st.integers(0, 5), min_size=1, max_size=6), is_by_column=st.booleans())
def test_every_group_of_rows_is_multiplied_by_its_own_matrix(counts, is_by_column):
    generator = torch.Generator().manual_seed(sum(counts))
    inputs = torch.randn(sum(counts), 16, generator=generator).bfloat16()
    weights = torch.randn(len(counts), 16, 24, generator=generator).bfloat16()
    if is_by_column:
        weights = weights.transpose(1, 2).contiguous().transpose(1, 2)
    offsets = torch.tensor(counts).cumsum(0, dtype=torch.int32)
    expected = torch.cat([part @ each for part, each in zip(inputs.split(counts), weights, strict=True)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(half_precision, "lacks_instructions", lambda dtype: dtype in HALVES)
        with half_precision.Float32Products():
            found = torch.nn.functional.grouped_mm(inputs, weights, offs=offsets)
    torch.testing.assert_close(found, expected, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_logits_are_those_of_float32_up_to_rounding(checkpoint, lacking, dtype):
    """The error is hardly larger than torch's. Its median counts, because rounding may change the chosen expert."""
    for length in (1, 3, 40):
        expected = logits(checkpoint, length, dtype="float32")
        errors = []
        for lacks in (False, True):
            lacking(lacks)
            relative = (logits(checkpoint, length, dtype=dtype) - expected).norm(dim=-1) / expected.norm(dim=-1)
            errors.append(float(relative.median()))
        assert errors[1] <= 1.5 * errors[0] + 1e-3


@pytest.mark.parametrize("lacks", [False, True])
def test_a_streamed_model_has_the_logits_of_one_in_memory(checkpoint, lacking, lacks):
    lacking(lacks)
    for length in (1, 3, 40):
        whole = logits(checkpoint, length)
        error, size = (logits(checkpoint, length, resident=1) - whole).norm(), whole.norm()
        assert error <= (0.0 if "packed" not in checkpoint.name else 2e-2) * size


class _Products(TorchDispatchMode):
    """Collects the data types of all products of more than two rows, other than attention's."""

    def __init__(self) -> None:
        super().__init__()
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func.overloadpacket.__name__ in {"linear", "mm", "addmm", "addmm_", "_grouped_mm"}:
            inputs = args[1] if "addmm" in func.overloadpacket.__name__ else args[0]
            if inputs.numel() > 2 * inputs.shape[-1]:
                self.dtypes.add(inputs.dtype)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("lacks", [False, True])
def test_no_wide_product_is_left_in_half_precision(checkpoint, lacking, lacks):
    lacking(lacks)
    with _Products() as products:
        logits(checkpoint, 40)
    assert (torch.bfloat16 in products.dtypes) is not lacks
