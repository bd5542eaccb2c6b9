"""Answers by a server with an OpenAI-compatible API: this project's verifier, or another. Needs no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.rpc.urls import checked_url, open_url
from speculant_verifier.chat.backend import Delta, Messages
from speculant_verifier.run_statistics import RunStatistics

_TIMEOUT_S = 300.0
"""With a silent server; reading a long conversation takes its time."""
_SAME_NAMES = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "seed", "stop",
    "bad_words", "logit_bias",
)  # fmt: skip
_NAMES = dict.fromkeys(_SAME_NAMES, "") | {"ignore_end_tokens": "ignore_eos", "end_token_ids": "stop_token_ids"}
_SPECULANT_NAMES = ("rule", "speculation", "node_budget", "max_depth", "draft_temperature")
_COUNTS = ("steps", "steps_without_drafter", "drafted", "accepted", "from_target_cache")


class RemoteBackend:
    """Answers by a server."""

    def __init__(self, url: str, config: GenerationConfig, api_key: str, model: str) -> None:
        """Ask the server for its models.

        Args:
            url: where the API begins, such as ``http://127.0.0.1:8000/v1``.
            config: settings; those that are not set are left to the server.
            api_key: for servers that need one, else empty.
            model: name of the model; empty: the server's first one.

        Raises:
            ConfigError: the address is wrong, the key would travel readable for all, or a setting can't be sent.
            GenerationError: the server does not answer, or refuses.
        """
        self._url, self._key = checked_url(url, api_key), api_key
        self._fields = _fields(config)
        with self._reading("models") as answer:
            models = [str(each["id"]) for each in json.load(answer)["data"]]
        if not models or (model and model not in models):
            raise ConfigError(f"{url} serves: {', '.join(models) or 'nothing'}; name one of these by --model")
        self.name = model or models[0]
        self.finish_reason = ""
        self._statistics = RunStatistics()

    def answer(self, messages: Messages, attempt: int) -> Generator[Delta, None, None]:
        """Yield an answer as it comes; see :class:`~speculant_verifier.chat.backend.Backend`.

        Raises:
            GenerationError: the server does not answer, refuses, or breaks off.
        """
        self._statistics, self.finish_reason = RunStatistics(), ""
        body: dict[str, Any] = {"model": self.name, "messages": list(messages), "stream": True} | self._fields
        body["stream_options"] = {"include_usage": True}
        if "seed" in body:
            body["seed"] = (body["seed"] + attempt) % (1 << 63)
        started_s, first_s, num_tokens = time.perf_counter(), None, 0
        own: dict[str, Any] = {}
        try:
            with self._reading("chat/completions", body) as answer:
                for chunk in _events(answer):
                    if "error" in chunk:
                        raise GenerationError(f"the server broke off: {_message(chunk)}")
                    if chunk.get("usage"):
                        own, num_tokens = chunk.get("speculant") or {}, chunk["usage"]["completion_tokens"]
                    for choice in chunk.get("choices") or ():
                        fields = choice.get("delta") or {}
                        delta = Delta(fields.get("content") or "", fields.get("reasoning_content") or "")
                        if delta.reasoning or delta.content:
                            num_tokens += 1  # at least; the last chunk has the count
                            first_s = first_s or time.perf_counter() - started_s
                        self.finish_reason = choice.get("finish_reason") or self.finish_reason
                        yield delta
        finally:
            counts = {name: own.get(name, 0) for name in _COUNTS}
            elapsed_s = time.perf_counter() - started_s
            self._statistics = RunStatistics(tokens=num_tokens, elapsed_s=elapsed_s, first_token_s=first_s, **counts)
        if not self.finish_reason:
            raise GenerationError("the server broke off in the middle of the answer; try again")

    @property
    def statistics(self) -> RunStatistics:
        """How the latest answer came about; of one that was left its times, and a token for each piece that came."""
        return self._statistics

    def close(self) -> None:
        """Do nothing: every answer has a connection of its own."""

    @contextmanager
    def _reading(self, path: str, body: object = None) -> Iterator[HTTPResponse]:
        """Open an endpoint; errors while its answer is read have the same texts."""
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data, {"Content-Type": "application/json"})
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            with open_url(request, _TIMEOUT_S) as answer:
                yield answer
        except HTTPError as error:
            raise GenerationError(_refusal(error, self._url)) from error
        except (HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise GenerationError(
                f"{self._url} does not answer ({reason}); check the address and the server"
            ) from error
        except (ValueError, TypeError, LookupError) as error:
            raise GenerationError(f"{self._url} is no OpenAI-compatible API; give the address up to /v1") from error


def _fields(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that are set, as the API calls them."""
    fields: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json", include=config.model_fields_set).items():
        if name in _NAMES:
            fields[_NAMES[name] or name] = value
        elif name in _SPECULANT_NAMES:
            fields.setdefault("speculant", {})[name] = value
        elif name not in ("n", "logprobs"):  # which mean nothing here
            raise ConfigError(f"--generation.{name.replace('_', '-')} can't be sent to a server; leave it out")
    return fields


def _events(answer: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    for line in answer:
        name, _, data = line.decode().rstrip("\r\n").partition(":")
        if name == "data" and data.strip() != "[DONE]" and isinstance(value := json.loads(data), dict):
            yield value


def _refusal(error: HTTPError, url: str) -> str:
    with error:
        try:
            reason = _message(json.load(error))
        except (ValueError, OSError, HTTPException):
            reason = error.reason
    if error.code == 401:
        return f"the server needs a key ({reason}); set SPECULANT_API_KEY"
    if error.code == 404:
        return f"there is no OpenAI-compatible API at {url} (404: {reason}); give the address up to /v1"
    return f"the server refuses ({error.code}): {reason}"


def _message(value: Any) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)
