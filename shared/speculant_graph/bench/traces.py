"""Recorded outputs: files of traces as token ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.types import TokenId
from speculant_graph.validation_messages import humanise

_FIX = "give one JSON object with the texts 'prompt' and 'output' a line"


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and what a model answered."""

    prompt: tuple[TokenId, ...]
    """What the model was given."""
    output: tuple[TokenId, ...]
    """What it wrote; at least one token."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The traces of one file, in its order."""

    name: str
    """Field ``workload`` of the first line, or the file's name."""
    traces: tuple[Trace, ...]
    """At least one."""


def read_workloads(paths: Sequence[Path], tokenizer: CorpusTokenizer, limit: int | None = None) -> list[Workload]:
    """Read files of traces, one JSON object with ``prompt`` and ``output`` a line.

    Both texts are tokenised by themselves, the prompt as the verifier does it. Blank lines and traces whose output is
    empty are left out.

    Args:
        paths: the files; each is a workload.
        tokenizer: makes the ids; its setting decides what special tokens are in outputs.
        limit: most traces to read of each file; None for all.

    Raises:
        CorpusError: a file can't be read, a line is no trace, or there is none; the message names file and line.
        ConfigError: two files are of the same workload.
    """
    workloads = [_read_workload(path, tokenizer, limit) for path in paths]
    names: dict[str, Path] = {}
    for path, workload in zip(paths, workloads, strict=True):
        if workload.name in names:
            raise ConfigError(
                f"{names[workload.name]} and {path} are both of workload '{workload.name}'; "
                "put them into one file or change the field 'workload' of the first line"
            )
        names[workload.name] = path
    return workloads


class _Record(BaseModel):
    """A line of a file."""

    prompt: str
    output: str
    workload: str = ""


def _read_workload(path: Path, tokenizer: CorpusTokenizer, limit: int | None) -> Workload:
    records = list(islice(_records(path), limit))
    prompts = [tokenizer.encode_prompt(record.prompt) for record in records]
    outputs = tokenizer.encode_batch([record.output for record in records])
    pairs = zip(prompts, outputs, strict=True)
    traces = tuple(Trace(tuple(prompt), tuple(output)) for prompt, output in pairs if output)
    if not traces:
        raise CorpusError(f"{path}: holds no trace with an output; {_FIX}")
    name = records[0].workload or path.stem
    if not name.isprintable():  # it goes to terminals
        raise CorpusError(f"{path}: the field 'workload' of the first line holds control characters; rename it")
    return Workload(name, traces)


def _records(path: Path) -> Iterator[_Record]:
    try:
        with path.open("rb") as file:
            for line_number, line in enumerate(file, start=1):
                if line.strip():
                    yield _record(line, f"{path}:{line_number}")
    except OSError as error:
        raise CorpusError(f"{path}: can't be read ({error.strerror}); check the file and its permissions") from error


def _record(line: bytes, where: str) -> _Record:
    try:
        return _Record.model_validate_json(line)
    except ValidationError as error:
        first: Any = error.errors()[0]
        field = "".join(f"'{name}' " for name in first["loc"])
        raise CorpusError(f"{where}: {field}{humanise(first).partition(';')[0]}; {_FIX}") from error
