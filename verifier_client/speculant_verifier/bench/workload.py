"""What a bench decodes: prompts, and where outputs are replayed, what the model is made to write."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from speculant_graph.bench.traces import read_workloads
from speculant_graph.corpus.tokenize import CorpusTokenizer
from speculant_graph.errors import ConfigError, CorpusError
from speculant_graph.types import TokenId

if TYPE_CHECKING:
    from speculant_verifier.model import TargetModel
    from speculant_verifier.structured import Grammar


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request."""

    prompt: tuple[TokenId, ...]
    """At least one token."""
    max_tokens: int
    """Most tokens to decode."""
    forced: tuple[TokenId, ...] | None = None
    """What the model is made to write, ``max_tokens`` tokens; None: its own choice."""
    grammar: Grammar | None = None
    """The output's form."""


@dataclass(frozen=True, slots=True)
class RequestGroup:
    """Requests that belong together."""

    name: str
    """For people."""
    requests: tuple[BenchRequest, ...]
    """At least one."""


def prompt_group(texts: Sequence[str], target: TargetModel, max_tokens: int, name: str) -> RequestGroup:
    """Make requests of texts.

    Raises:
        ConfigError: a prompt and its continuation are too long for the model.
    """
    requests = tuple(BenchRequest(tuple(target.encode(text)), max_tokens) for text in texts)
    return _fitting(RequestGroup(name, requests), target)


def replay_groups(paths: Sequence[Path], target: TargetModel, limit: int | None, max_tokens: int) -> list[RequestGroup]:
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
        requests = tuple(BenchRequest(prompt, len(output), output) for prompt, output in outputs)
        groups.append(_fitting(RequestGroup(workload.name, requests), target))
    return groups


def read_prompts(path: Path, limit: int | None) -> list[str]:
    """Read prompts: the field ``prompt`` of JSON Lines if the name ends in .jsonl, else one prompt a line.

    Raises:
        CorpusError: the file can't be read, or there is none in it.
    """
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()][:limit]
        prompts = [json.loads(line)["prompt"] for line in lines] if path.suffix == ".jsonl" else lines
    except OSError as error:
        raise CorpusError(f"{path}: can't be read ({error.strerror}); check the file and its permissions") from error
    except (ValueError, KeyError, TypeError) as error:
        raise CorpusError(
            f"{path}: is no text in UTF-8, or a line is no JSON object with the field 'prompt'; correct it"
        ) from error
    if not prompts or not all(isinstance(prompt, str) and prompt for prompt in prompts):
        raise CorpusError(f"{path}: holds no prompt, or an empty one; write one a line")
    return prompts


def _fitting(group: RequestGroup, target: TargetModel) -> RequestGroup:
    longest = max(len(request.prompt) + request.max_tokens for request in group.requests)
    if longest >= target.max_length:
        raise ConfigError(
            f"{group.name}: a prompt and its continuation have {longest} tokens, but '{target.name}' takes at most "
            f"{target.max_length - 1}; lower --max-tokens or shorten it"
        )
    return group
