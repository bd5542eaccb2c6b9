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

_TIMEOUT_S = 600.0


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


class LoadClient:
    """Clients of one server."""

    def __init__(self, url: str, key: str, num_streams: int) -> None:
        """Take its address, ending in /v1, the key that it wants, and how many requests it gets at the same time."""
        self._url, self._num_streams = url.rstrip("/"), num_streams
        self._options: dict[str, Any] = {
            "headers": {"authorization": f"Bearer {key}"} if key else {},
            "timeout": _TIMEOUT_S,
            "limits": httpx2.Limits(max_connections=num_streams, max_keepalive_connections=num_streams),
        }

    async def model(self) -> str:
        """Return the name of the model that is served.

        Raises:
            SpeculantError: there is no such server.
        """
        async with httpx2.AsyncClient(**self._options) as session:
            try:
                answer = await session.get(f"{self._url}/models")
                return str(answer.raise_for_status().json()["data"][0]["id"])
            except (httpx2.HTTPError, ValueError, LookupError) as error:
                raise SpeculantError(
                    f"there is no OpenAI-compatible server at {self._url} ({error or type(error).__name__}); "
                    "start one with 'speculant verifier', and end --url in /v1"
                ) from error

    async def play(
        self, prompts: Sequence[str], fields: Mapping[str, Any], tell: Callable[[int, int], None]
    ) -> list[Reading]:
        """Ask for all prompts; failures are noted, not raised.

        Args:
            prompts: one for each request; the n-th has the seed n.
            fields: of every request.
            tell: told how many are done, and of how many.
        """
        readings = [Reading(0.0) for _ in prompts]
        waiting = iter(enumerate(prompts))
        num_done = 0

        async def work(session: httpx2.AsyncClient) -> None:
            nonlocal num_done
            for index, prompt in waiting:
                await self._read(session, {**fields, "prompt": prompt, "seed": index}, readings[index])
                num_done += 1
                tell(num_done, len(prompts))

        async with httpx2.AsyncClient(**self._options) as session, asyncio.TaskGroup() as group:
            for _ in range(self._num_streams):
                group.create_task(work(session))
        return readings

    async def _read(self, session: httpx2.AsyncClient, body: Mapping[str, Any], reading: Reading) -> None:
        reading.started_s = time.perf_counter()
        body = {**body, "stream": True, "stream_options": {"include_usage": True}}
        is_whole = False
        try:
            async with session.stream("POST", f"{self._url}/completions", json=body) as answer:
                if answer.status_code != httpx2.codes.OK:
                    reading.failure = f"status {answer.status_code}: {(await answer.aread()).decode()[:200]}"
                    return
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
