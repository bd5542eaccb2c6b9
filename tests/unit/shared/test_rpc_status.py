"""Conversion of errors to gRPC statuses and back."""

from __future__ import annotations

import grpc
import pytest

from speculant_graph import errors
from speculant_graph.errors import (
    ANSWERS,
    ApiError,
    ConfigError,
    DrafterUnavailableError,
    DraftLimitError,
    GenerationRequestError,
    OverloadError,
    SpeculantError,
)
from speculant_graph.rpc.status import CODE_OF_NUMBER, INTERNAL_MESSAGE, advised_delay_s, from_status, to_status


def test_every_error_of_a_server_is_an_error_of_ours_at_the_client() -> None:
    for kind in ANSWERS:
        code, message = to_status(ApiError(kind, "why"))
        error = from_status(CODE_OF_NUMBER[code.value[0]], f"two\n{message}")
        assert to_status(error)[0] in (code, grpc.StatusCode.UNAVAILABLE)  # INTERNAL means that the drafter failed
        assert str(error) == f"{code.name}: two {message}"
    assert isinstance(from_status(grpc.StatusCode.INTERNAL, None), DrafterUnavailableError)


def test_every_class_has_an_answer() -> None:
    classes = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, SpeculantError)]
    assert len(classes) > 10
    assert all(each.kind in ANSWERS for each in classes)


def test_only_what_waiting_helps_against_is_an_overload() -> None:
    """The server's delay decides: without a delay, the same request would fail again."""
    full, too_much = (from_status(grpc.StatusCode.RESOURCE_EXHAUSTED, "full", delay_s) for delay_s in (0.5, 0.0))
    assert (type(full), type(too_much)) == (OverloadError, DraftLimitError)
    assert (advised_delay_s(full), advised_delay_s(too_much)) == (0.5, 0.0)
    assert advised_delay_s(ConfigError("why")) is None


def test_a_name_that_changes_changes_in_the_text() -> None:
    error = GenerationRequestError("{field} is 5, more than 4", fix="lower {field}", field="max_tokens")
    other = error.renamed("max_output_tokens")
    assert str(other) == "max_output_tokens is 5, more than 4; lower max_output_tokens"
    assert (type(other), other.field, error.field) == (GenerationRequestError, "max_output_tokens", "max_tokens")
    as_setting = error.as_class(ConfigError, "generation.max_tokens")
    assert (as_setting.message, as_setting.fix) == (
        "generation.max_tokens is 5, more than 4",
        "lower generation.max_tokens",
    )


@pytest.mark.parametrize("error", [KeyError("secret"), errors.GraphFileError("secret"), ConfigError("secret")])
def test_inner_failures_are_not_told(error: Exception) -> None:
    assert to_status(error) == (grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)
