"""Fifty streams at once from the demo's model: every one gets its own text, and none is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest
from openai import AsyncOpenAI

from speculant_graph.config import DraftConfig, GenerationConfig, VerifierConfig
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.demo.run import MODEL_FOLDER
from support.http_api import PATIENCE_S, Api, serving

NUM_STREAMS = 50
NUM_TOKENS = 48
MOST_UNFAIR = 3.0
WORDS = ["def", "class", "import", "return", "for", "with", "while", "raise", "async", "try"]
PROMPTS = [f"{WORDS[number % len(WORDS)]} item_{number}" for number in range(NUM_STREAMS)]


@dataclass
class Reading:
    text: str
    num_tokens: int
    seconds: float


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    config = VerifierConfig(
        model_name=str(MODEL_FOLDER), max_batch_size=NUM_STREAMS, num_threads=1, measure_costs=False
    )
    with (
        SpeculativeDecoder(verifier_config=config, draft_config=DraftConfig(strategy="adaptive", k=4)) as decoder,
        serving(decoder) as running,
    ):
        yield running


async def read(client: AsyncOpenAI, number: int) -> Reading:
    started_s = time.perf_counter()
    stream = await client.completions.create(
        model="model",
        prompt=PROMPTS[number],
        max_tokens=NUM_TOKENS,
        temperature=0.9,
        seed=number,
        stream=True,
        stream_options={"include_usage": True},
        extra_body={"ignore_eos": True},
    )
    pieces, num_tokens = [], 0
    async for chunk in stream:
        pieces += [choice.text for choice in chunk.choices]
        num_tokens = chunk.usage.completion_tokens if chunk.usage else num_tokens
    return Reading("".join(pieces), num_tokens, time.perf_counter() - started_s)


async def read_all(url: str) -> list[Reading]:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=PATIENCE_S * 4) as client:
        return list(await asyncio.gather(*(read(client, number) for number in range(NUM_STREAMS))))


@pytest.mark.slow
def test_fifty_streams(api: Api, capsys: pytest.CaptureFixture[str]) -> None:
    configs = [
        GenerationConfig(max_tokens=NUM_TOKENS, temperature=0.9, seed=number, ignore_end_tokens=True)
        for number in range(NUM_STREAMS)
    ]
    readings = asyncio.run(read_all(api.url))
    expected = api.decoder.generate(list(PROMPTS), configs)
    assert [reading.text for reading in readings] == [result.text for result in expected]
    assert {reading.num_tokens for reading in readings} == {NUM_TOKENS}
    rates = sorted(reading.num_tokens / reading.seconds for reading in readings)
    with capsys.disabled():
        print(  # noqa: T201
            f"\n{NUM_STREAMS} streams: {rates[0]:.1f} to {rates[-1]:.1f} tokens/s each, "
            f"fastest by slowest {rates[-1] / rates[0]:.2f}"
        )
    assert rates[-1] / rates[0] <= MOST_UNFAIR
    assert api.decoder.num_sequences == 0
