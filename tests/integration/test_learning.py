"""Records, training, gate and swap, run as commands with tiny checkpoints."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import pytest

from speculant_graph.config import DraftConfig, DraftModelConfig, RecordConfig, TrainConfig, VerifierConfig
from speculant_verifier.cli.chat_training import ChatTraining
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapter_files import read_adapter
from speculant_verifier.draft_model.adapters import BASE
from speculant_verifier.records.database import read_records
from speculant_verifier.service.learning import Learning
from speculant_verifier.training.publishing import output_of, publish
from support.http_api import wait_until
from support.processes import fetched, running_verifier
from support.tiny_models import tiny_model
from support.training import fill_records, write_adapter

Running = Callable[[SpeculativeDecoder, DraftModelConfig, RecordConfig], AbstractContextManager[object]]

TEMPLATE = "{% for message in messages %}{{ message['content'] }}\n{% endfor %}"
DRAFTING = ("--strategy", "model", "--num-threads", "1", "--no-measure-costs")
FAST = ("--learning-rate=0.04", "--epochs=2")
FAILING = ("--record.threshold", "1", "--speculation", "on")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a target that is slow for its size, and a draft model with other random weights."""
    folder = tmp_path_factory.mktemp("models")
    for name, model in (("target", tiny_model("llama", num_layers=64)), ("draft", tiny_model("llama", seed=1))):
        model.model.save_pretrained(folder / name)
        model.tokenizer.save_pretrained(folder / name)
        (folder / name / "chat_template.jinja").write_text(TEMPLATE, encoding="utf-8")
    return folder


def named(models: Path) -> list[str]:
    return ["--model", str(models / "target"), "--draft-model", str(models / "draft")]


def ask(url: str, count: int) -> None:
    model = json.loads(fetched(f"{url}/models"))["data"][0]["id"]
    for _ in range(count):
        body = {"model": model, "prompt": "The parties agree", "max_tokens": 24, "temperature": 0}
        fetched(f"{url}/completions", body)


@pytest.mark.slow
def test_a_verifier_trains_by_itself(models: Path, tmp_path: Path) -> None:
    fill_records(tmp_path / "records", models / "draft")
    given = (*named(models)[2:], "--record", str(tmp_path / "records"), "--min-failures", "12", *FAST, *FAILING)
    adapter = tmp_path / "records" / "adapters" / "draft"
    with running_verifier(tmp_path, *given, *DRAFTING[:2], model=models / "target") as verifier:
        ask(verifier.url, 12)
        wait_until(lambda: "the draft model now has adapter" in verifier.log or "no new" in verifier.log)
        assert "trained the draft model: " in verifier.log
        digest = read_adapter(adapter).digest
        ask(verifier.url, 12)
        outcomes = ("the draft model now has adapter", "no new adapter")
        wait_until(lambda: sum(map(verifier.log.count, outcomes)) == 2)
        assert verifier.log.count("training the draft model") == 2
    last = [*read_records(tmp_path / "records")][-1]
    assert last.adapter == digest
    with running_verifier(tmp_path, *given, *DRAFTING[:2], name="again", model=models / "target") as verifier:
        wait_until(lambda: "the draft model now has adapter" in verifier.log)  # also after a restart


@pytest.mark.slow
def test_a_training_ends_with_its_verifier(models: Path, tmp_path: Path) -> None:
    given = (
        *named(models)[2:],
        "--record",
        str(tmp_path / "records"),
        "--min-failures",
        "3",
        "--epochs",
        "100000",
        *FAILING,
    )
    fill_records(tmp_path / "records", models / "draft")
    with running_verifier(tmp_path, *given, *DRAFTING[:2], model=models / "target") as verifier:
        ask(verifier.url, 3)
        wait_until(lambda: children(verifier.process.pid))
        [child] = children(verifier.process.pid)
        wait_until(lambda: os.getpriority(os.PRIO_PROCESS, child) == 19)
        time.sleep(2.0)
        assert verifier.stop() == 0, verifier.log
        assert not Path(f"/proc/{child}").exists()
    assert "Traceback" not in verifier.log


@contextmanager
def served(decoder: SpeculativeDecoder, draft_model: DraftModelConfig, record: RecordConfig) -> Iterator[None]:
    learning = Learning(decoder, draft_model, record, TrainConfig())
    yield
    learning.close()


@contextmanager
def chatting(decoder: SpeculativeDecoder, draft_model: DraftModelConfig, record: RecordConfig) -> Iterator[None]:
    ChatTraining(decoder, draft_model, record, TrainConfig(), "", print)
    yield


@pytest.mark.parametrize("running", [served, chatting])
def test_a_rolled_back_adapter_is_no_longer_published(models: Path, tmp_path: Path, running: Running) -> None:
    """Otherwise a restart would load it, and the next training would have to beat it."""
    draft_model, record = DraftModelConfig(name=str(models / "draft")), RecordConfig(folder=tmp_path / "records")
    config = VerifierConfig(model_name=str(models / "draft"), num_threads=1, measure_costs=False)
    name = output_of(tmp_path / "records", draft_model)
    name.parent.mkdir(parents=True)

    def published(seed: int) -> str:
        folder = write_adapter(tmp_path / str(seed), tiny_model("llama", seed=1).model, "draft", seed)
        return read_adapter(publish(folder, name)).digest

    with SpeculativeDecoder(
        verifier_config=config, draft_config=DraftConfig(strategy="model"), draft_model=draft_model, record=record
    ) as decoder:
        adapters = decoder.adapters
        assert adapters is not None
        first = published(0)
        with running(decoder, draft_model, record):
            wait_until(lambda: adapters.state.present.digest == first)
            second = published(1)
            assert adapters.load(str(name)).digest == second
            assert adapters.rollback().digest == read_adapter(name).digest == first
        with running(decoder, draft_model, record):
            adapters.load("")
            assert adapters.load(str(name)).digest == first, "the restored adapter is published"
            assert adapters.rollback() == BASE
            assert not os.path.lexists(name)
            third = published(2)
            assert adapters.load(str(name)).digest == third
            fourth = published(3)
            assert adapters.rollback() == BASE
            assert read_adapter(name).digest == fourth, "it was not rolled back"


def children(pid: int) -> list[int]:
    found = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(each) for path in found for each in path.read_text(encoding="utf-8").split()]
