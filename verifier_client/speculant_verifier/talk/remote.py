"""Answers by a server with an OpenAI-compatible API: this project's verifier, or another. Needs no torch."""

from __future__ import annotations

import json
import time
from collections.abc import Generator, Iterator
from http.client import HTTPException, HTTPResponse
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError, GenerationError
from speculant_graph.rpc.urls import checked_url, open_url
from speculant_verifier.run_statistics import RunStatistics
from speculant_verifier.talk.partner import Messages, Piece

_PATIENCE_S = 300.0
"""With a server that says nothing; reading a long conversation takes its time."""
_LIST_PATIENCE_S = 20.0

_SAME_NAMES = (
    "max_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "min_tokens", "seed", "stop",
    "bad_words", "logit_bias",
)  # fmt: skip
_OWN_NAMES = {"ignore_end_tokens": "ignore_eos", "end_token_ids": "stop_token_ids"}
_SPECULANT_NAMES = ("rule", "speculation", "node_budget", "max_depth", "draft_temperature")


class RemotePartner:
    """Answers by a server."""

    def __init__(self, url: str, config: GenerationConfig, api_key: str, model: str) -> None:
        """Ask the server for its models.

        Args:
            url: where the API begins, such as ``http://127.0.0.1:8000/v1``.
            config: settings; those that nobody has set are left to the server.
            api_key: for servers that want one, else empty.
            model: name of the model; empty: the server's first one.

        Raises:
            ConfigError: the address is wrong, the key would travel readable for all, or a setting can't be sent.
            GenerationError: the server does not answer, or refuses.
        """
        self._url, self._key = checked_url(url, api_key), api_key
        self._fields = _fields(config)
        with self._open("models", None, _LIST_PATIENCE_S) as answer:
            try:
                models = [str(each["id"]) for each in json.load(answer)["data"]]
            except (ValueError, TypeError, LookupError) as error:
                raise GenerationError(f"{url} is no OpenAI-compatible API; give the address up to /v1") from error
        if model and model not in models:
            raise ConfigError(f"{url} does not serve '{model}'; it serves: {', '.join(models)}")
        if not models:
            raise GenerationError(f"{url} serves no model; start one there")
        self.name, self.adapters = model or models[0], None
        self._statistics, self._finish_reason = RunStatistics(), ""

    def answer(self, messages: Messages, attempt: int) -> Generator[Piece, None, None]:
        """Yield an answer as it comes; see :class:`~speculant_verifier.talk.partner.Partner`.

        Raises:
            GenerationError: the server does not answer, refuses, or breaks off.
        """
        self._statistics, self._finish_reason = RunStatistics(), ""
        fields = dict(self._fields)
        if "seed" in fields:
            fields["seed"] = (fields["seed"] + attempt) % (1 << 63)
        body = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            **fields,
        }
        started_s, first_s, num_pieces = time.perf_counter(), None, 0
        counts: dict[str, Any] = {}
        try:
            with self._open("chat/completions", body, _PATIENCE_S) as answer:
                for chunk in _events(answer):
                    if "error" in chunk:
                        raise GenerationError(f"the server broke off: {_message(chunk)}")
                    if chunk.get("usage"):
                        counts = chunk
                    for choice in chunk.get("choices") or ():
                        delta = choice.get("delta") or {}
                        piece = Piece(delta.get("reasoning_content") or "", delta.get("content") or "")
                        if piece.reasoning or piece.content:
                            num_pieces += 1
                            first_s = first_s or time.perf_counter() - started_s
                        self._finish_reason = choice.get("finish_reason") or self._finish_reason
                        yield piece
        finally:
            self._statistics = _statistics(counts, num_pieces, time.perf_counter() - started_s, first_s)
        if not self._finish_reason:
            raise GenerationError("the server broke off in the middle of the answer; try again")

    @property
    def finish_reason(self) -> str:
        """Why the latest answer ended; empty if it did not."""
        return self._finish_reason

    @property
    def statistics(self) -> RunStatistics:
        """How the latest answer came about; of one that was left only its times and the fewest tokens it can have."""
        return self._statistics

    def close(self) -> None:
        """Do nothing: every answer has a connection of its own."""

    def _open(self, path: str, body: object, patience_s: float) -> HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"{self._url}/{path}", data, {"Content-Type": "application/json"})
        if self._key:
            request.add_unredirected_header("Authorization", f"Bearer {self._key}")
        try:
            answer = open_url(request, patience_s)
        except HTTPError as error:
            with error:
                if error.code == 404 and path == "models":
                    parts = urlsplit(self._url)
                    raise GenerationError(
                        f"there is no OpenAI-compatible API at {self._url} (404: {error.reason}); "
                        f"give the address where it begins, such as {parts.scheme}://{parts.netloc}/v1"
                    ) from error
                raise GenerationError(_refusal(error)) from error
        except (URLError, HTTPException, OSError) as error:
            reason = getattr(error, "reason", None) or error
            raise GenerationError(
                f"{self._url} does not answer ({reason}); check the address and the server"
            ) from error
        return answer


def _fields(config: GenerationConfig) -> dict[str, Any]:
    """Return the settings that somebody has set, as the API calls them."""
    fields: dict[str, Any] = {}
    for name, value in config.model_dump(mode="json", include=config.model_fields_set).items():
        if name in _SAME_NAMES:
            fields[name] = value
        elif name in _OWN_NAMES:
            fields[_OWN_NAMES[name]] = value
        elif name in _SPECULANT_NAMES:
            fields.setdefault("speculant", {})[name] = value
        elif name not in ("n", "logprobs"):  # which mean nothing here
            raise ConfigError(f"--generation.{name.replace('_', '-')} can't be sent to a server; leave it out")
    return fields


def _events(answer: HTTPResponse) -> Iterator[dict[str, Any]]:
    """Yield the objects of a stream of server-sent events."""
    try:
        for line in answer:
            name, _, data = line.decode().rstrip("\r\n").partition(":")
            if name != "data" or data.strip() == "[DONE]":
                continue
            value = json.loads(data)
            if isinstance(value, dict):
                yield value
    except (HTTPException, OSError) as error:
        raise GenerationError(f"the connection broke ({error}); try again") from error
    except ValueError as error:
        raise GenerationError("the server sent what is no stream of events; check the address") from error


def _statistics(counts: dict[str, Any], num_pieces: int, elapsed_s: float, first_s: float | None) -> RunStatistics:
    """Return what a server counted; if it did not come to that, a token for each piece, which may have had more."""
    usage, own = counts.get("usage") or {}, counts.get("speculant") or {}
    return RunStatistics(
        tokens=usage.get("completion_tokens", num_pieces),
        has_more_tokens=num_pieces > 0 and "completion_tokens" not in usage,
        elapsed_s=elapsed_s,
        first_token_s=first_s,
        steps=own.get("steps", 0),
        steps_without_drafter=own.get("steps_without_drafter", 0),
        drafted=own.get("drafted", 0),
        accepted=own.get("accepted", 0),
        drafts=own.get("drafts", 0),
        from_target_cache=own.get("from_target_cache", 0),
    )


def _refusal(error: HTTPError) -> str:
    try:
        said = _message(json.load(error))
    except (ValueError, OSError, HTTPException):
        said = error.reason
    if error.code == 401:
        return f"the server wants a key ({said}); set SPECULANT_API_KEY"
    return f"the server refuses ({error.code}): {said}"


def _message(value: Any) -> str:
    error = value.get("error", value) if isinstance(value, dict) else value
    return str(error.get("message", error) if isinstance(error, dict) else error)
