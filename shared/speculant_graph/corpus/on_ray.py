"""Tokenises on a Ray cluster: its workers read files or ranges of files and return their token ids.

Tokenising takes most of a build's time, and token ids are small. The parts come back in order, and the rest of the
build runs on one machine. So the graph is the same as without Ray. No other module depends on Ray.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from speculant_graph.config import GraphConfig
from speculant_graph.corpus.file_patterns import STANDARD_INPUT
from speculant_graph.corpus.hub import first_line
from speculant_graph.corpus.source import CorpusFile, Source
from speculant_graph.corpus.stream import DOCUMENT_SEPARATOR, Encode, EncodedPart, encode_sources
from speculant_graph.corpus.tasks import Task, divide_corpus
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, GraphError, SpeculantError
from speculant_graph.extras import needed_for
from speculant_graph.version import VERSION

_RETRIES = 5
"""Maximum retries of a task after its worker died."""
_AHEAD = 2
"""Maximum number of tasks per core that run, or whose ids wait to be written. More could fill the object store."""
_PATIENCE_S = 10
"""Timeout of a connection to the cluster, in seconds."""
_ONE_CORE = {"TOKENIZERS_PARALLELISM": "false"}
_tokenizers: dict[str, CorpusTokenizer] = {}
"""This worker's tokenizer, by the id of its Ray object. It is cached, because loading it takes a second."""


@contextmanager
def encoding_on_ray(address: str) -> Iterator[Encode]:
    """Connect to a cluster, and yield a function that encodes on it. Leaving the ``with`` block cancels all tasks.

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
    try:
        _reach(address)
        ray.init(address, log_to_driver=False, logging_level="ERROR", **local)
    except (OSError, RuntimeError, TimeoutError, ValueError) as error:
        raise ConfigError(
            f"there is no Ray cluster at {address} ({first_line(error)})", fix="start it, or use --ray local"
        ) from error
    try:
        yield partial(_encode, ray)
    finally:
        ray.shutdown()


def _reach(address: str) -> None:
    """Raise an OSError if no server listens at the address, because Ray itself would retry for minutes."""
    host, _, port = address.removeprefix("ray://").rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host, int(port)), _PATIENCE_S).close()


def _encode(
    ray: Any, tokenizer: CorpusTokenizer, sources: Sequence[Source], config: GraphConfig
) -> Iterator[EncodedPart]:
    """Encode checked files; see :data:`~speculant_graph.corpus.stream.Encode`."""
    config = config.model_copy(update={"hf_token": None})  # workers download nothing
    shipped = [ray.put(tokenizer)]  # in a list, so that workers load it once instead of with every task
    options = {"num_cpus": 1, "max_retries": _RETRIES}
    encode, describe = ray.remote(**options)(encode_task), ray.remote(**options)(describe_file)
    most = max(1, int(_AHEAD * ray.cluster_resources().get("CPU", 1)))
    waiting: deque[tuple[Any, Any]] = deque()
    has_documents = False

    def take() -> EncodedPart:
        nonlocal has_documents
        try:
            encoded, described = waiting.popleft()
            part: EncodedPart = ray.get(encoded)
            files = part.files if described is None else (ray.get(described),)
        except ray.exceptions.RayError as error:
            raise _explained(error) from None
        part = replace(part, files=files)
        needs_separator = config.document_boundaries and has_documents and part.num_documents > 0
        has_documents = has_documents or part.num_documents > 0
        return _separated(part) if needs_separator else part

    for task in divide_corpus(sources, tokenizer.is_cuttable):
        if any(_is_here_alone(source) for source in task.sources):
            while waiting:
                yield take()
            here = _encoded_at_once(tokenizer, task, config, 0)
            waiting.append((ray.put(here), None))
            continue
        for source in (*task.sources, *([task.completes] if task.completes else [])):
            source.stored = source.stored or source.path.absolute()  # workers run in other folders
        described = describe.remote(task.completes, config.text_field) if task.completes else None
        waiting.append((encode.remote(shipped, task, config, VERSION), described))
        if len(waiting) >= most:
            yield take()
    while waiting:
        yield take()


def encode_task(shipped: list[Any], task: Task, config: GraphConfig, version: str) -> EncodedPart:
    """Encode a task: the function that workers run.

    Args:
        shipped: list with one reference, to the tokenizer.
        task: the task.
        config: settings for reading its files.
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
    return _encoded_at_once(_tokenizers[name], task, config, 1)


def describe_file(source: Source, text_field: str) -> CorpusFile:
    """Return the metadata of a file that several tasks read. This function, too, runs on workers.

    Raises:
        CorpusError: the file can't be read on this worker.
    """
    for block in source.stored_blocks(lambda _: None):
        source.take(block)
    return source.describe(text_field)


def _encoded_at_once(tokenizer: CorpusTokenizer, task: Task, config: GraphConfig, jobs: int) -> EncodedPart:
    parts = list(encode_sources(tokenizer, task.sources, config, jobs))
    is_part = task.sources[0].span is not None
    return EncodedPart(
        np.concatenate([part.token_ids for part in parts]),
        sum(part.num_separators for part in parts),
        sum(part.num_documents for part in parts),
        sum(part.num_bytes for part in parts),
        () if is_part else tuple(file for part in parts for file in part.files),
    )


def _is_here_alone(source: Source) -> bool:
    """Return whether only this machine has a file's data: it came through a pipe, or its text was extracted here."""
    return source.path == STANDARD_INPUT or source.stored is not None or source.extracted is not None


def _separated(part: EncodedPart) -> EncodedPart:
    token_ids = np.concatenate([np.array([DOCUMENT_SEPARATOR], np.uint32), part.token_ids])
    return replace(part, token_ids=token_ids, num_separators=part.num_separators + 1)


def _explained(error: Exception) -> Exception:
    """Return a readable form of Ray's error: the error that our code raised on a worker, or a one-line message."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, SpeculantError | ModuleNotFoundError):
        return cause
    if "No module named 'speculant_graph'" in str(error):
        return ConfigError("a worker has no speculant-graph", fix=f"install release {VERSION} on all machines")
    return GraphError(
        f"Ray lost part of the build ({type(error).__name__}: {first_line(error)})",
        fix="check the workers' memory and logs, and build again",
    )
