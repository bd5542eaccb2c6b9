"""A drafter and a verifier of the bench's own, with the demo's model and its graph."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from speculant_graph.bench.processes import await_health, free_ports, kill, running_module, start_module, stop
from speculant_graph.bench.progress import BenchProgress
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo import MODEL_FOLDER
from speculant_verifier.demo.corpus import standard_library_files

_DEADLINE_MS = 100
_PAUSE_S = 1.0


class OwnDrafter:
    """A sidecar that can be killed and started again."""

    def __init__(self, graph: Path, address: str) -> None:
        """Start it."""
        self._arguments = ["--listen", address, "--graph", str(graph), "--log-level", "WARNING"]
        self.address = address
        self._process = start_module("speculant_drafter", self._arguments)
        self.num_kills = 0

    def await_ready(self) -> None:
        """Wait until it serves."""
        await_health(self._process, self.address)

    def kill_and_start(self) -> None:
        """Kill it, and start another in its place a second later."""
        kill(self._process)
        self.num_kills += 1
        time.sleep(_PAUSE_S)
        self._process = start_module("speculant_drafter", self._arguments)
        self.await_ready()

    def close(self) -> None:
        """End it."""
        stop(self._process)


@contextmanager
def own_servers(folder: Path, num_streams: int, progress: BenchProgress) -> Iterator[tuple[str, OwnDrafter]]:
    """Serve the demo's model in processes of their own; yield the API's address, and the drafter.

    Args:
        folder: for their sockets and the graph.
        num_streams: sequences decoded together.
        progress: called during the build.
    """
    graph = folder / "graph.pkl"
    builder = GraphBuilder(tokenizer_name=str(MODEL_FOLDER))
    builder.build(standard_library_files(), graph, progress=progress.show_build)
    with closing(OwnDrafter(graph, f"unix://{folder}/drafter.sock")) as drafter:
        progress.begin("starting the drafter and the verifier")
        drafter.await_ready()
        [port] = free_ports(1)
        address = f"unix://{folder}/verifier.sock"
        arguments = [
            "verifier", "--model", str(MODEL_FOLDER), "--listen", address, "--http", f"127.0.0.1:{port}",
            "--verifier.prefix-cache", "0",  # every way reads the prompts itself
            "--address", drafter.address, "--client.deadline-ms", str(_DEADLINE_MS), "--strategy", "tree",
            "--max-batch-size", str(num_streams), "--num-threads", "1", "--log-level", "WARNING",
        ]  # fmt: skip
        with running_module("speculant_graph.cli.main", arguments) as verifier:
            await_health(verifier, address)
            yield f"http://127.0.0.1:{port}/v1", drafter
