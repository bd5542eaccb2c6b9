"""Servers warn of addresses where keys can be read on their way, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from loguru import logger

from speculant_graph.config import ServiceConfig
from speculant_graph.serving.credentials import warn_of_readable_keys

ACCESS, CERTIFICATE = {"access_file": Path("access.toml")}, {"tls_certificate": Path("s.pem"), "tls_key": Path("s.key")}


@pytest.mark.parametrize(
    ("settings", "address", "is_told"),
    [
        (ACCESS, "0.0.0.0:8000", True),
        (ACCESS, "[::]:8000", True),
        (ACCESS, "example.internal:8000", True),
        (ACCESS, "127.0.0.1:8000", False),
        (ACCESS, "localhost:8000", False),
        (ACCESS, "[::1]:8000", False),
        (ACCESS, "unix:///run/v.sock", False),
        (ACCESS | CERTIFICATE, "0.0.0.0:8000", False),
        ({}, "0.0.0.0:8000", False),
    ],
)
def test_warning(settings: dict[str, Path], address: str, *, is_told: bool) -> None:
    lines: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lines.append, format="{message}")
    try:
        warn_of_readable_keys(ServiceConfig.model_validate(settings), [address])
    finally:
        logger.remove(sink)
        logger.disable("speculant_graph")
    assert [address in line and "service.tls_certificate" in line for line in lines] == [True] * is_told
