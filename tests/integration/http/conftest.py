"""A server of a tiny model that tests leave as it is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from openai import OpenAI

from speculant_verifier.decoder import SpeculativeDecoder
from support.http_api import Api, serving, tiny_decoder


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
