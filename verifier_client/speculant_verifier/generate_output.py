"""What ``speculant generate`` shows: text as it comes, objects for machines, and a line of statistics."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence

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

    def _begin(self, key: _Key) -> None:
        if self._is_unfinished:  # it was interrupted
            self._console.file.write("\n")
        self._current = key
        if sum(self._num_samples) > 1:
            sample = f", sample {key[1] + 1}" if self._num_samples[key[0]] > 1 else ""
            self._console.print(f"--- prompt {key[0] + 1}{sample}", style="dim", markup=False)


def json_line(event: StepEvent, result: GenerationResult, decode: Callable[[Sequence[TokenId]], str]) -> str:
    """Return a result as one line of JSON.

    Args:
        event: the last one of the sample.
        result: its result.
        decode: turns token ids into text.
    """
    report: dict[str, object] = {
        "prompt_index": event.prompt_index,
        "sample": event.sample,
        "text": result.text,
        "token_ids": list(result.token_ids),
        "finish_reason": result.finish_reason,
        "error": result.error or None,
        "num_prompt_tokens": len(result.prompt_token_ids),
        "tokens_per_s": round(result.tokens_per_s, 2),
        "mean_accepted_tokens": round(result.mean_accepted_tokens, 4),
        "acceptance_rate": round(result.acceptance_rate, 4),
        "num_steps": result.num_steps,
        "num_steps_without_drafter": result.num_steps_without_drafter,
        "num_drafted": result.num_drafted,
        "num_accepted": result.num_accepted,
        "num_from_target_cache": result.num_from_target_cache,
        "drafted_by_depth": list(result.drafted_by_depth),
        "accepted_by_depth": list(result.accepted_by_depth),
        "times": {name: round(value, 6) for name, value in dataclasses.asdict(result.times).items()},
    }
    if result.logprobs:
        report["logprobs"] = [_logprobs(each, decode) for each in result.logprobs]
    return json.dumps(report)


def _logprobs(at: TokenLogprobs, decode: Callable[[Sequence[TokenId]], str]) -> dict[str, object]:
    def entry(token_id: TokenId, logprob: float) -> dict[str, object]:
        return {"token_id": token_id, "text": decode([token_id]), "logprob": round(logprob, 6)}

    top = [entry(*pair) for pair in zip(at.top_token_ids, at.top_logprobs, strict=True)]
    return entry(at.token_id, at.logprob) | {"top": top}


def statistics_line(results: Sequence[GenerationResult], elapsed_s: float) -> str:
    """Return what became of all results.

    Args:
        results: at least one.
        elapsed_s: the time they took together.
    """
    tokens = sum(len(result.token_ids) for result in results)
    steps = sum(result.num_steps for result in results)
    drafted = sum(result.num_drafted for result in results)
    accepted = sum(result.num_accepted for result in results)
    alone = sum(result.num_steps_without_drafter for result in results)
    reasons = sorted({result.finish_reason for result in results})
    counted = ", ".join(f"{sum(each.finish_reason == reason for each in results)} {reason}" for reason in reasons)
    several = f"{len(results)} results ({counted}), " if len(results) > 1 else ""
    end = f", ended by {results[0].finish_reason}" if len(results) == 1 else ""
    return (
        f"{several}{tokens} tokens, {tokens / elapsed_s if elapsed_s else 0.0:.1f} tokens/s, "
        f"{tokens / steps if steps else 0.0:.2f} per step, {accepted} of {drafted} drafted accepted "
        f"({accepted / drafted if drafted else 0.0:.0%}), {alone} of {steps} steps without the drafter{end}"
    )
