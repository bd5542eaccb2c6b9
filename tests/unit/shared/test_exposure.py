"""Servers warn of addresses that are open or get keys unencrypted, and of no others."""

from __future__ import annotations

from pathlib import Path

import pytest
from loguru import logger

from speculant_graph.config import AccessConfig
from speculant_graph.serving.listening import warn_of_exposure

ACCESS, CERTIFICATE = {"file": Path("access.toml")}, {"tls_certificate": Path("s.pem"), "tls_key": Path("s.key")}
AUTHORITY = {"tls_client_ca": Path("ca.pem")}
KEYS, OPEN = "others can read keys on their way to {}; set access.tls_certificate", "{} is open to everyone"


@pytest.mark.parametrize(
    ("settings", "address", "told"),
    [
        (ACCESS, "0.0.0.0:8000", KEYS),
        (ACCESS, "127.0.0.1:8000", ""),
        (ACCESS, "unix:///run/v.sock", ""),
        (ACCESS | CERTIFICATE, "0.0.0.0:8000", ""),
        (CERTIFICATE, "0.0.0.0:8000", OPEN),
        ({}, "0.0.0.0:8000", OPEN),
        ({}, "[::1]:8000", ""),
    ],
)
def test_warning(settings: dict[str, Path], address: str, told: str) -> None:
    lines: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lines.append, format="{message}")
    try:
        warn_of_exposure(AccessConfig.model_validate(settings), [address])
    finally:
        logger.remove(sink)
        logger.disable("speculant_graph")
    assert len(lines) == bool(told)
    assert all(line.startswith(told.format(address)) for line in lines)
