"""What ``speculant generate`` shows: text as it comes, and objects for machines."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import TextIO

from rich.console import Console

from speculant_graph.types import TokenId
from speculant_verifier.console import print_event
from speculant_verifier.results import GenerationResult, StepEvent, TokenLogprobs

_Key = tuple[int, int]


class InOrder:
    """Puts the events of samples that are decoded together one sample after the other."""

    def __init__(self, num_samples: Sequence[int]) -> None:
        """Take the number of samples of every prompt."""
        self._keys = [(prompt, sample) for prompt, count in enumerate(num_samples) for sample in range(count)]
        self._next = 0
        self._held: dict[_Key, list[StepEvent]] = {key: [] for key in self._keys}

    def push(self, event: StepEvent) -> Iterator[StepEvent]:
        """Take an event; yield those whose turn it is."""
        self._held[event.prompt_index, event.sample].append(event)
        while self._next < len(self._keys):
            held = self._held[self._keys[self._next]]
            ready, held[:] = [*held], []
            yield from ready
            if not ready or ready[-1].result is None:
                return
            self._next += 1

    def rest(self) -> Iterator[StepEvent]:
        """Yield what still waits, when nothing more will come."""
        for held in self._held.values():
            yield from held
            held.clear()


class TextPrinter:
    """Prints text for people: with a line before each if there are several."""

    def __init__(self, console: Console, num_samples: Sequence[int]) -> None:
        """Take the console and the number of samples of every prompt."""
        self._console, self._num_samples = console, num_samples
        self._current: _Key | None = None
        self._is_unfinished = False

    def print(self, event: StepEvent) -> None:
        """Print one event; those of a sample come together."""
        key = event.prompt_index, event.sample
        if key != self._current:
            self._begin(key)
        print_event(self._console, event)
        self._is_unfinished = event.result is None
        if event.result is not None and (event.result.token_ids or not event.result.error):
            self._console.file.write("\n")
        self._console.file.flush()

    def stop(self) -> None:
        """End the line of a sample that was interrupted."""
        if self._is_unfinished:
            self._is_unfinished = False
            self._console.file.write("\n")
            self._console.file.flush()

    def _begin(self, key: _Key) -> None:
        if self._is_unfinished:  # it was interrupted
            self._console.file.write("\n")
        self._current = key
        if sum(self._num_samples) > 1:
            sample = f", sample {key[1] + 1}" if self._num_samples[key[0]] > 1 else ""
            self._console.print(f"--- prompt {key[0] + 1}{sample}", style="dim", markup=False)


class JsonPrinter:
    """Prints an object a line for every sample that has ended."""

    def __init__(self, output: TextIO, decode: Callable[[Sequence[TokenId]], str]) -> None:
        """Take where objects go, and what turns token ids into text."""
        self._output, self._decode = output, decode

    def print(self, event: StepEvent) -> None:
        """Take one event."""
        if event.result is not None:
            report = {"prompt_index": event.prompt_index, "sample": event.sample, **_fields(event.result)}
            if event.result.logprobs:
                report["logprobs"] = [_logprobs(each, self._decode) for each in event.result.logprobs]
            self._output.write(json.dumps(report) + "\n")
            self._output.flush()

    def stop(self) -> None:
        """Do nothing: what was interrupted has no object."""


def _fields(result: GenerationResult) -> dict[str, object]:
    return {
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "error": result.error or None,
        "num_prompt_tokens": len(result.prompt_token_ids),
        "tokens_per_s": round(result.tokens_per_s, 2),
        "mean_accepted_tokens": None if result.mean_accepted_tokens is None else round(result.mean_accepted_tokens, 4),
        "acceptance_rate": round(result.acceptance_rate, 4),
        "num_steps": result.num_steps,
        "num_steps_without_drafter": result.num_steps_without_drafter,
        "num_drafts": result.num_drafts,
        "num_drafted": result.num_drafted,
        "num_accepted": result.num_accepted,
        "num_from_target_cache": result.num_from_target_cache,
        "num_from_prefix_cache": result.num_from_prefix_cache,
        "tree_hit_rate": round(result.tree_hit_rate, 4),
        "target_cache_hit_rate": round(result.target_cache_hit_rate, 4),
        "drafted_by_depth": list(result.drafted_by_depth),
        "accepted_by_depth": list(result.accepted_by_depth),
        "times": {name: round(value, 6) for name, value in result.times.as_dict().items()},
    }


def _logprobs(at: TokenLogprobs, decode: Callable[[Sequence[TokenId]], str]) -> dict[str, object]:
    def entry(token_id: TokenId, logprob: float) -> dict[str, object]:
        return {"token_id": token_id, "text": decode([token_id]), "logprob": round(logprob, 6)}

    top = [entry(*pair) for pair in zip(at.top_token_ids, at.top_logprobs, strict=True)]
    return entry(at.token_id, at.logprob) | {"top": top}


def ending(reasons: Sequence[str], num_samples: int, missing: str) -> str:
    """Return how the samples of a run ended.

    Args:
        reasons: of those that did.
        num_samples: how many there are.
        missing: what became of the others; empty if there are none.
    """
    all_reasons = [*reasons, *[missing] * (num_samples - len(reasons))] if missing else list(reasons)
    counts = ", ".join(f"{all_reasons.count(reason)} {reason}" for reason in sorted(set(all_reasons)))
    return f", {len(all_reasons)} results ({counts})" if len(all_reasons) > 1 else f", {ended(all_reasons[0])}"


def ended(reason: str) -> str:
    """Return why a sample ended, in words."""
    return reason if reason == "interrupted" else f"ended by {reason}"
