"""What a bench decodes: prompts, and where outputs are replayed, what the model is made to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from speculant_graph.bench.replay_traces import read_workloads
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.types import TokenId
from speculant_verifier.model import TargetModel
from speculant_verifier.structured import Grammar


@dataclass(frozen=True, slots=True)
class Case:
    """One request."""

    prompt: tuple[TokenId, ...]
    """At least one token."""
    max_tokens: int
    """Most tokens to decode."""
    forced: tuple[TokenId, ...] | None = None
    """What the model is made to write, ``max_tokens`` tokens; None: its own choice."""
    grammar: Grammar | None = None
    """The output's form."""
    hint: tuple[TokenId, ...] = ()
    """A prediction of the output."""


@dataclass(frozen=True, slots=True)
class CaseGroup:
    """Requests that belong together."""

    name: str
    """For people."""
    cases: tuple[Case, ...]
    """At least one."""


def prompt_cases(texts: Sequence[str], target: TargetModel, max_tokens: int, name: str) -> CaseGroup:
    """Make requests of texts.

    Raises:
        ConfigError: a prompt and its continuation are too long for the model.
    """
    cases = tuple(Case(tuple(target.encode(text)), max_tokens) for text in texts)
    return CaseGroup(name, _fitting(cases, target, name))


def replay_cases(paths: Sequence[Path], target: TargetModel, limit: int | None, max_tokens: int) -> list[CaseGroup]:
    """Make requests of recorded outputs, of which the first ``max_tokens`` tokens are replayed.

    Raises:
        CorpusError: a file can't be read, or holds no traces.
        ConfigError: a trace is too long for the model, or two files are of the same workload.
    """
    tokenizer = CorpusTokenizer.load(target.fingerprint.name, special_tokens="parse")
    groups = []
    for workload in read_workloads(paths, tokenizer, limit):
        outputs = [(trace.prompt, trace.output[:max_tokens]) for trace in workload.traces if trace.prompt]
        if not outputs:
            raise CorpusError(f"workload '{workload.name}' has no trace with a prompt; give each a text to continue")
        cases = tuple(Case(prompt, len(output), output) for prompt, output in outputs)
        groups.append(CaseGroup(workload.name, _fitting(cases, target, workload.name)))
    return groups


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """Read prompts: the field ``prompt`` of JSON Lines if the name ends in .jsonl, else one prompt a line.

    Raises:
        CorpusError: the file can't be read, or there is none in it.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:limit]
    except (OSError, UnicodeDecodeError) as error:
        raise CorpusError(f"{path}: can't be read ({type(error).__name__}); give a file of text in UTF-8") from error
    if not lines:
        raise CorpusError(f"{path}: holds no prompt; write one a line")
    if path.suffix != ".jsonl":
        return lines
    try:
        prompts = [json.loads(line)["prompt"] for line in lines]
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(f"{path}: a line is no JSON object with the field 'prompt'; mend it") from error
    if not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise CorpusError(f"{path}: a prompt is no text, or empty; mend it")
    return prompts


def _fitting(cases: tuple[Case, ...], target: TargetModel, name: str) -> tuple[Case, ...]:
    longest = max(len(case.prompt) + case.max_tokens for case in cases)
    if longest >= target.max_length:
        raise ConfigError(
            f"{name}: a prompt and its continuation have {longest} tokens, but '{target.name}' takes at most "
            f"{target.max_length - 1}; lower --max-tokens or shorten it"
        )
    return cases
