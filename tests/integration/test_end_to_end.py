"""The main use case with real parts: text, graph, sidecar process, model."""

from __future__ import annotations

import itertools
import signal
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import speculant_graph
from speculant_graph import (
    ClientConfig,
    DraftConfig,
    GenerationConfig,
    GraphBuilder,
    RecordConfig,
    SpeculativeDecoder,
    VerifierConfig,
    read_records,
    replay_of,
)
from speculant_graph.client import LocalDrafter
from speculant_graph.client.placement import placed_at
from speculant_graph.draft.learning.learned_store import LearnedStore
from speculant_graph.errors import ConfigError, GenerationError, TokenizerMismatchError
from speculant_graph.strategies import NGRAM_STRATEGIES
from speculant_verifier.demo.corpus import standard_library_folder
from speculant_verifier.demo.run import MODEL_FOLDER
from speculant_verifier.model import TargetModel
from speculant_verifier.results import GenerationResult
from speculant_verifier.speculation.controller import DraftLengthController
from support.processes import start_sidecar
from support.tiny_models import byte_tokenizer

PROMPTS = ["    async def join(self):", "class Handler(logging.Handler):\n    def __init__(self, level=NOTSET):"]
NUM_TOKENS = 40
SETTINGS = GenerationConfig(max_tokens=NUM_TOKENS)


@pytest.fixture(scope="module")
def target() -> TargetModel:
    return TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), num_threads=1))


@pytest.fixture(scope="module")
def graph_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER), max_order=5)
    library = standard_library_folder()
    builder.build_from_files([library / "asyncio", library / "logging"])
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    builder.save(path)
    return path


@pytest.fixture(scope="module")
def plain(target: TargetModel) -> list[str]:
    return [result.text for result in SpeculativeDecoder(target=target).generate(PROMPTS, SETTINGS)]


@pytest.mark.parametrize("strategy", NGRAM_STRATEGIES)
def test_drafts_from_a_graph_change_only_the_number_of_steps(
    target: TargetModel, graph_file: Path, plain: list[str], strategy: str
) -> None:
    decoder = SpeculativeDecoder(graph_file, draft_config=DraftConfig(k=6, strategy=strategy), target=target)
    results = decoder.generate(PROMPTS, SETTINGS)
    assert [result.text for result in results] == plain
    assert sum(result.num_steps for result in results) < 2 * NUM_TOKENS
    assert [decoder.generate(prompt, SETTINGS).text for prompt in PROMPTS] == plain


@pytest.mark.parametrize("first_draft", [NUM_TOKENS - 4, 10 * NUM_TOKENS])
def test_text_of_steps_without_drafts_is_learned(
    target: TargetModel, plain: list[str], monkeypatch, first_draft: int
) -> None:
    steps = itertools.count()
    monkeypatch.setattr(
        DraftLengthController,
        "budgets",
        lambda self, histories, limits: limits if next(steps) == first_draft else [0] * len(limits),
    )
    learned = LearnedStore(10_000)
    drafter = LocalDrafter(None, DraftConfig(k=6), learned, vocabulary_size=target.vocabulary_size)
    with SpeculativeDecoder(target=target, drafter=drafter) as decoder:
        results = decoder.generate(PROMPTS, SETTINGS)
    assert [result.text for result in results] == plain
    assert first_draft < NUM_TOKENS or sum(result.num_drafts for result in results) == 0
    assert learned.num_tokens >= 2 * NUM_TOKENS


def test_a_result_names_its_record(target: TargetModel, graph_file: Path, tmp_path: Path) -> None:
    record = RecordConfig(folder=tmp_path, threshold=1)  # every request with a rejected draft
    with SpeculativeDecoder(graph_file, draft_config=DraftConfig(k=6), target=target, record=record) as decoder:
        results = decoder.generate(PROMPTS, SETTINGS)
    records = {each.request_id: each.output for each in [*read_records(tmp_path), *replay_of(tmp_path, None, 9)]}
    assert records == {each.request_id: each.token_ids for each in results}


def test_layers_in_the_verifiers_process(target: TargetModel, graph_file: Path, plain: list[str]) -> None:
    other = graph_file.with_name("other.pkl")
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER), max_order=3)
    builder.build_from_files([standard_library_folder() / "json"])
    builder.save(other)
    with SpeculativeDecoder([other, graph_file], draft_config=DraftConfig(k=6), target=target) as decoder:
        results = decoder.generate(PROMPTS, SETTINGS)
    assert [result.text for result in results] == plain
    assert sum(result.num_steps for result in results) < 2 * NUM_TOKENS
    with pytest.raises(ConfigError):
        SpeculativeDecoder([graph_file, graph_file], target=target)


@pytest.mark.slow
def test_sidecar_killed_and_restarted_in_the_middle_of_a_generation(
    target: TargetModel, graph_file: Path, tmp_path: Path
) -> None:
    """The text equals plain decoding, steps continue without drafts, and drafts return automatically."""
    settings = GenerationConfig(max_tokens=160, ignore_end_tokens=True)
    expected = SpeculativeDecoder(target=target).generate(PROMPTS[0], settings)
    sidecar = start_sidecar(graph_file, tmp_path / "drafter.sock")
    client_config = ClientConfig(address=sidecar.address, deadline_ms=2_000)
    with SpeculativeDecoder(target=target, client_config=client_config, draft_config=DraftConfig(k=2)) as decoder:
        pieces, accepted_before, accepted_after, killed_at, restarted = [], 0, 0, None, False
        for number, event in enumerate(decoder.stream(PROMPTS[0], settings)):
            pieces.append(event.text)
            if killed_at is None:
                accepted_before += event.num_accepted
                if accepted_before >= 4:
                    sidecar.kill()
                    killed_at = number
            elif not restarted and number >= killed_at + 10:
                sidecar = start_sidecar(graph_file, tmp_path / "drafter.sock")
                time.sleep(0.3)  # longer than any backoff
                restarted = True
            elif restarted:
                accepted_after += event.num_accepted
        result = event.result
    sidecar.stop()
    assert result is not None
    assert result.token_ids == expected.token_ids
    assert "".join(pieces) == expected.text
    assert killed_at is not None
    assert restarted
    assert result.num_steps_without_drafter >= 8
    assert accepted_after > 0, "drafts must come back"


@pytest.mark.slow
def test_engines_of_a_fleet_decode_on_while_sidecars_leave_and_join(
    target: TargetModel, graph_file: Path, tmp_path: Path
) -> None:
    """Each of three engines has its own first sidecar: one is killed, and one starts only later."""
    settings = GenerationConfig(max_tokens=40, ignore_end_tokens=True)
    expected = [result.token_ids for result in SpeculativeDecoder(target=target).generate(PROMPTS, settings)]
    sockets = [tmp_path / f"drafter-{index}.sock" for index in range(3)]
    addresses = [f"unix://{socket}" for socket in sockets]
    names = [f"tenant {index}" for index in range(100)]
    tenants = [next(name for name in names if placed_at(name, addresses) == address) for address in addresses]
    results: list[list[list[GenerationResult]]] = [[] for _ in tenants]
    is_over = threading.Event()

    def decode(tenant: str, own_target: TargetModel, rounds: list[list[GenerationResult]]) -> None:
        client = ClientConfig(address=",".join(addresses), tenant=tenant, deadline_ms=2_000)
        with SpeculativeDecoder(target=own_target, client_config=client, draft_config=DraftConfig(k=4)) as decoder:
            while not is_over.is_set():
                rounds.append(decoder.generate(PROMPTS, settings))

    def last_rounds(count: int) -> list[list[GenerationResult]]:
        """Wait for more rounds of every engine, and return the last one of each."""
        wanted = [len(rounds) + count for rounds in results]
        while any(len(rounds) < number for rounds, number in zip(results, wanted, strict=True)):
            assert not any(future.done() for future in futures), [future.exception(0) for future in futures]
            time.sleep(0.01)
        return [rounds[-1] for rounds in results]

    def assert_drafts(rounds: list[list[GenerationResult]]) -> None:
        for result in itertools.chain.from_iterable(rounds):
            assert result.num_steps_without_drafter == 0
            assert result.num_accepted > 0

    targets = [TargetModel.load(VerifierConfig(model_name=str(MODEL_FOLDER), num_threads=1)) for _ in tenants]
    sidecars = {index: start_sidecar(graph_file, sockets[index]) for index in (0, 1)}
    with ThreadPoolExecutor(len(tenants)) as threads:
        futures = [threads.submit(decode, *each) for each in zip(tenants, targets, results, strict=True)]
        try:
            assert_drafts(last_rounds(2))
            sidecars.pop(0).kill()
            last_rounds(1)  # a round in which the sidecar goes down may lack drafts
            assert_drafts(last_rounds(2))
            sidecars[2] = start_sidecar(graph_file, sockets[2])
            assert_drafts(last_rounds(2))
        finally:
            is_over.set()
            for sidecar in sidecars.values():
                sidecar.kill()
        assert all(future.exception() is None for future in futures)
    assert all([result.token_ids for result in each] == expected for rounds in results for each in rounds)


def test_stopped_sidecar_costs_a_few_deadlines_not_the_text(
    target: TargetModel, graph_file: Path, plain: list[str], tmp_path: Path
) -> None:
    sidecar = start_sidecar(graph_file, tmp_path / "drafter.sock")
    client_config = ClientConfig(address=sidecar.address, deadline_ms=50)
    with SpeculativeDecoder(target=target, client_config=client_config) as decoder:
        sidecar.signal(signal.SIGSTOP)
        result = decoder.generate(PROMPTS[0], SETTINGS)
        sidecar.signal(signal.SIGCONT)
    sidecar.stop()
    assert result.text == plain[0]
    assert result.num_steps_without_drafter == result.num_steps - 1, "the last step had no room for a draft"
    assert result.num_drafted == 0


def test_a_graph_of_another_tokenizer_is_refused(target: TargetModel, tmp_path: Path) -> None:
    byte_tokenizer().save_pretrained(tmp_path / "bytes")
    (tmp_path / "text.txt").write_text("some text for bytes", encoding="utf-8")
    builder = GraphBuilder(tokenizer_name=str(tmp_path / "bytes"))
    builder.build_from_files([tmp_path / "text.txt"])
    builder.save(tmp_path / "bytes.pkl")
    with pytest.raises(TokenizerMismatchError):
        SpeculativeDecoder(tmp_path / "bytes.pkl", target=target)
    sidecar = start_sidecar(tmp_path / "bytes.pkl", tmp_path / "drafter.sock")
    decoder = SpeculativeDecoder(target=target, client_config=ClientConfig(address=sidecar.address, deadline_ms=5_000))
    with pytest.raises(TokenizerMismatchError):
        decoder.generate(PROMPTS[0], SETTINGS)
    decoder.close()
    sidecar.stop()


@pytest.mark.parametrize(
    ("prompt", "fix"),
    [
        ([""], "give at least one token"),
        ([[1] * 5_000], "shorten it"),
        (["half \ud83d"], "give UTF-8"),
        ([[1.5]], "give one of them"),
        ([None], "give one of them"),
    ],
)
def test_bad_prompts_are_refused_by_name(target: TargetModel, prompt: list, fix: str) -> None:
    """In a list, only the bad prompt is refused."""
    decoder = SpeculativeDecoder(target=target)
    few = GenerationConfig(max_tokens=5)
    bad, good = decoder.generate([*prompt, [5, 6, 7]], few)
    assert bad.finish_reason == "error"
    assert (bad.error.kind, bad.error.field, bad.error.fix) == ("wrong_request", "prompt", fix)
    assert good.token_ids == decoder.generate([[5, 6, 7]], few)[0].token_ids
    with pytest.raises(GenerationError) as caught:
        decoder.generate("", SETTINGS)
    assert caught.value.field == "prompt"


def test_all_public_names_resolve() -> None:
    assert all(getattr(speculant_graph, name) for name in speculant_graph.__all__)
