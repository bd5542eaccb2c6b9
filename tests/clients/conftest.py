"""A server with the scripted gpt-oss, and client programs that may connect only to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.client_programs import CLIENTS, Programs
from support.processes import Verifier
from support.scripted_gpt_oss import running_scripted


@pytest.fixture(scope="session")
def verifier(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifier]:
    if not CLIENTS.is_dir():
        pytest.skip("'make clients' installs what is run here")
    with running_scripted(tmp_path_factory.mktemp("scripted")) as running:
        yield running


@pytest.fixture
def programs(verifier: Verifier, tmp_path: Path) -> Iterator[Programs]:
    made = Programs(tmp_path, verifier.url)
    yield made
    made.trap.close()
    assert made.trap.caught == [], "a client talked to another server"
