"""``speculant train``, run as a command, with a tiny checkpoint."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

from speculant_graph.cli.main import main
from speculant_graph.config import RecordConfig
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_verifier.draft_model.adapter_files import WEIGHTS_FILE, read_adapter, with_adapter
from speculant_verifier.records.database import RecordWriter
from support.tiny_models import tiny_model
from support.training import recorded

FAST = ("--learning-rate", "0.04")
NUM_RECORDS = 1_000
"""Number of records. Three tenths are held out, two thirds of those as replay; each tenant has half."""


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "tiny"
    draft = tiny_model("llama", seed=1)
    draft.model.save_pretrained(folder)
    draft.tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory, checkpoint: Path) -> Path:
    """Failures and replay of two tenants, all with the same text, so training improves held-out requests."""
    folder = tmp_path_factory.mktemp("records")
    digest = CorpusTokenizer.load(str(checkpoint), None).fingerprint.sha256
    [written] = recorded(tiny_model("llama"), num_records=1)
    with RecordWriter(RecordConfig(folder=folder)) as writer:
        for index in range(NUM_RECORDS):
            each = replace(written, document=f"d{index}", prompt=(index % 256, *written.prompt), tokenizer=digest)
            writer.record(replace(each, tenant="ab"[index % 2], is_failure=index % 6 < 2))
    return folder


def command(*arguments: Any) -> list[str]:
    return [sys.executable, "-m", "speculant", "train", *map(str, arguments)]


@pytest.mark.slow
def test_an_adapter_is_trained_and_published_and_replaced_where_it_is_damaged(
    tmp_path: Path, checkpoint: Path, records: Path
) -> None:
    output = tmp_path / "adapter"
    given = ("--records", records, "--draft-model", checkpoint, "-o", output, *FAST)
    run = subprocess.run(
        command(*given, "--tenant", "a", "--epochs", 4, "--json"), capture_output=True, text=True, check=False
    )
    assert run.returncode == 0, run.stderr
    figures = json.loads(run.stdout.splitlines()[-1])
    info = read_adapter(output)
    assert figures["digest"] == info.digest
    assert figures["after"]["loss"] < figures["before"]["loss"]
    assert figures["num_steps"] > 10
    assert figures["gate"]["is_better"]
    assert figures["gate"]["failures"]["tokens_per_pass_after"] > figures["gate"]["failures"]["tokens_per_pass_before"]
    assert info.note["gate"] == figures["gate"]
    assert "best so far" in run.stderr
    assert info.base == str(checkpoint)
    assert info.tenants == {"a"}
    with_adapter(AutoModelForCausalLM.from_pretrained(checkpoint), str(checkpoint), output)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "adapter.d"]

    named = ("--draft-model.adapters", f"mine={output}", "--continue-from", "mine", "-o", tmp_path / "second")
    run = subprocess.run(
        command(*given, "--tenant", "a", *named, "--epochs", 4, "--json"), capture_output=True, text=True, check=False
    )
    continued = json.loads(run.stdout.splitlines()[-1])["gate"]["failures"]
    assert continued["tokens_per_pass_before"] == figures["gate"]["failures"]["tokens_per_pass_after"], run.stderr
    assert continued["num_requests"] == figures["gate"]["failures"]["num_requests"]

    weights = output.resolve() / WEIGHTS_FILE
    weights.write_bytes(weights.read_bytes()[:1000])
    repaired = subprocess.run(
        command(*given, "--tenant", "b", "--epochs", 4), capture_output=True, text=True, check=False
    )
    assert repaired.returncode == 0, repaired.stderr
    assert "the published adapter can't be used" in repaired.stderr
    assert "held out: loss" in repaired.stdout
    assert "\ngate, " in repaired.stdout
    with_adapter(AutoModelForCausalLM.from_pretrained(checkpoint), str(checkpoint), output)


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.slow
def test_a_signal_ends_a_training_and_keeps_the_best(
    tmp_path: Path, checkpoint: Path, records: Path, number: int, status: int
) -> None:
    given = ("--records", records, "--draft-model", checkpoint, "-o", tmp_path / "adapter", *FAST)
    run = command(*given, "--tenant", "b", "--epochs", 400)
    with subprocess.Popen(run, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        for line in process.stderr:
            if "best so far" in line:
                break
        process.send_signal(number)
        shown, _ = process.communicate()
    assert process.returncode == status
    assert "sha256 " + read_adapter(tmp_path / "adapter").digest in shown
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "adapter.d"]


@pytest.mark.faults
def test_a_killed_training_leaves_the_adapter_that_serves(tmp_path: Path, checkpoint: Path, records: Path) -> None:
    output = tmp_path / "adapter"
    given = ("--records", records, "--draft-model", checkpoint, "-o", output, *FAST, "--tenant", "a")
    assert main(["train", *map(str, given), "--epochs", "6"]) == 0
    digest = read_adapter(output).digest
    for wait_s in (2.0, 5.0, 8.0):  # during loading and during training
        with subprocess.Popen(command(*given, "--epochs", 100_000), stderr=subprocess.DEVNULL) as process:
            time.sleep(wait_s)
            assert process.poll() is None
            process.kill()
        with_adapter(AutoModelForCausalLM.from_pretrained(checkpoint), str(checkpoint), output)
        assert read_adapter(output).digest == digest
    assert main(["train", *map(str, given), "--epochs", "60"]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["adapter", "adapter.d"]  # leftovers are removed


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "the records belong to 2 tenants; name one with --tenant"),
        (("--tenant", "a", "--draft-model", ""), "name one with --draft-model"),
        (("--tenant", "a", "--draft-model", "./missing"), "set draft_model.name"),
        (("--tenant", "a", "-o", "."), "was not published by"),
    ],
)
def test_what_can_not_be_is_refused_in_one_line(
    tmp_path: Path, checkpoint: Path, records: Path, arguments: tuple[str, ...], message: str, capsys, monkeypatch
) -> None:
    monkeypatch.chdir(tmp_path)
    given = ("train", "--records", str(records), "--draft-model", str(checkpoint), "-o", "adapter")
    assert main([*given, *arguments]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1
    assert not list(tmp_path.iterdir())
