"""Errors as statuses of gRPC, and back."""

from __future__ import annotations

import grpc
import pytest

from speculant_graph import errors
from speculant_graph.errors import ConfigError, SpeculantError
from speculant_graph.rpc.status import (
    ERROR_OF_STATUS,
    INTERNAL_MESSAGE,
    STATUS_OF_ERROR,
    from_status,
    status_number,
    status_of_number,
    to_status,
)


def test_every_error_and_every_status_is_in_the_tables() -> None:
    ours = {value for value in vars(errors).values() if isinstance(value, type) and issubclass(value, SpeculantError)}
    assert set(STATUS_OF_ERROR) == ours
    assert set(ERROR_OF_STATUS) == set(grpc.StatusCode) - {grpc.StatusCode.OK}


@pytest.mark.parametrize("code", [code for code in STATUS_OF_ERROR.values() if code is not grpc.StatusCode.INTERNAL])
def test_errors_survive_the_wire(code: grpc.StatusCode) -> None:
    error = from_status(status_of_number(status_number(code)), "two\nlines")
    assert to_status(error) == (code, f"{code.name}: two lines")


@pytest.mark.parametrize("error", [KeyError("secret"), errors.GraphFileError("secret"), ConfigError("secret")])
def test_inner_failures_are_not_told(error: Exception) -> None:
    assert to_status(error) == (grpc.StatusCode.INTERNAL, INTERNAL_MESSAGE)


@pytest.mark.parametrize(
    ("end", "told"),
    [
        ("addr: unix:/a.sock error: Connection refused", "UNAVAILABLE: nobody answers there (Connection refused)"),
        ("unix:/a.sock: No such file or directory", "UNAVAILABLE: nobody answers there (No such file or directory)"),
        ("Ssl handshake failed: certificate verify failed", None),
    ],
)
def test_where_nobody_listens_is_said_shortly_and_all_else_in_full(end: str, told: str | None) -> None:
    details = f"failed to connect to all addresses; last error: UNKNOWN: ipv4:1: {end}"
    assert str(from_status(grpc.StatusCode.UNAVAILABLE, details)) == (told or f"UNAVAILABLE: {details}")
