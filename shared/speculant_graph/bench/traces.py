"""Recorded outputs: files of traces as token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.types import TokenId

_FIELDS = ("prompt", "output")


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
        tokenizer: makes the ids; it says what special tokens are in outputs.
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


def _read_workload(path: Path, tokenizer: CorpusTokenizer, limit: int | None) -> Workload:
    name = path.stem
    texts: list[tuple[str, str]] = []
    for record in islice(_records(path), limit):
        if not texts:
            name = str(record.get("workload") or name)
            if not name.isprintable():  # it goes to terminals
                raise CorpusError(f"{path}: the field 'workload' of the first line holds control characters; rename it")
        texts.append((str(record["prompt"]), str(record["output"])))
    prompts = [tokenizer.encode_prompt(prompt) for prompt, _ in texts]
    outputs = tokenizer.encode_batch([output for _, output in texts])
    pairs = zip(prompts, outputs, strict=True)
    traces = tuple(Trace(tuple(prompt), tuple(output)) for prompt, output in pairs if output)
    if not traces:
        raise CorpusError(
            f"{path}: holds no trace with an output; give one JSON object with 'prompt' and 'output' a line"
        )
    return Workload(name, traces)


def _records(path: Path) -> Iterator[dict[str, object]]:
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, start=1):
                if line.strip():
                    yield _record(line, f"{path}:{number}")
    except OSError as error:
        raise CorpusError(f"{path}: can't be read ({error.strerror}); check the file and its permissions") from error


def _record(line: bytes, place: str) -> dict[str, object]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = error.msg.removesuffix(" at") if isinstance(error, json.JSONDecodeError) else error
        raise CorpusError(f"{place}: is no JSON ({reason}); mend the line or leave it out") from error
    if not isinstance(record, dict):
        raise CorpusError(f"{place}: is no JSON object; give one with 'prompt' and 'output'")
    for field in _FIELDS:
        if field not in record:
            raise CorpusError(f"{place}: has no field '{field}'; give it the text, or leave the line out")
        text = record[field]
        if not isinstance(text, str):
            raise CorpusError(f"{place}: the field '{field}' is no text; make it a string")
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise CorpusError(
                f"{place}: the field '{field}' has half a surrogate pair, which is no text; mend it"
            ) from error
    return record
