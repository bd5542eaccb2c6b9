"""Verifiers under load while their drafters die, drain and come back: no request fails and no text changes."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from openai import AsyncOpenAI

from speculant_graph.cli.main import main
from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.sidecar import Sidecar, launch, wait_until_ready
from support.verifier import Verifier, running_verifier, scraped

pytestmark = [pytest.mark.faults, pytest.mark.slow]

NUM_STREAMS = 50
NUM_TOKENS = 40
PATIENCE_S = 240.0
WORDS = ["def", "class", "import", "return", "for", "with", "while", "raise", "async", "try"]
PROMPTS = [f"{WORDS[number % len(WORDS)]} item_{number}" for number in range(NUM_STREAMS)]
LIBRARY = ["textwrap.py", "argparse.py", "json"]
CLIENT = ("--client.deadline-ms", "200", "--client.probe-interval-ms", "50")


@pytest.fixture(scope="module")
def graph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(contextlib.__file__).parent
    path = tmp_path_factory.mktemp("graph") / "graph.pkl"
    sources = [str(folder / name) for name in LIBRARY]
    assert main(["build", *sources, "--tokenizer", str(MODEL_FOLDER), "-o", str(path)]) == 0
    return path


@pytest.fixture(scope="module")
def expected() -> list[str]:
    """What the model writes without any drafts."""
    config = VerifierConfig(model_name=str(MODEL_FOLDER), max_batch_size=NUM_STREAMS, num_threads=1)
    configs = [
        GenerationConfig(max_tokens=NUM_TOKENS, temperature=0.9, seed=number, ignore_end_tokens=True)
        for number in range(NUM_STREAMS)
    ]
    with SpeculativeDecoder(verifier_config=config, draft_config=DraftConfig(k=0)) as decoder:
        return [result.text for result in decoder.generate(list(PROMPTS), configs)]


@dataclass
class Load:
    """What fifty clients see that ask again and again until they are told to stop."""

    num_answers: int = 0
    num_without_drafter: int = 0
    """Steps that went without the drafter."""
    wrong: list[str] = field(default_factory=list)
    """What was not as it should be."""
    is_over: bool = False


async def ask(client: AsyncOpenAI, number: int, expected: str, load: Load) -> None:
    while not load.is_over:
        pieces, statistics = [], None
        try:
            stream = await client.completions.create(
                model="model", prompt=PROMPTS[number], max_tokens=NUM_TOKENS, temperature=0.9, seed=number, stream=True,
                extra_body={"ignore_eos": True},
            )  # fmt: skip
            async for chunk in stream:
                pieces += [choice.text for choice in chunk.choices]
                statistics = getattr(chunk, "speculant", None) or statistics
        except Exception as error:
            load.wrong.append(f"stream {number}: {error!r}")
            return
        if "".join(pieces) != expected:
            load.wrong.append(f"stream {number} wrote {''.join(pieces)!r}, not {expected!r}")
        load.num_answers += 1
        assert statistics is not None
        load.num_without_drafter += statistics["steps_without_drafter"]


@contextlib.asynccontextmanager
async def under_load(verifiers: list[Verifier], expected: list[str]) -> AsyncIterator[Load]:
    """Fifty streams at a time, spread over the verifiers, until the block ends; each client reads its last answer."""
    load = Load()
    async with contextlib.AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(
                AsyncOpenAI(base_url=verifier.url, api_key="none", max_retries=0, timeout=PATIENCE_S)
            )
            for verifier in verifiers
        ]
        tasks = [
            asyncio.create_task(ask(clients[number % len(clients)], number, expected[number], load))
            for number in range(NUM_STREAMS)
        ]
        try:
            yield load
        finally:
            load.is_over = True
            await asyncio.gather(*tasks)


async def until(holds: Callable[[], bool]) -> None:
    give_up_s = time.monotonic() + PATIENCE_S
    while not await asyncio.to_thread(holds):
        assert time.monotonic() < give_up_s
        await asyncio.sleep(0.02)


def is_drafting(verifier: Verifier) -> bool:
    return verifier.metrics['speculant_verifier_drafter_state{state="ok"}'] == 1


@dataclass
class Replica:
    """One of the drafters: where it is, and the process that is there now."""

    graph: Path
    log: Path
    port: int
    metrics_port: int
    sidecar: Sidecar = field(init=False)

    def launch(self) -> None:
        self.sidecar = launch(
            self.graph, self.log, listen=f"127.0.0.1:{self.port}", metrics_listen=f"127.0.0.1:{self.metrics_port}",
            grace_s=2.0,
        )  # fmt: skip

    @property
    def num_sequences(self) -> float:
        """Drafts that this process was asked for."""
        return scraped(f"http://127.0.0.1:{self.metrics_port}/metrics")["speculant_drafter_sequences_total"]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


@pytest.fixture
def replicas(graph: Path, tmp_path: Path) -> Iterator[list[Replica]]:
    ports = free_ports(6)
    started = [Replica(graph, tmp_path / f"drafter-{each}.log", ports[each], ports[each + 3]) for each in range(3)]
    for replica in started:
        replica.launch()
    try:
        for replica in started:
            wait_until_ready(replica.sidecar)
        yield started
    finally:
        for replica in started:
            if replica.sidecar.process.poll() is None:
                replica.sidecar.kill()


def test_verifiers_share_drafters_that_die_and_drain(
    replicas: list[Replica], expected: list[str], tmp_path: Path
) -> None:
    addresses = ",".join(replica.sidecar.address for replica in replicas)
    arguments = ("--address", addresses, "--strategy", "tree", "--max-batch-size", "16", *CLIENT)
    first, second, third = replicas

    async def play(verifiers: list[Verifier]) -> Load:
        async with under_load(verifiers, expected) as load:
            await until(lambda: all(replica.num_sequences > 50 for replica in replicas))  # sessions are spread
            assert load.num_without_drafter == 0
            first.sidecar.signal(signal.SIGKILL)
            second.sidecar.signal(signal.SIGTERM)
            assert await asyncio.to_thread(second.sidecar.wait) == 0
            await asyncio.to_thread(first.sidecar.wait)
            asked = third.num_sequences
            await until(lambda: third.num_sequences > asked + 500)  # alone for all of them
            assert all(is_drafting(verifier) for verifier in verifiers)
            for replica in (first, second):
                replica.launch()
                await asyncio.to_thread(wait_until_ready, replica.sidecar)
            await until(lambda: all(replica.num_sequences > 50 for replica in (first, second)))  # and back again
            answered = load.num_answers
            await until(lambda: load.num_answers >= answered + NUM_STREAMS)
        return load

    with (
        running_verifier(tmp_path, *arguments, name="verifier-0") as one,
        running_verifier(tmp_path, *arguments, name="verifier-1") as other,
    ):
        load = asyncio.run(play([one, other]))
        for verifier in (one, other):
            assert verifier.metrics["speculant_verifier_tokens_total"] > 0
            assert verifier.metrics.get('speculant_verifier_sequences_total{reason="error"}', 0) == 0
            assert verifier.metrics["speculant_verifier_drafter_failovers_total"] > 0
    assert load.wrong == []
