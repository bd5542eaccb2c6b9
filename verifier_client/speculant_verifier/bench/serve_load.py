"""Many streams at a time against a server's API over HTTP, and what their clients saw."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx2

from speculant_graph.errors import SpeculantError

_PATIENCE_S = 600.0


@dataclass(slots=True)
class Reading:
    """One answer."""

    started_s: float
    first_s: float = 0.0
    """When the first text came."""
    ended_s: float = 0.0
    text: str = ""
    num_tokens: int = 0
    statistics: Mapping[str, Any] = field(default_factory=dict)
    """The server's own, of the last event."""
    failure: str = ""
    """Why there is no whole answer; empty if there is one."""

    @property
    def tokens_per_s(self) -> float:
        """Tokens a second, from the request on."""
        return self.num_tokens / max(self.ended_s - self.started_s, 1e-9)


@dataclass(frozen=True, slots=True)
class LoadPlan:
    """What is asked for, in every round."""

    prompts: Sequence[str]
    """Used in turn."""
    num_requests: int
    num_streams: int
    """Requests at the same time."""
    options: Mapping[str, Any]
    """Fields of every request."""

    def body(self, number: int, model: str, extra: Mapping[str, Any]) -> dict[str, Any]:
        """Return a request; its number is its seed."""
        return {
            "model": model, "prompt": self.prompts[number % len(self.prompts)], "seed": number, "stream": True,
            "stream_options": {"include_usage": True}, **self.options, **extra,
        }  # fmt: skip


class LoadClient:
    """Clients of one server."""

    def __init__(self, url: str, key: str) -> None:
        """Take its address, ending in /v1, and the key that it wants."""
        self._url, self._headers = url.rstrip("/"), {"authorization": f"Bearer {key}"} if key else {}

    async def model(self) -> str:
        """Return the name of the model that is served.

        Raises:
            SpeculantError: there is no such server.
        """
        async with self._session() as session:
            try:
                answer = await session.get(f"{self._url}/models")
                return str(answer.raise_for_status().json()["data"][0]["id"])
            except (httpx2.HTTPError, ValueError, LookupError) as error:
                raise SpeculantError(
                    f"there is no OpenAI-compatible server at {self._url} ({error or type(error).__name__}); "
                    "start one with 'speculant verifier', and end --url in /v1"
                ) from error

    async def play(
        self, plan: LoadPlan, model: str, extra: Mapping[str, Any], tell: Callable[[int, int], None]
    ) -> list[Reading]:
        """Ask for everything, so many at a time; failures are noted, not raised.

        Args:
            plan: what is asked for.
            model: the model's name.
            extra: more fields of every request.
            tell: told how many are done, and of how many.
        """
        readings: list[Reading | None] = [None] * plan.num_requests
        numbers = iter(range(plan.num_requests))
        num_done = 0

        async def work(session: httpx2.AsyncClient) -> None:
            nonlocal num_done
            for number in numbers:
                readings[number] = await self._read(session, plan.body(number, model, extra))
                num_done += 1
                tell(num_done, plan.num_requests)

        async with self._session(plan.num_streams) as session, asyncio.TaskGroup() as group:
            for _ in range(plan.num_streams):
                group.create_task(work(session))
        return [reading for reading in readings if reading is not None]

    async def _read(self, session: httpx2.AsyncClient, body: Mapping[str, Any]) -> Reading:
        reading = Reading(time.perf_counter())
        is_whole = False
        try:
            async with session.stream("POST", f"{self._url}/completions", json=body) as answer:
                if answer.status_code != httpx2.codes.OK:
                    reading.failure = f"status {answer.status_code}: {(await answer.aread()).decode()[:200]}"
                    return reading
                async for line in answer.aiter_lines():
                    if line == "data: [DONE]":
                        is_whole = True
                    elif line.startswith("data: "):
                        _take(reading, json.loads(line.removeprefix("data: ")))
        except (httpx2.HTTPError, ValueError) as error:
            reading.failure = str(error) or type(error).__name__
        reading.ended_s = time.perf_counter()
        if not is_whole and not reading.failure:
            reading.failure = "the stream broke off"
        return reading

    def _session(self, num_streams: int = 1) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=num_streams, max_keepalive_connections=num_streams)
        return httpx2.AsyncClient(headers=self._headers, timeout=_PATIENCE_S, limits=limits)


def _take(reading: Reading, event: Mapping[str, Any]) -> None:
    if "error" in event:
        reading.failure = str(event["error"].get("message", "an error"))
        return
    for choice in event["choices"]:
        if choice["text"] and not reading.text:
            reading.first_s = time.perf_counter()
        reading.text += choice["text"]
    if usage := event.get("usage"):
        reading.num_tokens = usage["completion_tokens"]
    reading.statistics = event.get("speculant") or reading.statistics
