"""A build on a Ray cluster of two workers, in a separate process: ``python -m support.ray_build MODE CORPUS OUTPUT``.

Its tasks, blocks and parts are small. The modes ``kill encode_task`` and ``kill count_task`` kill the first worker seen
at such a task. In the mode ``version`` the build and the workers have different releases. The mode ``wait`` reports
when a worker is at a task.
"""

from __future__ import annotations

import sys
import threading
import time
from functools import partial

import psutil

from speculant_graph.corpus.tasks import divide_corpus
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.build import on_ray
from speculant_graph.graph.build.builder import GraphBuilder
from speculant_verifier.demo.run import MODEL_FOLDER

TASK_BYTES = 20_000


def at_a_task(name: str) -> psutil.Process:
    """Wait for a worker at a task of that name and return it."""
    while True:
        for process in psutil.Process().children(recursive=True):
            try:
                if process.cmdline()[:1] and f"ray::{name}" in process.cmdline()[0]:
                    return process
            except psutil.Error:
                continue
        time.sleep(0.002)


def kill_one(name: str) -> None:
    at_a_task(name).kill()
    sys.stdout.write("killed\n")


def tell() -> None:
    at_a_task("encode_task")
    sys.stdout.write("working\n")
    sys.stdout.flush()


def main(mode: str, corpus: str, output: str) -> None:
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    on_ray.divide_corpus = partial(divide_corpus, task_bytes=TASK_BYTES)
    on_ray.BLOCK_TOKENS, on_ray.MOST_KEYS = 10_000, 5_000
    if mode == "version":
        on_ray.VERSION = "0.0.0"
    mode, _, name = mode.partition(" ")
    if mode in ("kill", "wait"):
        threading.Thread(target=partial(kill_one, name) if mode == "kill" else tell, daemon=True).start()
    try:
        with on_ray.workers_on_ray(cluster.address) as workers:
            builder = GraphBuilder(MODEL_FOLDER, document_boundaries=True)
            builder.build(corpus, output, workers=workers, progress=lambda state: sys.stdout.write(f"{state.phase}\n"))
    except SpeculantError as error:
        sys.stdout.write(f"{type(error).__name__}: {error}\n")
    finally:
        cluster.shutdown()


if __name__ == "__main__":
    main(*sys.argv[1:])
