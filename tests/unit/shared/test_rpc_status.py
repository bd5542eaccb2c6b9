"""Errors as statuses of gRPC, and back."""

from __future__ import annotations

import grpc
import pytest

from speculant_graph import errors
from speculant_graph.errors import ConfigError, DrafterUnavailableError, SpeculantError
from speculant_graph.rpc.status import CODE_OF_NUMBER, INTERNAL_MESSAGE, from_status, to_status


def test_every_error_of_a_server_is_an_error_of_ours_at_the_client() -> None:
    for kind in vars(errors).values():
        if isinstance(kind, type) and issubclass(kind, SpeculantError):
            code, message = to_status(kind("why"))
            error = from_status(CODE_OF_NUMBER[code.value[0]], f"two\n{message}")
            assert to_status(error)[0] in (code, grpc.StatusCode.UNAVAILABLE)  # INTERNAL is a drafter that failed
            assert str(error) == f"{code.name}: two {message}"
    assert isinstance(from_status(grpc.StatusCode.INTERNAL, None), DrafterUnavailableError)


@pytest.mark.parametrize("error", [KeyError("secret"), errors.GraphFileError("secret"), ConfigError("secret")])
def test_inner_failures_are_not_told(error: Exception) -> None:
    assert to_status(error) == (grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)
