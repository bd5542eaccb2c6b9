"""Fixtures: a graph file, sidecars that serve it, and the demo's model."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from speculant_graph.graph.build.builder import build_from_token_ids
from speculant_graph.graph.ngrams import NgramGraph
from speculant_graph.types import Fingerprint
from support.processes import Sidecar, start_sidecar
from support.server import Serve, serving

if TYPE_CHECKING:
    from speculant_verifier.decoder import SpeculativeDecoder
    from speculant_verifier.model import TargetModel

VOCABULARY_SIZE = 50


@pytest.fixture(scope="session")
def small_graph() -> NgramGraph:
    """A graph whose contexts have several successors."""
    generator = random.Random(7)
    phrases = [[generator.randrange(VOCABULARY_SIZE) for _ in range(generator.randrange(3, 9))] for _ in range(30)]
    token_ids = [token_id for _ in range(400) for token_id in generator.choice(phrases)]
    return build_from_token_ids(token_ids, Fingerprint("tests/alphabet", "ab" * 32, VOCABULARY_SIZE), max_order=4)


@pytest.fixture(scope="session")
def graph_path(small_graph: NgramGraph, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of ``small_graph``."""
    path = tmp_path_factory.mktemp("graph") / "small.pkl"
    small_graph.save(path)
    return path


@pytest.fixture(scope="module")
def shared_sidecar(graph_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sidecar]:
    """A sidecar for tests that do not change it."""
    sidecar = start_sidecar(graph_path, tmp_path_factory.mktemp("run") / "drafter.sock")
    yield sidecar
    sidecar.stop()


@pytest.fixture
def run_sidecar(graph_path: Path, tmp_path: Path) -> Iterator[Callable[..., Sidecar]]:
    """Start sidecars at one address; kill the running ones at the end."""
    started: list[Sidecar] = []

    def run(**settings: Any) -> Sidecar:
        started.append(start_sidecar(graph_path, tmp_path / "drafter.sock", **settings))
        return started[-1]

    yield run
    for sidecar in started:
        if sidecar.process.poll() is None:
            sidecar.kill()


@pytest.fixture
def serve(graph_path: Path, tmp_path: Path) -> Iterator[Serve]:
    """Run sidecars in this process until the test ends."""
    with ExitStack() as stack:
        yield lambda **settings: stack.enter_context(serving(graph_path, tmp_path, **settings))


@pytest.fixture(scope="module")
def target() -> TargetModel:
    """The demo's model."""
    from support.verifier_service import demo_target

    return demo_target()


@pytest.fixture(scope="module")
def library(target: TargetModel) -> Iterator[SpeculativeDecoder]:
    """A decoder with the demo's model and without drafts."""
    from support.verifier_service import plain_decoder

    with plain_decoder(target) as decoder:
        yield decoder
