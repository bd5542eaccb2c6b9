"""The gRPC services: streamed generation, and adapter management for operators."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

import grpc
from google.protobuf.message import DecodeError, Message
from loguru import logger

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import ConfigError, DraftRequestError, GenerationRequestError, UnservedRequestError
from speculant_graph.rpc.convert import duration_of
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.serving.grpc_endpoint import Call, CallInterceptor
from speculant_graph.types import RuleName, TokenId
from speculant_verifier.decoder import SpeculativeDecoder
from speculant_verifier.draft_model.adapters import Adapter, Adapters
from speculant_verifier.results import FinishReason, GenerationResult, StepEvent, TokenLogprobs
from speculant_verifier.service.requests import Load, changed, context_problem, events_of, session_options
from speculant_verifier.suitability import require_request

SERVICE_NAME = "speculant_graph.rpc.v1.VerifierService"
ADMIN_SERVICE_NAME = "speculant_graph.rpc.v1.VerifierAdminService"
_FINISH_REASON: dict[FinishReason | None, Any] = {
    None: pb.FINISH_REASON_UNSPECIFIED,
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "error": pb.FINISH_REASON_ERROR,
}
RULE_OF_NUMBER: dict[int, RuleName] = {
    pb.VERIFICATION_RULE_FOLLOW: "follow",
    pb.VERIFICATION_RULE_TOKEN: "token",
    pb.VERIFICATION_RULE_BLOCK: "block",
    pb.VERIFICATION_RULE_NASD: "nasd",
    pb.VERIFICATION_RULE_TREE_WITHOUT_REPLACEMENT: "tree-wor",
    pb.VERIFICATION_RULE_TREE_INDEPENDENT: "tree-iid",
    pb.VERIFICATION_RULE_GUMBEL: "gumbel",
}
"""Names of verification rules, by their numbers in gRPC messages."""

_SEED_BITS = 63
_MOST_ENTRIES = {"logit_biases": 1024, "stop_strings": 16, "stop_token_ids": 1024}
_MOST_CHARACTERS = 1024
_GIVEN_IF_PRESENT = ("max_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "seed")
_OF_DRAFTS = (
    "node_budget", "max_depth", "draft_temperature", "draft_n", "draft_filler_top_k", "draft_stop_if_unknown",
)  # fmt: skip
_GIVEN_IF_NOT_ZERO = (
    "min_tokens", "top_k", "presence_penalty", "frequency_penalty", "json_schema", "grammar", "prediction",
)  # fmt: skip
_REPORTED = (
    "num_steps", "num_steps_without_drafter", "num_drafted", "num_accepted", "drafted_by_depth", "accepted_by_depth",
    "num_drafts", "num_from_target_cache", "num_from_prefix_cache", "num_tried", "rolling_acceptance", "warning",
)  # fmt: skip
"""Fields that a generation result and its statistics message have in common."""


class VerifierService:
    """Implements the generation service of ``verifier.proto``."""

    def __init__(
        self,
        read_decoder: Callable[[], SpeculativeDecoder],
        defaults: GenerationConfig,
        load: Load,
    ) -> None:
        """Create the service.

        Args:
            read_decoder: returns the decoder; raises an error while the model is loading.
            defaults: default settings of requests.
            load: limits the load of all requests.
        """
        self._read_decoder, self._defaults, self._load = read_decoder, defaults, load

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the gRPC handler of the service's methods."""
        return grpc.method_handlers_generic_handler(
            SERVICE_NAME,
            {"Generate": interceptor.answers("Generate", self.generate)},
        )

    async def generate(self, payload: bytes, call: Call) -> None:
        """Continue a prompt, and send one response message per decoding step."""
        decoder = self._read_decoder()
        request = parsed(pb.GenerateRequest, payload)
        speculation = request.speculation
        config = generation_config(request.sampling, speculation, self._defaults, decoder.target.end_token_ids)
        require_request(config, decoder.draft_config)
        learn = speculation.learn if speculation.HasField("learn") else None
        options = session_options(call.principal, speculation.tenant, speculation.graph, learn)
        self._load.require_capacity(config.n)
        prompt = await asyncio.to_thread(_token_ids, request, decoder)
        if request.sampling.HasField("max_tokens"):
            max_length = decoder.target.max_length
            # Admission refuses a prompt that is too long by itself, with a different message.
            if len(prompt) < max_length and (problem := context_problem(len(prompt), config.max_tokens, max_length)):
                raise problem
        await asyncio.to_thread(decoder.target.grammar, config, prompt)  # compiled before decoding begins
        async with aclosing(events_of(decoder, self._load, [prompt], config, options)) as events:
            async for event in events:
                await call.context.write(_response(event, config.seed).SerializeToString())


def parsed(kind: Any, payload: bytes) -> Any:
    """Parse bytes as a message of a protobuf class.

    Raises:
        DraftRequestError: the bytes are not a message of this class.
    """
    try:
        return kind.FromString(payload)
    except DecodeError as error:
        raise DraftRequestError(f"the message is not a {kind.DESCRIPTOR.name}; send one") from error


def _token_ids(request: pb.GenerateRequest, decoder: SpeculativeDecoder) -> list[TokenId]:
    """Return the prompt's token ids; call this in a thread, because a long text takes a while.

    Raises:
        GenerationRequestError: the request has no input, or the conversation can't be read.
    """
    match request.WhichOneof("input"):
        case "prompt":
            return decoder.target.encode(request.prompt)
        case "prompt_tokens":
            return list(request.prompt_tokens.token_ids)
        case "chat":
            return decoder.chat_prompt([{"role": each.role, "content": each.content} for each in request.chat.messages])
    raise GenerationRequestError("the request has no input; set prompt, prompt_tokens or chat")


def _response(event: StepEvent, seed: int) -> pb.GenerateResponse:
    """Return the response message for one decoding step.

    Args:
        event: the step's event.
        seed: the request's seed.
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


def _statistics(result: GenerationResult, seed: int) -> pb.GenerationStatistics:
    same: dict[str, Any] = {name: getattr(result, name) for name in _REPORTED}
    return pb.GenerationStatistics(
        **same,
        num_prompt_tokens=len(result.prompt_token_ids),
        num_tokens=len(result.token_ids),
        time_to_first_token=duration_of(result.times.first_token_s),
        total_time=duration_of(result.times.total_s),
        seed=seed % (1 << 63),
    )


def _logprobs(logprobs: TokenLogprobs) -> pb.TokenLogprobs:
    return pb.TokenLogprobs(
        logprob=logprobs.logprob, top_token_ids=logprobs.top_token_ids, top_logprobs=logprobs.top_logprobs
    )


def generation_config(
    sampling: pb.SamplingOptions,
    speculation: pb.SpeculationOptions,
    defaults: GenerationConfig,
    end_token_ids: frozenset[TokenId],
) -> GenerationConfig:
    """Return the generation settings that a request asks for.

    Args:
        sampling: the request's options for choosing tokens.
        speculation: the request's options for making and verifying drafts.
        defaults: the server's settings, for fields that the request omits. If the request omits the seed, the server
            draws one at random.
        end_token_ids: the model's end tokens.

    Raises:
        GenerationRequestError: a value is not allowed; the message names it.
    """
    for name, most in _MOST_ENTRIES.items():
        if len(getattr(sampling, name)) > most:
            what = f"{{field}} has {len(getattr(sampling, name))} entries"
            raise GenerationRequestError(what, fix=f"send at most {most}", field=name)
    if max(map(len, sampling.stop_strings), default=0) > _MOST_CHARACTERS:
        raise GenerationRequestError(
            "a text of {field} is too long", fix=f"send at most {_MOST_CHARACTERS} characters", field="stop_strings"
        )
    wanted: dict[str, Any] = {name: getattr(sampling, name) for name in _GIVEN_IF_PRESENT if sampling.HasField(name)}
    wanted |= {name: value for name in _GIVEN_IF_NOT_ZERO if (value := getattr(sampling, name))}
    wanted.setdefault("seed", secrets.randbits(_SEED_BITS))
    if sampling.logit_biases:
        wanted["logit_bias"] = {each.token_id: each.bias for each in sampling.logit_biases}
    if sampling.stop_strings:
        wanted["stop"] = tuple(sampling.stop_strings)
    if sampling.stop_token_ids:
        own = frozenset() if sampling.ignore_end_tokens else end_token_ids
        wanted["end_token_ids"] = tuple(sorted(own.union(sampling.stop_token_ids)))
    elif sampling.ignore_end_tokens:
        wanted["ignore_end_tokens"] = True
    if sampling.num_samples:
        wanted["n"] = sampling.num_samples
    if sampling.logprobs or sampling.num_top_logprobs:
        wanted["logprobs"] = sampling.num_top_logprobs
    wanted |= {name: getattr(speculation, name) for name in _OF_DRAFTS if speculation.HasField(name)}
    if speculation.rule:
        wanted["rule"] = _rule(speculation.rule)
    return changed(defaults, wanted)


def _rule(number: int) -> RuleName:
    try:
        return RULE_OF_NUMBER[number]
    except KeyError:
        raise GenerationRequestError(
            f"there is no rule {number}", fix="VerificationRule lists the rules", field="rule"
        ) from None


class VerifierAdminService:
    """Implements the admin service, which manages the draft model's adapters."""

    def __init__(self, read_decoder: Callable[[], SpeculativeDecoder]) -> None:
        """Create the service.

        Args:
            read_decoder: returns the decoder; raises an error while the model is loading.
        """
        self._read_decoder = read_decoder

    def handler(self, interceptor: CallInterceptor) -> grpc.GenericRpcHandler[bytes, bytes]:
        """Return the gRPC handler of the service's methods."""
        methods: dict[str, tuple[Any, Any, Any]] = {
            "ListAdapters": (pb.ListAdaptersRequest, None, pb.ListAdaptersResponse),
            "LoadAdapter": (pb.LoadAdapterRequest, _load, pb.LoadAdapterResponse),
            "RollbackAdapter": (pb.RollbackAdapterRequest, _rollback, pb.RollbackAdapterResponse),
        }
        return grpc.method_handlers_generic_handler(
            ADMIN_SERVICE_NAME,
            {name: interceptor.unary(name, self._guarded(name, *method)) for name, method in methods.items()},
        )

    def _guarded(self, name: str, request_class: Any, method: Any, response_class: Any) -> Any:
        async def answer(payload: bytes, call: Call) -> bytes:
            call.principal.require_admin()
            adapters = self._read_decoder().adapters
            if adapters is None:
                raise UnservedRequestError("the verifier has no draft model", fix="start it with --draft-model")
            request = parsed(request_class, payload)
            try:
                if method is not None:  # every response holds the state, and a list needs nothing else
                    await asyncio.to_thread(method, adapters, request)
            except ConfigError as error:
                raise error.as_class(DraftRequestError) from error
            logger.debug("{} by {}", name, call.principal.name or "anybody")
            response: Message = response_class(state=_state(adapters))
            return response.SerializeToString()

        return answer


def _load(adapters: Adapters, request: pb.LoadAdapterRequest) -> None:
    """Load an adapter by name, so that an operator can't choose which files the server reads."""
    if request.name and request.name not in adapters.names:
        known = ", ".join(adapters.names) or "none, name some in draft_model.adapters"
        raise DraftRequestError(f"there is no adapter of this name; those of the settings are: {known}")
    adapters.load(request.name)


def _rollback(adapters: Adapters, _request: pb.RollbackAdapterRequest) -> None:
    adapters.rollback()


def _state(adapters: Adapters) -> pb.DraftModelState:
    state = adapters.state
    return pb.DraftModelState(
        names=adapters.names,
        present=_adapter(state.present),
        previous=None if state.previous is None else _adapter(state.previous),
        acceptance=state.acceptance,
        judged_tokens=state.num_judged,
        previous_acceptance=state.previous_acceptance,
        passes=state.num_passes,
        passes_time=duration_of(state.passes_s),
    )


def _adapter(adapter: Adapter) -> pb.Adapter:
    return pb.Adapter(name=adapter.name, sha256=bytes.fromhex(adapter.digest))
