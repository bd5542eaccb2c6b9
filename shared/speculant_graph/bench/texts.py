"""Texts for benches: recorded outputs, the words of Python's own sources, and texts sampled from a graph."""

from __future__ import annotations

import re
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import BaseModel, ValidationError

from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.json_lines import DoubledNameError, read_json
from speculant_graph.types import Fingerprint, TokenId
from speculant_graph.validation_messages import humanise

if TYPE_CHECKING:
    from speculant_graph.graph.ngrams import NgramGraph

_FIX = "give one JSON object per line, with the texts 'prompt' and 'output'"
_WORDS = re.compile(r"\w+|\n\s*|[^\S\n]+|[^\w\s]")
_MOST_TOKENS = 1_500_000
_TOKENS_AT_A_TIME = 64


@dataclass(frozen=True, slots=True)
class Trace:
    """One prompt and a model's output."""

    prompt: tuple[TokenId, ...]
    """Token ids of the prompt."""
    output: tuple[TokenId, ...]
    """Token ids of the output, which has at least one token."""


@dataclass(frozen=True, slots=True)
class Workload:
    """The traces of one file, in the order of its lines."""

    name: str
    """Name of the workload: the field ``workload`` of the first line, or else the file's name."""
    traces: tuple[Trace, ...]
    """The workload's recorded traces; there is at least one."""


class _Record(BaseModel):
    """One line of a trace file, which is a JSON object."""

    prompt: str
    output: str
    workload: str = ""


def read_workloads(paths: Sequence[Path], tokenizer: CorpusTokenizer, limit: int | None = None) -> list[Workload]:
    """Read files of traces; each line is a JSON object with ``prompt`` and ``output``.

    The prompt and the output are tokenised separately; the prompt is tokenised in the same way as in the verifier.
    Blank lines and traces with an empty output are skipped.

    Args:
        paths: the files; each is a workload.
        tokenizer: the tokenizer; its setting decides how special tokens in outputs are read.
        limit: maximum number of traces per file; None for all.

    Raises:
        CorpusError: a file can't be read, a line is not a trace, or there are no traces; the message names file and
            line.
        ConfigError: two files have the same workload.
    """
    workloads = [_read_workload(path, tokenizer, limit) for path in paths]
    names = [workload.name for workload in workloads]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"several files have the {{field}} '{name}'",
                fix="put them into one file or change the field '{field}' of the first line",
                field="workload",
            )
    return workloads


def _read_workload(path: Path, tokenizer: CorpusTokenizer, limit: int | None) -> Workload:
    records = list(islice(_records(path), limit))
    prompts = [tokenizer.encode_prompt(record.prompt) for record in records]
    outputs = tokenizer.encode_batch([record.output for record in records])
    pairs = zip(prompts, outputs, strict=True)
    traces = tuple(Trace(tuple(prompt), tuple(output)) for prompt, output in pairs if output)
    if not traces:
        raise CorpusError(f"{path}: holds no trace with an output; {_FIX}")
    name = records[0].workload or path.stem
    if not name.isprintable():  # it is printed on terminals
        raise CorpusError(f"{path}: the field 'workload' of the first line holds control characters; rename it")
    return Workload(name, traces)


def _records(path: Path) -> Iterator[_Record]:
    try:
        lines = path.read_bytes().split(b"\n")
    except OSError as error:
        raise CorpusError(f"{path}: can't be read ({error.strerror}); check the file and its permissions") from error
    for line_number, line in enumerate(lines, start=1):
        if line.strip():
            try:
                record = read_json(line)
            except DoubledNameError as error:
                raise CorpusError(f"{path}:{line_number}: {error}; leave one of them out") from error
            except (ValueError, RecursionError) as error:
                raise CorpusError(f"{path}:{line_number}: invalid JSON; {_FIX}") from error
            try:
                yield _Record.model_validate(record)
            except ValidationError as error:
                first: Any = error.errors()[0]
                field = "".join(f"'{name}' " for name in first["loc"])
                raise CorpusError(
                    f"{path}:{line_number}: {field}{humanise(first).partition(';')[0]}; {_FIX}"
                ) from error


def words_of_standard_library(max_tokens: int = _MOST_TOKENS) -> tuple[list[int], Fingerprint]:
    """Return real text that needs no tokenizer: words of Python's standard library as ids, with a fingerprint.

    Args:
        max_tokens: number of tokens at which reading stops.
    """
    ids: dict[str, int] = {}
    token_ids: list[int] = []
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="replace")
        token_ids.extend(ids.setdefault(word, len(ids)) for word in _WORDS.findall(text))
        if len(token_ids) >= max_tokens:
            break
    return token_ids, Fingerprint("words of Python's sources", "57" * 32, len(ids))


def drawn_texts(graph: NgramGraph, num_texts: int, num_tokens: int) -> list[list[int]]:
    """Return texts sampled from a graph; where the graph knows no continuation, a random token follows."""
    from speculant_graph.draft.generator import DraftGenerator

    generator = DraftGenerator(graph)
    random = np.random.default_rng(0)
    texts = []
    for index in range(num_texts):
        text: list[int] = []
        while len(text) < num_tokens:
            drawn = generator.draft(
                text[-graph.max_order :], _TOKENS_AT_A_TIME, "sampling", seed=index, position=len(text)
            )
            text.extend(drawn.token_ids or [int(random.integers(graph.vocabulary_size))])
        texts.append(text[:num_tokens])
    return texts
