"""How an answer came about, summed over its choices."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise, zip_longest

from speculant_graph.types import TokenId
from speculant_verifier.http.answers import CompletionDetails, PromptDetails, Seconds, Speculation, Usage
from speculant_verifier.results import GenerationResult


def usage_of(
    prompt_lengths: Sequence[int], results: Sequence[GenerationResult], predicted: Sequence[TokenId] = ()
) -> Usage:
    """Count tokens.

    Args:
        prompt_lengths: of each prompt once.
        results: of all samples, those of a prompt in a row.
        predicted: the request's prediction.
    """
    prompt, completion = sum(prompt_lengths), sum(len(result.token_ids) for result in results)
    num_samples = max(1, len(results) // max(1, len(prompt_lengths)))
    cached = sum(
        min(each.num_from_prefix_cache for each in results[start : start + num_samples])
        for start in range(0, len(results), num_samples)
    )
    details = {}
    if predicted:
        accepted = sum(min(result.num_accepted, _num_shared(predicted, result.token_ids)) for result in results)
        details["completion_tokens_details"] = CompletionDetails(
            accepted_prediction_tokens=accepted,
            rejected_prediction_tokens=len(predicted) * len(results) - accepted,
        )
    return Usage(
        prompt_tokens=prompt,
        completion_tokens=completion,
        total_tokens=prompt + completion,
        prompt_tokens_details=PromptDetails(cached_tokens=cached),
        **details,
    )


def _num_shared(predicted: Sequence[TokenId], output: Sequence[TokenId]) -> int:
    """Return how many tokens of an output stand behind the same token as in a prediction, at most all of that."""
    pairs = set(pairwise(predicted))
    return min(len(predicted), sum(pair in pairs for pair in pairwise(output)))


def speculation_of(seed: int, results: Sequence[GenerationResult]) -> Speculation:
    """Sum up what was drafted and accepted.

    Args:
        seed: of the request.
        results: of all samples, at least one.
    """
    drafted = [sum(counts) for counts in zip_longest(*(each.drafted_by_depth for each in results), fillvalue=0)]
    accepted = [sum(counts) for counts in zip_longest(*(each.accepted_by_depth for each in results), fillvalue=0)]
    num_steps = sum(result.num_steps for result in results)
    num_tokens = sum(len(result.token_ids) for result in results)
    num_cached = sum(result.num_from_target_cache for result in results)
    times = max((result.times for result in results), key=lambda each: each.total_s)
    warning = next((result.warning for result in results if result.warning), "")
    return Speculation(
        seed=seed,
        steps=num_steps,
        steps_without_drafter=sum(result.num_steps_without_drafter for result in results),
        drafted=sum(drafted),
        accepted=sum(accepted),
        drafts=sum(result.num_drafts for result in results),
        from_target_cache=num_cached,
        mean_accepted_tokens=(num_tokens - num_cached) / num_steps if num_steps else None,
        tree_hit_rate=sum(result.num_from_tree for result in results) / max(1, num_tokens),
        target_cache_hit_rate=num_cached / max(1, num_tokens),
        acceptance_by_depth=[
            part / whole if whole else 0.0 for part, whole in zip_longest(accepted, drafted, fillvalue=0)
        ],
        seconds=Seconds(
            prefill=times.prefill_s,
            draft=times.draft_s,
            forward=times.forward_s,
            verify=times.verify_s,
            commit=times.commit_s,
            stall=times.stall_s,
            other=times.other_s,
            first_token=times.first_token_s,
            total=times.total_s,
        ),
        **({"warning": warning} if warning else {}),
    )
