"""The V2 adapter as vLLM calls it: the choice of the runner, and drafts for batches. vLLM is stubbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.engines import vllm_v2
from speculant_graph.engines.engine_sessions import GRAPHS, TENANT
from speculant_graph.engines.vllm_v2 import PROPOSER, Speculator
from speculant_graph.errors import ConfigError, GraphFileError, TokenizerMismatchError
from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.types import Fingerprint
from speculant_verifier.demo.run import MODEL_FOLDER

_TEXT = [*range(10, 40)] * 20
_MOST, _MAX_LENGTH, _SLOTS = 4, 96, 3


class _Group:
    """A tensor-parallel group that records the first rank's broadcasts."""

    def __init__(self, world_size: int = 1) -> None:
        self.world_size, self.sent = world_size, list[Any]()

    def broadcast(self, tensor: torch.Tensor, src: int) -> None:
        self.sent.append((tensor.tolist(), src))


@pytest.fixture(scope="module")
def graph_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    build_from_token_ids(_TEXT, CorpusTokenizer.load(MODEL_FOLDER).fingerprint).save(path)
    return path


@pytest.fixture
def vllm(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Stub the names of vLLM that the adapter uses."""

    class VllmConfig:
        """Selects V2 if V2 supports the speculative method."""

        def __init__(self, model: str | None, **more: Any) -> None:
            self.speculative_config, self.additional_config = None, {}
            if model is not None:
                self.speculative_config = SimpleNamespace(model=model, method="custom_class", num_speculative_tokens=4)
            self.__dict__ |= more
            self.__post_init__()

        def __post_init__(self) -> None:
            self.is_made = True

        @property
        def use_v2_model_runner(self) -> bool:
            method = getattr(self.speculative_config, "method", None)
            return method != "custom_class" and not getattr(self, "refuses", False)

    class GPUModelRunner:
        def __init__(self, speculator: Any) -> None:
            self.speculator, self.added = speculator, list[Any]()

        def add_requests(self, scheduler_output: Any) -> None:
            self.added.append(scheduler_output)

    state = SimpleNamespace(config=VllmConfig, group=_Group(), runner=GPUModelRunner, said=list[str]())
    modules: dict[str, dict[str, Any]] = {
        "vllm": {},
        "vllm.config": {"VllmConfig": VllmConfig},
        "vllm.logger": {
            "init_logger": lambda _: SimpleNamespace(info=lambda text, *more: state.said.append(text % more))
        },
        "vllm.distributed": {
            "get_tp_group": lambda: state.group,
            "get_tensor_model_parallel_rank": lambda: 0,
            "model_parallel_is_initialized": lambda: True,
        },
        "vllm.v1.worker.gpu.spec_decode": {"init_speculator": lambda vllm_config, device, req_states: "vLLM's own"},
        "vllm.v1.worker.gpu.spec_decode.speculator": {"BaseSpeculator": type("BaseSpeculator", (), {})},
        "vllm.v1.worker.gpu.model_runner": {"GPUModelRunner": GPUModelRunner, "init_speculator": None},
    }
    for name, contents in modules.items():
        module = ModuleType(name)
        module.__dict__.update(contents)
        monkeypatch.setitem(sys.modules, name, module)
    return state


def _settings(graph_path: Path | None, **speculative: Any) -> Any:
    return SimpleNamespace(
        model_config=SimpleNamespace(
            tokenizer=str(MODEL_FOLDER), max_model_len=_MAX_LENGTH, get_vocab_size=lambda: 4_096
        ),
        speculative_config=SimpleNamespace(model=PROPOSER, num_speculative_tokens=_MOST, **speculative),
        scheduler_config=SimpleNamespace(max_num_seqs=_SLOTS),
        additional_config={"speculant": {"graph_path": str(graph_path)} if graph_path else {}},
    )


class _Runner:
    """V2's tensors for a few requests, and the batches that V2 would make of them."""

    def __init__(self) -> None:
        self.tokens = torch.zeros((_SLOTS, _MAX_LENGTH), dtype=torch.int32)
        self.lengths = torch.zeros(_SLOTS, dtype=torch.int32)
        self.last = torch.zeros((_SLOTS, 1), dtype=torch.int64)
        self.states = SimpleNamespace(
            all_token_ids=SimpleNamespace(gpu=self.tokens),
            total_len=SimpleNamespace(gpu=self.lengths),
            req_id_to_index=dict[str, int](),
        )

    def start(self, name: str, slot: int, *prompt: int) -> None:
        self.states.req_id_to_index[name] = slot
        self.tokens[slot, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
        self.lengths[slot] = len(prompt)

    def end(self, name: str) -> None:
        del self.states.req_id_to_index[name]

    def propose(
        self, speculator: Any, added: dict[str, list[int]], reading: tuple[str, ...] = (), **more: Any
    ) -> list[list[int]]:
        """Ask for drafts after a pass that added tokens to requests; ``reading`` names the ones still in prefill."""
        slots = [self.states.req_id_to_index[name] for name in added]
        for slot, tokens in zip(slots, added.values(), strict=True):
            length = int(self.lengths[slot])
            self.tokens[slot, length : length + len(tokens)] = torch.tensor(tokens, dtype=torch.int32)
            self.lengths[slot] += len(tokens)
            if tokens:
                self.last[slot] = tokens[-1]
        batch = SimpleNamespace(
            num_reqs=len(added), req_ids=[*added], idx_mapping=torch.tensor(slots), idx_mapping_np=np.array(slots),
            is_prefilling_np=np.array([name in reading for name in added]),
        )  # fmt: skip
        counts = torch.tensor([len(tokens) for tokens in added.values()], dtype=torch.int32)
        answer: torch.Tensor = speculator.propose(batch, {}, {}, None, None, counts, None, self.last, None, **more)
        assert answer.dtype == torch.int64
        return answer.tolist()


@pytest.fixture
def runner() -> _Runner:
    return _Runner()


def test_a_configuration_that_names_us_is_run_by_v2_with_our_speculator(
    vllm: SimpleNamespace, graph_path: Path
) -> None:
    vllm_v2.register()
    vllm_v2.register()
    config = vllm.config(PROPOSER, **vars(_settings(graph_path)) | {"speculative_config": None})
    config = vllm.config(PROPOSER)
    assert config.is_made
    assert config.use_v2_model_runner
    assert "V2" in vllm.said[-1]
    package, module = (sys.modules[name] for name in (vllm_v2._SPECULATORS, vllm_v2._RUNNER))
    assert package.init_speculator is module.init_speculator
    speculator = package.init_speculator(_settings(graph_path), torch.device("cpu"), _Runner().states)
    assert isinstance(speculator, Speculator)
    other = SimpleNamespace(speculative_config=SimpleNamespace(model="ngram"))
    assert package.init_speculator(other, None, None) == "vLLM's own"
    speculator.sessions.close()


@pytest.mark.parametrize("model", [None, "ngram", "somebody.Else"])
def test_other_configurations_stay_as_they_are(vllm: SimpleNamespace, model: str | None) -> None:
    known = sys.modules[vllm_v2._SPECULATORS].init_speculator
    vllm_v2.register()
    config = vllm.config(model)
    assert config.is_made
    assert config.use_v2_model_runner is (model is None)
    assert model is None or config.speculative_config.method == "custom_class"
    assert sys.modules[vllm_v2._SPECULATORS].init_speculator is known
    assert not vllm.said


def test_v1_runs_where_v2_does_not(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_v2.register()
    refused = vllm.config(PROPOSER, refuses=True)
    package = sys.modules[vllm_v2._SPECULATORS]
    monkeypatch.setattr(package, "init_speculator", lambda vllm_config, device: None)
    changed = vllm.config(PROPOSER)
    monkeypatch.delattr(package, "init_speculator")
    moved = vllm.config(PROPOSER)
    for config in (refused, changed, moved):
        assert config.speculative_config.method == "custom_class"
        assert not config.use_v2_model_runner
    assert all("V1" in text for text in vllm.said)
    assert len(vllm.said) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"additional_config": {"speculant": {"grpah_path": "x"}}},
        {"additional_config": {"graph_path": "graph.pkl"}},
        {"additional_config": {"speculantt": {"graph_path": "graph.pkl"}}},
        {"speculative_config": SimpleNamespace(model=PROPOSER, method="custom_class", num_speculative_tokens=5_000)},
    ],
)
def test_wrong_settings_are_refused_before_any_worker_starts(vllm: SimpleNamespace, wrong: dict[str, Any]) -> None:
    vllm_v2.register()
    with pytest.raises(ConfigError):
        vllm.config(PROPOSER, **wrong)


def test_a_wrong_graph_is_refused_before_any_worker_starts(vllm: SimpleNamespace, tmp_path: Path) -> None:
    vllm_v2.register()
    missing, damaged, other = (tmp_path / name for name in ("missing.pkl", "damaged.pkl", "other.pkl"))
    build_from_token_ids(range(100), Fingerprint("other", "11" * 32, 4_096)).save(other)
    damaged.write_bytes(other.read_bytes()[: other.stat().st_size // 2])
    for path, error in (
        (missing, GraphFileError), (damaged, GraphFileError), (other, TokenizerMismatchError)
    ):  # fmt: skip
        with pytest.raises(error):
            vllm.config(PROPOSER, **vars(_settings(path)))


def test_the_reason_for_v1_is_in_the_line(vllm: SimpleNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    vllm_v2.register()
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    vllm.config(PROPOSER, refuses=True)
    assert "VLLM_USE_V2_MODEL_RUNNER" in vllm.said[-1]


def test_a_vllm_without_v2_is_left_alone(vllm: SimpleNamespace) -> None:
    del vllm.config.use_v2_model_runner
    known = vllm.config.__post_init__
    vllm_v2.register()
    assert vllm.config.__post_init__ is known


def test_the_entry_point_imports_nothing_of_ours_but_itself(tmp_path: Path) -> None:
    """vLLM has imported its own modules, numpy and torch before it loads a plug-in."""
    (tmp_path / "vllm").mkdir()
    (tmp_path / "vllm" / "__init__.py").touch()
    (tmp_path / "vllm" / "config.py").write_text("class VllmConfig:\n    def __post_init__(self): pass\n")
    program = (
        "import sys, numpy, torch\nbefore = set(sys.modules)\n"
        "from speculant_graph.engines.vllm_v2 import register\nregister()\n"
        "print(*sorted(set(sys.modules) - before))"
    )
    answer = subprocess.run(
        [sys.executable, "-c", program], env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True
    )
    assert {name for name in answer.stdout.split() if name.startswith("speculant_graph.engines")} == {
        "speculant_graph.engines", "speculant_graph.engines.vllm_v2"
    }  # fmt: skip
    assert "grpc" not in answer.stdout
    assert "pydantic" not in answer.stdout


def test_rows_that_decode_get_drafts(vllm: SimpleNamespace, graph_path: Path, runner: _Runner) -> None:
    speculator: Any = Speculator(_settings(graph_path), torch.device("cpu"), runner.states)
    runner.start("a", 2, *range(10, 20))
    runner.start("b", 0, *range(20, 30))
    assert runner.propose(speculator, {"a": [], "b": []}, dummy_run=True) == [[0] * _MOST] * 2
    assert runner.propose(speculator, {"a": [20], "b": []}, ("a", "b")) == [[21, 22, 23, 24], [0] * _MOST]
    # Two drafted tokens were accepted.
    assert runner.propose(speculator, {"b": [30], "a": [21, 22, 23]}, ("b",)) == [[31, 32, 33, 34], [24, 25, 26, 27]]
    assert speculator._texts["a"].tokens.tolist() == [*range(10, 24)]
    # "a" is preempted and returns with its output so far; "b" has ended.
    runner.end("b")
    runner.start("a", 1, *range(10, 24))
    assert runner.propose(speculator, {"a": [24]}, ("a",)) == [[25, 26, 27, 28]]
    assert [*speculator._texts] == ["a"]
    speculator.sessions.close()


def test_what_is_not_drafted_is_filled_with_a_token(vllm: SimpleNamespace, graph_path: Path, runner: _Runner) -> None:
    """The model embeds these positions in any case, and may accept the tokens."""
    speculator: Any = Speculator(_settings(graph_path), torch.device("cpu"), runner.states)
    runner.start("a", 0, *_TEXT[: _MAX_LENGTH - 4])
    last = _TEXT[_MAX_LENGTH - 4]
    drafted = runner.propose(speculator, {"a": [last]}, ("a",))[0]
    assert drafted == [*_TEXT[_MAX_LENGTH - 3 : _MAX_LENGTH - 1], last, last]
    runner.start("b", 1, 4_000)
    assert runner.propose(speculator, {"b": [4_001]}, ("b",), num_speculative_tokens=2)[0][2:] == [4_001, 4_001]
    assert runner.propose(speculator, {"b": [4_001, 4_001, 7]})[0]
    assert speculator._texts["b"].tokens.tolist()[:2] == [4_000, 4_001]
    assert len(speculator._texts["b"].tokens) == 5
    speculator.sessions.close()


def test_a_batch_that_vllm_wants_no_drafts_for_gets_none_and_is_followed(
    vllm: SimpleNamespace, graph_path: Path, runner: _Runner
) -> None:
    """vLLM's table of draft lengths by batch size may contain 0."""
    speculator: Any = Speculator(_settings(graph_path), torch.device("cpu"), runner.states)
    runner.start("a", 0, *range(10, 20))
    for token, reading in ((20, ("a",)), (21, ())):
        assert runner.propose(speculator, {"a": [token]}, reading, num_speculative_tokens=0) == [[token] * _MOST]
    assert not speculator.sessions.counts.offered_tokens
    assert runner.propose(speculator, {"a": [22]}) == [[23, 24, 25, 26]]
    speculator.sessions.close()


def test_what_goes_wrong_costs_drafts_and_one_warning(
    vllm: SimpleNamespace, graph_path: Path, runner: _Runner, capsys: pytest.CaptureFixture[str]
) -> None:
    speculator: Any = Speculator(_settings(graph_path), torch.device("cpu"), runner.states)
    runner.start("a", 0, *range(10, 20))
    texts, runner.states.all_token_ids = runner.states.all_token_ids, None
    for token in (20, 21):
        assert runner.propose(speculator, {"a": [token]}, ("a",)) == [[0] * _MOST]
    runner.states.all_token_ids = texts
    assert runner.propose(speculator, {"a": [22]}) == [[23, 24, 25, 26]]
    assert capsys.readouterr().err.count("WARNING") == 1
    speculator.sessions.close()


def test_ranks_verify_what_the_first_drafts(vllm: SimpleNamespace, graph_path: Path, runner: _Runner) -> None:
    vllm.group = _Group(2)
    speculator: Any = Speculator(_settings(graph_path), torch.device("cpu"), runner.states)
    runner.start("a", 0, *range(10, 20))
    drafts = runner.propose(speculator, {"a": [20]}, ("a",))
    speculator.sessions.close()
    speculator.sessions = None  # as on another rank
    runner.propose(speculator, {"a": [21]})
    assert vllm.group.sent == [(drafts, 0), (drafts, 0)]


def test_confidences_are_probabilities_given_the_token_before(
    vllm: SimpleNamespace, graph_path: Path, runner: _Runner
) -> None:
    config = _settings(graph_path, enable_adaptive_verification=True)
    speculator: Any = Speculator(config, torch.device("cpu"), runner.states)
    made: list[Any] = []
    known = speculator.sessions.draft
    speculator.sessions.draft = lambda *args, **more: made.append(known(*args, **more)) or made[-1]
    runner.start("a", 0, *range(10, 20))
    runner.start("b", 1, 4_000)
    runner.propose(speculator, {"b": [4_001], "a": [20]}, ("a", "b"))
    confidences = speculator.draft_token_confidence_probs[:2].double()
    lengths, paths = made[0].lengths, made[0].path_probabilities
    assert max(lengths) > 0
    start = 0
    for row, length in enumerate(lengths):
        products = confidences[row, :length].cumprod(0).tolist()
        assert products == pytest.approx(paths[start : start + length], rel=1e-5)
        start += length
        assert not confidences[row, length:].any()
    speculator.sessions.close()


def test_requests_name_their_tenants(vllm: SimpleNamespace, graph_path: Path, runner: _Runner) -> None:
    vllm_v2.register()
    assert vllm.config(PROPOSER).use_v2_model_runner
    speculator = sys.modules[vllm_v2._SPECULATORS].init_speculator(_settings(None), torch.device("cpu"), runner.states)
    model_runner = vllm.runner(speculator)
    asked: list[Any] = []
    known = speculator.sessions.draft
    speculator.sessions.draft = lambda *args, **more: (
        asked.append((more["tenants"], more["graphs"])) or known(*args, **more)
    )
    requests = [
        SimpleNamespace(req_id="a", sampling_params=SimpleNamespace(extra_args={TENANT: "acme", GRAPHS: "docs+house"})),
        SimpleNamespace(req_id="b", sampling_params=SimpleNamespace(extra_args=None)),
        SimpleNamespace(req_id="c", sampling_params=None),
    ]
    model_runner.add_requests(SimpleNamespace(scheduled_new_reqs=requests))
    assert len(model_runner.added) == 1
    for slot, name in enumerate("abc"):
        runner.start(name, slot, 5, 6, 7)
    runner.propose(speculator, {name: [8] for name in "abc"}, tuple("abc"))
    runner.end("a")
    runner.propose(speculator, {name: [9] for name in "bc"})
    runner.start("d", 0, 5)
    runner.propose(speculator, {"b": [9], "d": [8]}, ("d",))
    acme = ("acme", None, None), ("docs+house", None, None)
    assert asked == [acme, ((None, None), (None, None)), (None, None)]
    assert list(speculator._texts) == ["b", "c", "d"], "those that ended are forgotten when another begins"
    assert not speculator._wanted
    speculator.sessions.close()
