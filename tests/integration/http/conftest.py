"""Fixtures: a server of a tiny model, shared by tests that do not change it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from openai import OpenAI

from speculant_verifier.decoder import SpeculativeDecoder
from support.http_api import Api, serving, tiny_decoder
from support.tool_models import serving_tools, writer_of


@pytest.fixture(scope="package")
def decoder() -> Iterator[SpeculativeDecoder]:
    with tiny_decoder(max_batch_size=8) as made:
        yield made


@pytest.fixture(scope="package")
def api(decoder: SpeculativeDecoder) -> Iterator[Api]:
    with serving(decoder) as running:
        yield running


@pytest.fixture(scope="package")
def client(api: Api) -> OpenAI:
    return api.client()


@pytest.fixture(scope="package", params=["harmony", "harmony-bytes", "hermes"])
def served(request: pytest.FixtureRequest) -> Iterator[tuple[str, Api]]:
    """The name of the model's tool-call format, and its server."""
    with serving_tools(request.param) as running:
        yield running


@pytest.fixture
def made_to_write(served: tuple[str, Api], monkeypatch: pytest.MonkeyPatch) -> Callable[[str], dict[str, Any]]:
    """Make the model write a given output; return the fields of a request for it."""
    return writer_of(served[1], monkeypatch)
