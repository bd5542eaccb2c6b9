"""An engine with one way of drafting, in a process of its own: a worker that is sent orders, or a llama-server."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from speculant_graph.bench.processes import free_ports
from speculant_graph.errors import SpeculantError

_START_S = 300.0
_REQUEST_S = 300.0
_STOP_S = 10.0
_LAST_LINES = 5


@dataclass(frozen=True, slots=True)
class Decoded:
    """What became of some prompts."""

    ids: tuple[tuple[int, ...], ...]
    """New tokens of each."""
    seconds: float
    """Time for all of them."""
    passes: int
    """Passes that each of them took part in, together."""


class Contender(Protocol):
    """An engine that is running."""

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Decoded:
        """Continue prompts, greedily."""

    def draft_times(self) -> list[float]:
        """Return how long each batch of drafts took, seconds, where that is known."""

    def close(self) -> None:
        """End it."""


class WorkerContender:
    """An engine behind one of the workers beside this file."""

    def __init__(self, python: Path, worker: str, order: dict[str, Any], log: Path) -> None:
        """Start it.

        Args:
            python: interpreter of the engine's installation.
            worker: name of the worker's module.
            order: what is to be started.
            log: where its messages go.

        Raises:
            SpeculantError: it does not start.
        """
        self._log = log
        with log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [str(python.absolute()), "-m", f"speculant_verifier.bench.engines.{worker}"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=messages,
                text=True,
                cwd=log.parent,  # the settings of whoever starts the bench are not theirs
                start_new_session=True,
                env={**os.environ},
            )
        self._ask(order)

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Decoded:
        """See :class:`Contender`."""
        answer = self._ask({"prompts": [list(map(int, prompt)) for prompt in prompts], "max_tokens": max_tokens})
        return Decoded(tuple(map(tuple, answer["ids"])), answer["seconds"], answer["passes"])

    def draft_times(self) -> list[float]:
        """See :class:`Contender`."""
        return [float(seconds) for seconds in self._ask({"times": True})["times"]]

    def close(self) -> None:
        """See :class:`Contender`."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_STOP_S)  # it has orders no more, and ends in its own way
        _end(self._process)

    def _ask(self, order: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            line = ""
        else:
            line = self._process.stdout.readline()
        if not line:
            _end(self._process)
            raise SpeculantError(f"it ended: {_last_lines(self._log)}")
        return json.loads(line)


@dataclass
class LlamaServer:
    """llama-server, unmodified."""

    binary: Path
    model: Path
    max_length: int
    arguments: Sequence[str]
    """More of its own flags."""
    log: Path
    _address: str = field(init=False)
    _process: subprocess.Popen[str] = field(init=False)

    def __post_init__(self) -> None:
        """Start it.

        Raises:
            SpeculantError: it does not start.
        """
        [port] = free_ports(1)
        self._address = f"http://127.0.0.1:{port}"
        with self.log.open("w", encoding="utf-8") as messages:
            self._process = subprocess.Popen(
                [str(self.binary.absolute()), "-m", str(self.model), "--host", "127.0.0.1", "--port", str(port),
                 "-c", str(self.max_length), "-np", "1", "--no-webui", "--swa-full",
                 # With flash attention passes over several tokens round otherwise than those over one: ties flip.
                 "--cache-ram", "0", "-fa", "off", *self.arguments],
                stdout=messages,
                stderr=messages,
                text=True,
                start_new_session=True,
            )  # fmt: skip
        deadline_s = time.monotonic() + _START_S
        while not self._is_ready():
            if self._process.poll() is not None or time.monotonic() > deadline_s:
                _end(self._process)
                raise SpeculantError(f"llama-server ended: {_last_lines(self.log)}")
            time.sleep(0.1)

    def decode(self, prompts: Sequence[Sequence[int]], max_tokens: int) -> Decoded:
        """See :class:`Contender`."""
        answers = [self._complete(prompt, max_tokens) for prompt in prompts]
        return Decoded(
            tuple(tuple(answer["tokens"]) for answer in answers),
            sum(answer["timings"]["prompt_ms"] + answer["timings"]["predicted_ms"] for answer in answers) / 1e3,
            sum(len(answer["tokens"]) - answer["timings"].get("draft_n_accepted", 0) for answer in answers),
        )

    def draft_times(self) -> list[float]:
        """See :class:`Contender`; it does not tell."""
        return []

    def close(self) -> None:
        """See :class:`Contender`."""
        _end(self._process)

    def _is_ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._address}/health", timeout=1.0):
                return True
        except (OSError, urllib.error.URLError):
            return False

    def _complete(self, prompt: Sequence[int], max_tokens: int) -> Any:
        body = {
            "prompt": list(map(int, prompt)), "n_predict": max_tokens, "temperature": 0, "top_k": 1,
            "samplers": ["top_k"], "return_tokens": True, "cache_prompt": False,
        }  # fmt: skip
        request = urllib.request.Request(
            f"{self._address}/completion", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=_REQUEST_S) as answer:
            return json.load(answer)


def _end(process: subprocess.Popen[str]) -> None:
    process.terminate()
    try:
        process.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


def _last_lines(log: Path) -> str:
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    return " / ".join(lines[-_LAST_LINES:]) or "it said nothing"
