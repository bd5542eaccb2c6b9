"""Defines every error that a user can see, as a tree of classes, and the servers' response to each kind.

.. code-block:: text

    SpeculantError
    ├── ConfigError            a setting is wrong, missing or contradicts another
    ├── CorpusError            text can't be read, or there is none
    ├── GraphError
    │   ├── GraphFileError     not a graph file, damaged, or of a version this release can't read
    │   └── TokenizerMismatchError   graph and model do not share a tokenizer
    ├── DraftRequestError      a draft request breaks a rule of the wire
    │   ├── UnknownGraphError       it names a graph that is not served
    │   ├── DraftLimitError         it is over a limit of the drafter
    │   └── UnservedRequestError    the drafter does not serve its strategy or option
    ├── UnavailableError       a server can't answer now
    │   ├── OverloadError           it is overloaded
    │   ├── ShutdownError           it is shutting down
    │   └── DrafterUnavailableError the sidecar does not answer
    ├── ApiError               a request over HTTP is refused; its kind says why
    ├── AccessError            a server does not permit the client's request
    │   └── UnauthenticatedError    it does not know the client
    └── GenerationError        a prompt can't be continued; nothing was generated
        ├── GenerationRequestError   the prompt or its settings are wrong
        └── GenerationMemoryError    there was no memory for it

An error has a kind, a message, a fix for the user, and the field that is wrong. The text of an error is one line that
ends with the fix. This module does not depend on gRPC, torch or the command line.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Self, TypeVar

from speculant_graph.file_names import displayed

_FIELD = "{field}"
_Error = TypeVar("_Error", bound="SpeculantError")


class Answer(NamedTuple):
    """The servers' response to one kind of error, over gRPC and in the HTTP APIs."""

    grpc: str
    """Name of the gRPC status code."""
    http: int
    """HTTP status code."""
    openai: str = "invalid_request_error"
    """Value of an error's ``type`` in OpenAI's APIs."""
    anthropic: str = "invalid_request_error"
    """Value of an error's ``type`` in Anthropic's API."""
    code: str | None = None
    """Value of an error's ``code`` in OpenAI's APIs."""


_UNAVAILABLE = Answer("UNAVAILABLE", 503, "server_error", "overloaded_error", "unavailable")
ANSWERS = {
    "internal": Answer("INTERNAL", 500, "server_error", "api_error", "internal_error"),
    "tokenizer_mismatch": Answer("FAILED_PRECONDITION", 500, "server_error", "api_error", "internal_error"),
    "wrong_request": Answer("INVALID_ARGUMENT", 400),
    "unsupported_parameter": Answer("INVALID_ARGUMENT", 400, code="unsupported_parameter"),
    "context_length_exceeded": Answer("INVALID_ARGUMENT", 400, code="context_length_exceeded"),
    "previous_response_not_found": Answer("INVALID_ARGUMENT", 400, code="previous_response_not_found"),
    "unserved": Answer("UNIMPLEMENTED", 400),
    "over_limit": Answer("RESOURCE_EXHAUSTED", 429),
    "unknown_graph": Answer("NOT_FOUND", 404, anthropic="not_found_error"),
    "model_not_found": Answer("NOT_FOUND", 404, anthropic="not_found_error", code="model_not_found"),
    "response_not_found": Answer("NOT_FOUND", 404, anthropic="not_found_error", code="response_not_found"),
    "no_such_path": Answer("NOT_FOUND", 404, anthropic="not_found_error"),
    "wrong_method": Answer("UNIMPLEMENTED", 405, anthropic="api_error"),
    "late_body": Answer("DEADLINE_EXCEEDED", 408, anthropic="api_error"),
    "large_body": Answer("RESOURCE_EXHAUSTED", 413, anthropic="request_too_large", code="request_too_large"),
    "wrong_media_type": Answer("INVALID_ARGUMENT", 415),
    "unauthenticated": Answer("UNAUTHENTICATED", 401, anthropic="authentication_error", code="invalid_api_key"),
    "no_access": Answer("PERMISSION_DENIED", 403, "permission_error", "permission_error"),
    "overload": Answer("RESOURCE_EXHAUSTED", 429, "rate_limit_error", "rate_limit_error", "queue_full"),
    "shutdown": _UNAVAILABLE,
    "unavailable": _UNAVAILABLE,
    "drafter_unavailable": _UNAVAILABLE,
    "out_of_memory": _UNAVAILABLE,
}
"""Maps each kind of error to the servers' response to it. Only the server's log has the details of an INTERNAL (500)
error."""


class SpeculantError(Exception):
    """Base class of all errors that this project raises on purpose."""

    kind = "internal"
    """Kind of the error, a key of :data:`ANSWERS`."""

    def __init__(self, message: str, *, fix: str = "", field: str = "") -> None:
        """Make an error; its text is ``message; fix``.

        Args:
            message: the problem; ``{field}`` stands for the field's name, here and in ``fix``.
            fix: the fix, if the message does not end with it.
            field: the wrong setting or request field, such as ``verifier.model_name``.
        """
        super().__init__(message)
        self._texts = displayed(message), displayed(fix)
        self.field = field

    @property
    def message(self) -> str:
        """The problem."""
        return self._texts[0].replace(_FIELD, self.field)

    @property
    def fix(self) -> str:
        """Advice that fixes the problem; empty if the message already ends with it."""
        return self._texts[1].replace(_FIELD, self.field)

    def __str__(self) -> str:
        """Return the error as one line."""
        return f"{self.message}; {self.fix}" if self.fix else self.message

    def renamed(self, field: str) -> Self:
        """Return a copy of the error in which the wrong field has another name."""
        other = type(self).__new__(type(self), *self.args)
        other.__dict__ |= self.__dict__ | {"field": field}
        return other

    def as_class(self, kind: Callable[..., _Error], field: str | None = None) -> _Error:
        """Return an error of another class with the same text, and with another field if given."""
        message, fix = self._texts
        return kind(message, fix=fix, field=self.field if field is None else field)


class ConfigError(SpeculantError):
    """A setting is wrong, is missing, or contradicts another setting."""


class CorpusError(SpeculantError):
    """The text of a corpus can't be read, or the corpus has no text."""

    def __init__(self, message: str, *, fix: str = "", field: str = "", problems: tuple[str, ...] = ()) -> None:
        """Make an error.

        Args:
            message: the problem.
            fix: the fix.
            field: the wrong setting.
            problems: the problems of several files; the error's text lists them between message and fix.
        """
        super().__init__(message, fix=fix, field=field)
        self.problems = problems

    def __str__(self) -> str:
        """Return the error as one line."""
        found = ": ".join(filter(None, (self.message, displayed("; ".join(self.problems)))))
        return f"{found}; {self.fix}" if self.fix else found


class GraphError(SpeculantError):
    """A graph can't be built, loaded or used."""


class GraphFileError(GraphError):
    """A file is not a graph, is damaged, or has a version that this release can't read."""


class TokenizerMismatchError(GraphError):
    """Two sides that exchange token ids do not use the same tokenizer."""

    kind = "tokenizer_mismatch"


class DraftRequestError(SpeculantError):
    """A draft request breaks a rule of the wire protocol."""

    kind = "wrong_request"


class UnknownGraphError(DraftRequestError):
    """A request names a graph that the drafter does not serve, or does not serve to this client."""

    kind = "unknown_graph"


class DraftLimitError(DraftRequestError):
    """A request or its response exceeds a limit of the drafter; waiting does not help."""

    kind = "over_limit"


class UnservedRequestError(DraftRequestError):
    """A request asks for a strategy or an option that the drafter does not serve."""

    kind = "unserved"


class UnavailableError(SpeculantError):
    """A server can't answer now; the same request may succeed later."""

    kind = "unavailable"


class OverloadError(UnavailableError):
    """A server is overloaded."""

    kind = "overload"

    def __init__(self, message: str, retry_delay_s: float = 1.0, *, fix: str = "", field: str = "") -> None:
        """Make an error.

        Args:
            message: the exceeded limit.
            retry_delay_s: seconds to wait before a retry.
            fix: the fix.
            field: the request field that is wrong.
        """
        super().__init__(message, fix=fix, field=field)
        self.retry_delay_s = retry_delay_s


class ShutdownError(UnavailableError):
    """A server is shutting down, or has cancelled the request."""

    kind = "shutdown"


class DrafterUnavailableError(UnavailableError):
    """The drafter sidecar does not answer."""

    kind = "drafter_unavailable"


class ApiError(SpeculantError):
    """A server refuses a request over HTTP."""

    def __init__(self, kind: str, message: str, *, fix: str = "", field: str = "") -> None:
        """Make an error.

        Args:
            kind: a key of :data:`ANSWERS`.
            message: the problem.
            fix: the fix.
            field: the request field that is wrong.
        """
        super().__init__(message, fix=fix, field=field)
        self.kind = kind


class AccessError(SpeculantError):
    """A server does not permit the client's request."""

    kind = "no_access"


class UnauthenticatedError(AccessError):
    """A server does not know the client that sent a request."""

    kind = "unauthenticated"


class GenerationError(SpeculantError):
    """A prompt can't be continued; the call generated no tokens."""


class GenerationRequestError(GenerationError):
    """A prompt or its settings are wrong: the same request would fail again."""

    kind = "wrong_request"


class GenerationMemoryError(GenerationError):
    """There was no memory left to continue a prompt."""

    kind = "out_of_memory"
