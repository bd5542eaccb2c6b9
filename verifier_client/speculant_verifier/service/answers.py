"""A decoder's outputs, as messages of the wire."""

from __future__ import annotations

from typing import Any

from google.protobuf.duration_pb2 import Duration

from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_verifier.engine import StepOutput
from speculant_verifier.results import FinishReason, GenerationResult, StepEvent, TokenLogprobs

_FINISH_REASON: dict[FinishReason | None, Any] = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "error": pb.FINISH_REASON_ERROR,
}


def generate_response(event: StepEvent, seed: int) -> pb.GenerateResponse:
    """Return the message of one step.

    Args:
        event: what it emitted.
        seed: of the request.
    """
    response = pb.GenerateResponse(
        sample=event.sample,
        token_ids=event.token_ids,
        num_accepted=event.num_accepted,
        text=event.text,
        logprobs=map(_logprobs, event.logprobs),
    )
    if event.result is not None:
        response.finish_reason = _FINISH_REASON[event.result.finish_reason]
        response.statistics.CopyFrom(_statistics(event.result, seed + event.sample))
    return response


def verify_response(step_id: int, output: StepOutput, forward_s: float) -> pb.VerifyResponse:
    """Return the message with what became of a draft.

    Args:
        step_id: the request's.
        output: what the engine emitted.
        forward_s: how long the pass took.
    """
    feedback = () if output.feedback is None else output.feedback.ravel().tolist()
    return pb.VerifyResponse(
        step_id=step_id,
        accepted_nodes=output.path,
        token_ids=output.token_ids,
        finish_reason=_FINISH_REASON[output.finish_reason],
        feedback_tokens=feedback,
        forward_time=_duration(forward_s),
    )


def _statistics(result: GenerationResult, seed: int) -> pb.GenerationStatistics:
    return pb.GenerationStatistics(
        num_prompt_tokens=len(result.prompt_token_ids),
        num_tokens=len(result.token_ids),
        num_steps=result.num_steps,
        num_steps_without_drafter=result.num_steps_without_drafter,
        num_drafted=result.num_drafted,
        num_accepted=result.num_accepted,
        drafted_by_depth=result.drafted_by_depth,
        accepted_by_depth=result.accepted_by_depth,
        time_to_first_token=_duration(result.times.first_token_s),
        total_time=_duration(result.times.total_s),
        seed=seed % (1 << 63),
        warning=result.warning,
        num_drafts=result.num_drafts,
        num_from_target_cache=result.num_from_target_cache,
        num_from_prefix_cache=result.num_from_prefix_cache,
    )


def _logprobs(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def _duration(seconds: float) -> Duration:
    duration = Duration()
    duration.FromNanoseconds(int(seconds * 1e9))
    return duration
