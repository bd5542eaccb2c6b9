"""Counts the parts of a token stream as tasks of a Ray cluster; the same core, the same records.

The folder of the graph file must be reachable under the same path on all machines: tasks read the token stream there
and write their records there.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from speculant_graph.errors import ConfigError, GraphError
from speculant_graph.graph.build.keys import KeyLayout
from speculant_graph.graph.build.partition import KeyBuffers, Partition, PartitionRecords, count_partition


def count_on_cluster(
    stream: Path, parts: Sequence[Partition], layout: KeyLayout, folder: Path, jobs: int
) -> Iterator[PartitionRecords]:
    """Yield the records of all parts in order.

    Args:
        stream: file of the token stream.
        parts: what to count, one task each.
        layout: how keys are packed.
        folder: where the tasks write.
        jobs: CPUs of the cluster that is started on this machine, unless ``RAY_ADDRESS`` names a running one.

    Raises:
        ConfigError: Ray is not installed, or the cluster can't be reached.
        GraphError: a task failed.
    """
    ray = _connected(jobs)
    try:
        task = ray.remote(_count_part)
        references = [task.remote(stream, part, layout, folder / f"part-{index}") for index, part in enumerate(parts)]
        for reference in references:
            try:
                yield ray.get(reference)
            except ray.exceptions.RayError as error:
                reason = str(getattr(error, "cause", None) or error).strip().splitlines()[-1]
                raise GraphError(
                    f"a task of the cluster failed ({reason}); all its machines need {folder.parent} and its space"
                ) from error
    finally:
        ray.shutdown()


def _connected(jobs: int) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
    except ModuleNotFoundError as error:
        if error.name != "ray":
            raise
        raise ConfigError('--engine ray needs ray; run: pip install "speculant-graph[cluster]"') from error
    try:
        if os.environ.get("RAY_ADDRESS"):
            ray.init(log_to_driver=False, logging_level=logging.ERROR)
        else:
            ray.init(num_cpus=jobs, include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ConfigError(f"no Ray cluster ({reason}); check RAY_ADDRESS or take --engine local") from error
    return ray


def _count_part(stream: Path, part: Partition, layout: KeyLayout, stem: Path) -> PartitionRecords:
    from speculant_graph.graph.build.count import map_tokens

    cpu = time.process_time()
    buffers = KeyBuffers(layout, part.num_sorted(layout.length))
    records = count_partition(map_tokens(stream), part, layout, stem, buffers)
    return replace(records, task_cpu_s=time.process_time() - cpu)
