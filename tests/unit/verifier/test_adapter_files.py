"""Adapters of a draft model: checks before any change, merged and separate use, and publishing."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file

from speculant_graph.errors import ConfigError
from speculant_verifier.draft_model.adapter_files import quiet_peft, read_adapter, with_adapter
from speculant_verifier.model import TargetModel
from speculant_verifier.training.publishing import publish
from support import training
from support.tiny_models import tiny_gpt_oss, tiny_model

FAMILIES = ("llama", "qwen3_moe", "gpt_oss")


def base(family: str = "llama") -> Any:
    return (tiny_gpt_oss() if family == "gpt_oss" else tiny_model(family)).model


def write_adapter(folder: Path, family: str = "llama", seed: int = 0, model: Any = None, name: str = "tiny") -> Path:
    return training.write_adapter(folder, model or base(family), name, seed)


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(3, 40)[None]).logits


@pytest.mark.parametrize("family", FAMILIES)
def test_merged_does_what_peft_does(tmp_path: Path, family: str) -> None:
    folder = write_adapter(tmp_path, family)
    plain = logits(base(family))
    with quiet_peft():
        separate = PeftModel.from_pretrained(base(family), str(folder), autocast_adapter_dtype=False)
    merged, _ = with_adapter(base(family), "tiny", folder)
    assert type(merged) is type(base(family))
    assert not any("lora" in name for name, _ in merged.named_parameters())
    expected = logits(separate)
    torch.testing.assert_close(logits(merged), expected, rtol=1e-3, atol=1e-3)
    assert float((logits(merged) - plain).abs().max()) > 0.05
    # The result can decode: a pass over a slot cache gives the same logits as a plain call.
    target = TargetModel(merged, None, "tiny")
    found = target.forward([list(range(3, 40))], target.new_cache(1), [0])[0, -1]
    torch.testing.assert_close(found, expected[0, -1], rtol=1e-3, atol=1e-3)


def _spoil_config(key: str, value: Any) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        content = json.loads((folder / "adapter_config.json").read_text())
        (folder / "adapter_config.json").write_text(json.dumps(content | {key: value}))

    return spoil


def _spoil_weights(change: Callable[[dict[str, torch.Tensor], str], Any]) -> Callable[[Path], None]:
    def spoil(folder: Path) -> None:
        tensors = load_file(folder / "adapter_model.safetensors")
        change(tensors, sorted(tensors)[0])
        save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")

    return spoil


def _truncate(folder: Path) -> None:
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (_spoil_config("base_model_name_or_path", "models/another"), "is for the model 'models/another'"),
        (_spoil_config("use_qalora", True), "sets use_qalora"),
        (_spoil_config("target_modules", ["no_such"]), "can't be added"),
        (_spoil_weights(lambda tensors, name: tensors.pop(name)), "do not fit the layers"),
        (_spoil_weights(lambda tensors, name: tensors[name].view(-1)[3:4].fill_(float("inf"))), "can't be added"),
        (_truncate, "can't be added"),
        (shutil.rmtree, "holds no adapter"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_before_anything_changes(tmp_path: Path, spoil: Any, message: str) -> None:
    folder, model = write_adapter(tmp_path), base()
    with_adapter(model, "elsewhere/tiny", folder)
    spoil(folder)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    # Promised behaviour: each error of an adapter has its own message.
    with pytest.raises(ConfigError, match=message) as caught:
        with_adapter(model, "elsewhere/tiny", folder)
    assert "\n" not in str(caught.value)
    assert model.state_dict().keys() == before.keys()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_a_name_is_a_link_to_the_newest_version(tmp_path: Path) -> None:
    target = tmp_path / "legal"
    digests = []
    for seed in range(3):
        folder = write_adapter(tmp_path / "work", seed=seed)
        digests.append(read_adapter(folder).digest)
        publish(folder, target)
        assert read_adapter(target).digest == digests[-1]
        assert not folder.exists()
    assert len(set(digests)) == 3
    assert sorted(path.name for path in (tmp_path / "legal.d").iterdir()) == ["2", "3"]
    moved = tmp_path / "moved"
    moved.mkdir()
    target.rename(moved / "legal")
    (tmp_path / "legal.d").rename(moved / "legal.d")
    assert read_adapter(moved / "legal").digest == digests[2]
    publish(write_adapter(tmp_path / "work", seed=7), moved / "legal")
    assert sorted(path.name for path in (moved / "legal.d").iterdir()) == ["3", "4"]
    assert (moved / "legal.d").stat().st_mode & 0o077 == 0, "weights tell what they were trained on"


_PUBLISHER = """
import shutil, sys, time
from pathlib import Path
from speculant_verifier.training.publishing import publish
work, target = Path(sys.argv[1]), Path(sys.argv[2])
for i in range(1_000_000):
    folder = work / f"copy-{i}"
    shutil.copytree(work / "ab"[i % 2], folder)
    publish(folder, target)
    print(i, flush=True)
    time.sleep(0.02)  # a version is kept until the second one after it
"""


@pytest.mark.faults
def test_a_killed_publisher_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    work, target, chosen = tmp_path / "work", tmp_path / "legal", Random(0)
    work.mkdir()
    known = {}
    for seed, name in enumerate("ab"):
        shutil.move(write_adapter(tmp_path / "made", seed=seed), work / name)
        known[read_adapter(work / name).digest] = name
    model, seen = base(), set()
    for _ in range(12):
        for path in work.glob("copy-*"):
            shutil.rmtree(path)
        command = [sys.executable, "-c", _PUBLISHER, str(work), str(target)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            end = time.monotonic() + chosen.random() * 0.15
            while time.monotonic() < end:  # read while the adapter is replaced
                published = target.readlink()
                try:
                    seen.add(known[read_adapter(target).digest])
                except ConfigError:  # two more were published while the reader waited for a core
                    assert target.readlink() != published
            process.kill()
        assert known[with_adapter(model, "tiny", target)[1].digest]
        assert len([path for path in (tmp_path / "legal.d").iterdir() if path.name.isdecimal()]) <= 4
    assert seen == {"a", "b"}
