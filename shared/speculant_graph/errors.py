"""Every error a user of the project can meet, in one tree.

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
    │   └── UnservedRequestError    it asks for what the drafter does not do
    ├── DrafterUnavailableError      the sidecar does not answer
    ├── AccessError            the sidecar does not let the client do what it asked for
    │   └── UnauthenticatedError    it does not know the client
    └── GenerationError        a prompt can't be continued; nothing was generated
        └── GenerationRequestError   the prompt or its settings are wrong

Messages are one line and end in what to do about it, ``fix``, where that is kept apart. Nothing here depends on gRPC,
torch or the command line.
"""

from __future__ import annotations

from speculant_graph.file_names import displayed


class SpeculantError(Exception):
    """Base of all errors raised on purpose."""

    def __init__(self, message: str, *, fix: str = "", field: str = "") -> None:
        """Make an error; as text it is ``message; fix``.

        Args:
            message: what is wrong.
            fix: what to do about it, if the message does not end in it.
            field: the setting or the field of a request that is wrong, as in ``verifier.model_name``.
        """
        message, fix = displayed(message), displayed(fix)
        super().__init__(f"{message}; {fix}" if fix else message)
        self.message, self.fix, self.field = message, fix, field


class ConfigError(SpeculantError):
    """A setting is wrong, missing or contradicts another."""


class CorpusError(SpeculantError):
    """Text of a corpus can't be read, or there is none."""

    def __init__(self, message: str, *, fix: str = "", field: str = "", problems: tuple[str, ...] = ()) -> None:
        """Make an error.

        Args:
            message: what is wrong.
            fix: what to do.
            field: the setting that is wrong.
            problems: what is wrong with each of several files; as text it stands between message and fix.
        """
        super().__init__(": ".join(filter(None, (message, "; ".join(problems)))), fix=fix, field=field)
        self.message, self.problems = message, problems


class GraphError(SpeculantError):
    """A graph can't be built, loaded or used."""


class GraphFileError(GraphError):
    """A file is not a graph, is damaged, or has a version that this release can't read."""


class TokenizerMismatchError(GraphError):
    """Two sides that exchange token ids do not use the same tokenizer."""


class DraftRequestError(SpeculantError):
    """A draft request breaks a rule of the wire."""


class UnknownGraphError(DraftRequestError):
    """A request names a graph that the drafter does not serve."""


class DraftLimitError(DraftRequestError):
    """A request, or the answer to it, is over a limit of the drafter."""

    def __init__(self, message: str, retry_delay_s: float = 0.0, *, fix: str = "", field: str = "") -> None:
        """Make an error.

        Args:
            message: which limit.
            retry_delay_s: when to try again, seconds; 0: at once, but with less, as waiting does not help.
            fix: what to do.
            field: of the request.
        """
        super().__init__(message, fix=fix, field=field)
        self.retry_delay_s = retry_delay_s


class UnservedRequestError(DraftRequestError):
    """A request asks for a strategy or an option that the drafter does not serve."""


class DrafterUnavailableError(SpeculantError):
    """The drafter sidecar does not answer."""


class AccessError(SpeculantError):
    """The sidecar does not let the client do what it asked for."""


class UnauthenticatedError(AccessError):
    """The sidecar does not know the client."""


class GenerationError(SpeculantError):
    """A prompt can't be continued; nothing of the call was generated."""


class GenerationRequestError(GenerationError):
    """A prompt or its settings are wrong: the same request would fail again."""
