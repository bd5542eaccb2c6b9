"""Three tiers: device, host memory and disk. The CPU stands in for the device, and no memory is pinned."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from speculant_graph.config import VerifierConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_verifier.model import TargetModel, loading
from speculant_verifier.offload import offload as offload_module
from speculant_verifier.offload import placement, plan_for
from speculant_verifier.offload.host_memory import HostMemory
from speculant_verifier.offload.weight_files import StoredTensor, WeightReader
from support.packed_checkpoint import tiny_config, write_packed
from support.tiny_models import byte_tokenizer, tiny_gpt_oss, tiny_model

UNIT = 96
"""Bytes per unit in tests without a model."""


class Copies:
    """Stands in for pinned memory and its copy stream."""

    stall_s = 0.0

    def __init__(self, most: int | None = None) -> None:
        self.num_bytes = self.given = 0
        self._most = most

    def space(self, shape, dtype) -> torch.Tensor:
        tensor = torch.empty(tuple(shape), dtype=dtype)
        self.given += tensor.nbytes
        if self._most is not None and self.given > self._most:
            raise ConfigError("no more")
        return tensor

    def read(self, pairs) -> list[torch.Tensor]:
        for source, tensor in pairs:
            tensor.copy_(source)
            self.num_bytes += tensor.nbytes
        return [tensor for _, tensor in pairs]

    def wait(self, started) -> None:
        assert all(isinstance(each, torch.Tensor) for each in started)

    def drain(self) -> None:
        """Do nothing: no copy is pending."""

    close = drain


def units_of(path: Path, count: int) -> tuple[list[list[StoredTensor]], torch.Tensor]:
    """Write consecutive units of two tensors each; return their places in the file and their values."""
    numbers = torch.arange(count * UNIT, dtype=torch.int64).remainder(251).to(torch.uint8).view(count, UNIT)
    path.write_bytes(numbers.numpy().tobytes())
    places = [
        [
            StoredTensor(str(path), UNIT * unit, torch.uint8, (64,)),
            StoredTensor(str(path), UNIT * unit + 64, torch.uint8, (UNIT - 64,)),
        ]
        for unit in range(count)
    ]
    return places, numbers


def fetched(memory: HostMemory, wanted: list[list[StoredTensor]]) -> list[torch.Tensor]:
    """Start fetching all units, then wait for them."""
    into = [torch.zeros(UNIT, dtype=torch.uint8) for _ in wanted]
    started = [
        memory.read([(unit[0], tensor[:64]), (unit[1], tensor[64:])]) for unit, tensor in zip(wanted, into, strict=True)
    ]
    for each in started:
        memory.wait(each)
    return into


@settings(max_examples=60, deadline=None)
@given(
    room=st.integers(0, 5 * UNIT),
    passes=st.lists(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=8), max_size=12),
)
def test_weights_are_those_of_the_file_whatever_lies_where(tmp_path_factory, room, passes):
    """Compare with the file; a unit may be requested several times at once, and some reads are never awaited."""
    places, numbers = units_of(tmp_path_factory.mktemp("host") / "weights", 6)
    copies = Copies()
    memory = HostMemory(room, WeightReader(), copies)
    for units in passes:
        found = fetched(memory, [places[unit] for unit, _ in units])
        assert all(torch.equal(each, numbers[unit]) for each, (unit, _) in zip(found, units, strict=True))
        if any(is_torn for _, is_torn in units):
            into = torch.zeros(UNIT, dtype=torch.uint8)
            memory.read([(places[0][0], into[:64]), (places[0][1], into[64:])])
            memory.drain()
    assert sum(each.nbytes for unit in memory._units.values() for each in unit.buffers) <= room
    memory.close()


def test_what_is_used_most_stays(tmp_path):
    places, _ = units_of(tmp_path / "weights", 8)
    memory = HostMemory(3 * UNIT, WeightReader(), Copies())
    for _ in range(5):
        fetched(memory, places)  # in order, like layers
    assert memory.num_bytes == UNIT * (8 + 4 * 5), "those that came first stay"
    generator = random.Random(0)
    for _ in range(20):
        fetched(memory, [places[unit] for unit in (5, 6, 7)])
        fetched(memory, [places[generator.randrange(8)]])
    before = memory.num_bytes
    fetched(memory, [places[unit] for unit in (5, 6, 7)])
    assert memory.num_bytes == before, "then those that are used now"
    assert memory.num_copied > 0
    memory.close()


def test_memory_that_is_not_given_is_done_without(tmp_path):
    places, numbers = units_of(tmp_path / "weights", 4)
    memory = HostMemory(4 * UNIT, WeightReader(), Copies(most=2 * UNIT))
    for _ in range(3):
        assert torch.equal(torch.stack(fetched(memory, places)), numbers)
    assert len(memory._units) == 2
    memory.close()


def test_a_unit_that_can_not_be_read_is_read_again(tmp_path):
    path = tmp_path / "weights"
    places, numbers = units_of(path, 2)
    content = path.read_bytes()
    memory = HostMemory(2 * UNIT, WeightReader(), Copies())
    path.write_bytes(content[:UNIT])
    with pytest.raises(GenerationError):
        fetched(memory, places)
    memory.drain()
    path.write_bytes(content)
    assert torch.equal(torch.stack(fetched(memory, places)), numbers)
    memory.close()


@pytest.fixture(params=["llama", "gpt_oss", "packed"])
def checkpoint(request, tmp_path) -> Path:
    if request.param == "packed":
        byte_tokenizer().save_pretrained(tmp_path)
        return write_packed(tmp_path, tiny_config())
    target = tiny_model("llama", num_layers=5) if request.param == "llama" else tiny_gpt_oss(seed=3, num_layers=4)
    target.model.save_pretrained(tmp_path)
    target.tokenizer.save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_logits_are_those_of_a_model_without_tiers(checkpoint, share, monkeypatch):
    config = VerifierConfig(model_name=str(checkpoint), num_threads=1, resident_layers=1)
    plain = TargetModel.load(config)
    plan_of = loading._plan

    def with_tiers(*arguments):
        plan = plan_of(*arguments)
        return replace(plan, host_bytes=int(share * plan.num_units * plan.unit_bytes))

    monkeypatch.setattr(loading, "_plan", with_tiers)
    monkeypatch.setattr(offload_module, "copier_of", lambda _: Copies())
    tiered = TargetModel.load(config)
    source = tiered.offload._source
    assert isinstance(source, HostMemory)
    read = []
    with torch.inference_mode():
        for seed in range(6):
            ids = torch.randint(0, 250, (2, 30 if seed % 2 else 1), generator=torch.Generator().manual_seed(seed))
            assert torch.equal(tiered.model(ids).logits, plain.model(ids).logits)
            read.append(source.num_bytes)
    assert (source.num_copied > 0) == (share > 0)
    if share == 1.0:
        assert read[-1] == read[-2], "all of it has been read"
    plain.close()
    tiered.close()


def test_budgets_of_every_tier(monkeypatch):
    """Host memory holds the weights that do not fit on the GPU, up to the budget or the free memory."""
    config = tiny_model("llama", num_layers=9).model.config
    gpu = torch.device("cuda")
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda _: 0)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (10**9, 10**9))
    monkeypatch.setattr(placement, "anonymous_bytes", lambda: 0)

    def planned(free: int = 10**9, **settings):
        monkeypatch.setattr(placement, "available_bytes", lambda: free)
        return plan_for(config, torch.float32, VerifierConfig(resident_layers=0, **settings), gpu)

    assert planned().host_bytes is None
    streamed = planned(host_budget=1).pass_bytes
    assert planned(free=streamed).host_bytes == int(0.9 * streamed), "a share of the free memory is always left"
    assert planned(free=2 * streamed).host_bytes is None
    assert planned(free=100_000).host_bytes == 90_000
    assert planned(free=100_000, memory_fraction=0.5).host_bytes == 50_000
    assert planned(host_budget=50_000).host_bytes == 50_000


def test_a_budget_beside_a_gpu_is_refused_without_one():
    with pytest.raises(ConfigError) as caught:
        plan_for(tiny_model("llama").model.config, torch.float32, VerifierConfig(host_budget=10**9))
    assert caught.value.field == "verifier.host_budget"
