"""Builds graphs on a Ray cluster: its workers tokenise files or ranges of files, and count ranges of n-grams.

The workers return the token ids in order. The token ids are then shipped to the workers again, in blocks. Each worker
counts the n-grams of a range of keys into a partial graph. No n-gram is in two partial graphs. The graph file therefore
contains one partial graph after the other, and no counts have to be added up. The resulting graph is the same as
without Ray. No other module depends on Ray.
"""

from __future__ import annotations

import os
import socket
import tempfile
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.file_patterns import STANDARD_INPUT
from speculant_graph.corpus.hub import first_line
from speculant_graph.corpus.source import CorpusFile, Source
from speculant_graph.corpus.storage import address_of
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR, EncodedPart
from speculant_graph.corpus.tasks import Task, divide_corpus, encode_at_once
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError, SpeculantError
from speculant_graph.extras import needed_for
from speculant_graph.graph.build import count as counting
from speculant_graph.graph.build.builder import Workers
from speculant_graph.graph.build.keys import KeyLayout, PartRecords
from speculant_graph.graph.layout import UInt32Array
from speculant_graph.version import VERSION

_T = TypeVar("_T")
_RETRIES = 5
"""Maximum retries of a task after its worker died."""
_AHEAD = 2
"""Maximum number of tasks per core that are running or have results that wait to be written. More tasks could fill
Ray's object store."""
BLOCK_TOKENS = 1 << 24
"""Number of tokens in a block of the stream."""
MOST_KEYS = 1 << 24
"""Maximum number of keys of a part. With more keys, a part's records would fill Ray's object store."""
_FOUND_BY_RAY = ("auto", "local")
"""Addresses for which Ray finds or starts the cluster."""
_PATIENCE_S, _LONGEST_CONNECT_S = 10.0, 20.0
"""Timeouts in seconds: first for a server, then for a cluster, to accept a connection."""
_ONE_CORE = {"RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "true"}
"""Environment variables that give the tokenizers library one thread of its own. In Python's thread, tokenising takes a
third longer."""
_tokenizers: dict[str, CorpusTokenizer] = {}
"""This worker's tokenizer by the id of its Ray object, cached because loading it takes a second."""


@contextmanager
def workers_on_ray(address: str) -> Iterator[Workers]:
    """Connect to a Ray cluster, and yield functions that use it. Leaving the ``with`` block cancels all tasks.

    Args:
        address: an address in Ray's form: ``auto``, ``host:port`` or ``ray://host:port``. ``local`` starts a cluster of
            this machine's cores, which ends with the ``with`` block.

    Raises:
        ConfigError: there is no such cluster, or it runs another release of Ray.
        ModuleNotFoundError: the extra ``ray`` is not installed.
    """
    with needed_for("building on Ray", "ray"):
        import ray
    local = {"include_dashboard": False} if address == "local" else {}
    connect = partial(ray.init, address, log_to_driver=False, logging_level="ERROR", **local)
    try:
        if address in _FOUND_BY_RAY:
            connect()
        else:
            _reach(address)
            _within(_LONGEST_CONNECT_S, connect)
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"no connection to a Ray cluster at {address} ({first_line(error)})",
            fix="start it, set RAY_AUTH_MODE=token if it requires a token (docs/corpus.md), or use --ray local",
        ) from error
    try:
        yield Workers(partial(_encode, ray), partial(_count, ray))
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise an OSError if no server listens at the address, because Ray itself would retry for minutes.

    Raises:
        ConfigError: the address has no form that Ray knows.
    """
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if not host or "/" in host or not port.isdigit():
        raise ConfigError(
            f"{address!r} is no address of a Ray cluster", fix="write host:port, ray://host:port, auto or local"
        )
    socket.create_connection((host, int(port)), _PATIENCE_S).close()


def _within(longest_s: float, connect: Callable[[], object]) -> None:
    """Connect in a thread, because Ray retries for minutes if a server is not a cluster or refuses the token.

    Raises:
        TimeoutError: it takes longer.
    """
    failures: list[Exception] = []

    def connect_here() -> None:
        try:
            connect()
        except Exception as error:  # raised below
            failures.append(error)

    thread = threading.Thread(target=connect_here, name="speculant-ray", daemon=True)
    thread.start()
    thread.join(longest_s)
    if thread.is_alive():
        raise TimeoutError(f"no answer from a cluster within {longest_s:.0f} s")
    if failures:
        raise failures[0]


def _encode(
    ray: Any, tokenizer: CorpusTokenizer, sources: Sequence[Source], config: GraphConfig
) -> Iterator[EncodedPart]:
    """Encode checked files; see :data:`~speculant_graph.corpus.stream.Encode`."""
    config = config.model_copy(update={"hf_token": None})  # workers download nothing
    shipped = [ray.put(tokenizer)]  # in a list, so that workers load it once instead of with every task
    encode, describe = _remote(ray, encode_task), _remote(ray, describe_file)

    def submitted() -> Iterator[tuple[Any, Any]]:
        for task in divide_corpus(sources, tokenizer.is_cuttable):
            if any(_is_here_alone(source) for source in task.sources):
                yield ray.put(encode_at_once(tokenizer, task, config, 0)), None
                continue
            for source in (*task.sources, *([task.completes] if task.completes else [])):
                # Workers run in other folders, and read object storage themselves.
                source.stored = None if address_of(source.path) else source.path.absolute()
            described = describe.remote(task.completes, config.text_field) if task.completes else None
            yield encode.remote(shipped, task, config, VERSION), described

    has_documents = False
    for encoded, described in _in_order(ray, submitted()):
        part: EncodedPart = _result(ray, encoded)
        part = part if described is None else replace(part, files=(_result(ray, described),))
        needs_separator = config.document_boundaries and has_documents and part.num_documents > 0
        has_documents = has_documents or part.num_documents > 0
        yield _separated(part) if needs_separator else part


def _count(ray: Any, job: counting.CountJob) -> Iterator[tuple[int, PartRecords]]:
    """Count a stream; see :data:`~speculant_graph.graph.build.count.CountParts`."""
    _, most_keys = counting.fit_into(job.memory, job.token_ids.size // _num_cores(ray), job.layout, 1)
    parts = list(counting.plan_partitions(job.token_ids, job.vocabulary_size, job.layout, min(most_keys, MOST_KEYS)))
    stream = counting.blocks_of(job.token_ids, job.layout, BLOCK_TOKENS)
    blocks = [(ray.put(np.array(block)), overlap) for block, overlap in stream]
    count = _remote(ray, count_task)
    submitted = ((part, count.remote(blocks, part, job.layout)) for part in parts)
    for index, (part, counted) in enumerate(_in_order(ray, submitted)):
        records, contents = _result(ray, counted)
        files = tuple(job.folder / f"part-{index}.{level}" for level in range(len(contents)))
        for file, content in zip(files, contents, strict=True):
            content.tofile(file)
        yield part.num_keys, replace(records, files=files)


def _remote(ray: Any, function: Callable[..., Any]) -> Any:
    return ray.remote(num_cpus=1, max_retries=_RETRIES)(function)


def _num_cores(ray: Any) -> int:
    return max(1, int(ray.cluster_resources().get("CPU", 1)))


def _in_order(ray: Any, submitted: Iterator[_T]) -> Iterator[_T]:
    """Yield submitted tasks in order, while the next tasks run."""
    most = _AHEAD * _num_cores(ray)
    waiting: deque[_T] = deque()
    for task in submitted:
        waiting.append(task)
        if len(waiting) >= most:
            yield waiting.popleft()
    while waiting:
        yield waiting.popleft()


def _result(ray: Any, reference: Any) -> Any:
    try:
        return ray.get(reference)
    except ray.exceptions.RayError as error:
        raise _explained(error) from None


def encode_task(shipped: list[Any], task: Task, config: GraphConfig, version: str) -> EncodedPart:
    """Encode a task; workers run this function.

    Args:
        shipped: list whose only item is a reference to the tokenizer.
        task: the task.
        config: settings for reading the task's files.
        version: the caller's release.

    Raises:
        ConfigError: this worker has another release.
        CorpusError: a file can't be read on this worker.
    """
    import ray

    if version != VERSION:
        raise ConfigError(
            f"a worker has speculant-graph {VERSION} and this is {version}", fix="install the same on all machines"
        )
    os.environ.update(_ONE_CORE)  # a worker has one core, and the library would use all
    name = shipped[0].hex()
    if name not in _tokenizers:
        _tokenizers.clear()
        _tokenizers[name] = ray.get(shipped[0])
    return encode_at_once(_tokenizers[name], task, config, 1)


def count_task(
    blocks: Sequence[tuple[Any, int]], part: counting.Partition, layout: KeyLayout
) -> tuple[PartRecords, list[UInt32Array]]:
    """Count the n-grams of a part; workers run this function.

    Args:
        blocks: references to the blocks of the stream, each with its overlap
            (:func:`~speculant_graph.graph.build.count.count_partition`).
        part: the part.
        layout: layout of keys.

    Returns:
        The part's records, whose files no longer exist, and the content of each of these files.
    """
    import ray

    num_keys = part.num_sorted(layout.length) + 2 * layout.length
    space = counting.space_for_keys(num_keys, layout), counting.space_for_keys(num_keys, layout)
    with tempfile.TemporaryDirectory(prefix="speculant-") as folder:
        stream = ((ray.get(block), overlap) for block, overlap in blocks)
        records = counting.count_partition(stream, part, layout, Path(folder) / "part", *space)
        return records, [counting.map_tokens(file) for file in records.files]


def describe_file(source: Source, text_field: str) -> CorpusFile:
    """Return the metadata of a file that several tasks read; this function also runs on workers.

    Raises:
        CorpusError: the file can't be read on this worker.
    """
    for block in source.stored_blocks(lambda _: None):
        source.take(block)
    return source.describe(text_field)


def _is_here_alone(source: Source) -> bool:
    """Return whether only this machine has a file's data: it came through a pipe, or its text was extracted here."""
    is_piped = source.stored is not None and not address_of(source.path)
    return source.path == STANDARD_INPUT or is_piped or source.extracted is not None


def _separated(part: EncodedPart) -> EncodedPart:
    token_ids = np.concatenate([np.array([DOCUMENT_SEPARATOR], np.uint32), part.token_ids])
    return replace(part, token_ids=token_ids, num_separators=part.num_separators + 1)


def _explained(error: Exception) -> Exception:
    """Return a readable form of Ray's error: the error of this project's code on a worker, or a one-line message."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, SpeculantError | ModuleNotFoundError):
        return cause
    if "No module named 'speculant_graph'" in str(error):
        return ConfigError("a worker has no speculant-graph", fix=f"install release {VERSION} on all machines")
    return GraphError(
        f"Ray lost part of the build ({type(error).__name__}: {first_line(error)})",
        fix="check the workers' memory and logs, and build again",
    )
