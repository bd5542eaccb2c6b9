"""Both clients behind one face, for sections of ``speculant bench faults`` that do the same with each."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import numpy as np

from speculant_graph.client import AsyncDrafterClient, DrafterClient
from speculant_graph.config import ClientConfig, DraftConfig
from speculant_graph.errors import SpeculantError
from speculant_graph.types import Draft, DrafterStatistics, SequenceStep

ClientName = Literal["blocking", "asyncio"]
"""Which of the two clients."""
CLIENTS: tuple[ClientName, ...] = ("blocking", "asyncio")
"""Both of them."""
DRAFT = DraftConfig(strategy="greedy")
"""What is asked for everywhere: drafts that depend on the graph and the text alone, so that they can be compared."""
BUDGET = 10
"""Tokens of a draft."""

_GIVE_UP_S = 60.0
_Tokens = list[tuple[int, ...]]
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class DrivenClient:
    """A client and how it is called."""

    name: ClientName
    """Which one."""
    draft: Callable[[Sequence[SequenceStep]], Awaitable[list[Draft]]]
    """Make a step."""
    pause: Callable[[float], Awaitable[None]]
    """Wait for so many seconds, as for a pass of the model."""
    client: DrafterClient | AsyncDrafterClient
    """The client itself."""

    @property
    def statistics(self) -> DrafterStatistics:
        """What it counts."""
        return self.client.statistics

    async def timed(self, steps: Sequence[SequenceStep]) -> tuple[list[Draft], float]:
        """Make a step; return its drafts and how many seconds it took."""
        started_s = time.perf_counter()
        drafts = await self.draft(steps)
        return drafts, time.perf_counter() - started_s

    async def drafted(self, steps: Sequence[SequenceStep], pause_s: float = 0.001) -> _Tokens:
        """Make a step again and again until every sequence has a draft; return the tokens.

        Raises:
            SpeculantError: there are none after a long time.
        """
        give_up_s = time.monotonic() + _GIVE_UP_S
        while time.monotonic() < give_up_s:
            drafts = await self.draft(steps)
            if all(drafts):
                return tokens_of(drafts)
            await self.pause(pause_s)
        raise SpeculantError(
            f"no drafts came: {self.statistics.last_failure}; run it again on a machine that is less busy"
        )


@asynccontextmanager
async def driven_client(name: ClientName, address: str, **settings: object) -> AsyncIterator[DrivenClient]:
    """Connect a client to a drafter.

    Args:
        name: which one.
        address: the drafter's.
        settings: more fields of ClientConfig.
    """
    config = ClientConfig.model_validate({"address": address, **settings})
    if name == "asyncio":
        async with AsyncDrafterClient(config, tokenizer=None, draft=DRAFT) as client:
            yield DrivenClient(name, client.draft, asyncio.sleep, client)
        return
    with DrafterClient(config, tokenizer=None, draft=DRAFT) as blocking:

        async def draft(steps: Sequence[SequenceStep]) -> list[Draft]:
            return blocking.draft(steps)

        async def pause(seconds: float) -> None:
            time.sleep(seconds)

        yield DrivenClient(name, draft, pause, blocking)


def steps_of(texts: Sequence[Sequence[int]], num_tokens: int, first_id: int = 1) -> list[SequenceStep]:
    """Return a step for the beginnings of texts."""
    return [SequenceStep(first_id + place, text[:num_tokens], BUDGET) for place, text in enumerate(texts)]


def tokens_of(drafts: Sequence[Draft]) -> _Tokens:
    """Return what was drafted."""
    return [draft.token_ids for draft in drafts]


def quantiles(seconds: Sequence[float], unit: float) -> dict[str, float]:
    """Return median, 99th percentile and maximum of times, as multiples of a unit in seconds."""
    times = np.array(seconds) / unit
    return {
        "p50": round(float(np.percentile(times, 50)), 2),
        "p99": round(float(np.percentile(times, 99)), 2),
        "max": round(float(times.max()), 2),
    }


def run_in_loop(coroutine: Coroutine[Any, Any, _T]) -> _T:
    """Run a coroutine in an event loop of the kind that a service would use."""
    try:
        import uvloop
    except ModuleNotFoundError:
        return asyncio.run(coroutine)
    return uvloop.run(coroutine)
