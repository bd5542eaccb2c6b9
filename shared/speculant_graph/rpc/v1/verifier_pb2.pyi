import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class VerificationRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERIFICATION_RULE_UNSPECIFIED: _ClassVar[VerificationRule]
    VERIFICATION_RULE_FOLLOW: _ClassVar[VerificationRule]
    VERIFICATION_RULE_TOKEN: _ClassVar[VerificationRule]
    VERIFICATION_RULE_BLOCK: _ClassVar[VerificationRule]
    VERIFICATION_RULE_NASD: _ClassVar[VerificationRule]
    VERIFICATION_RULE_TREE_WITHOUT_REPLACEMENT: _ClassVar[VerificationRule]
    VERIFICATION_RULE_TREE_INDEPENDENT: _ClassVar[VerificationRule]
    VERIFICATION_RULE_GUMBEL: _ClassVar[VerificationRule]

class FinishReason(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    FINISH_REASON_UNSPECIFIED: _ClassVar[FinishReason]
    FINISH_REASON_STOP: _ClassVar[FinishReason]
    FINISH_REASON_LENGTH: _ClassVar[FinishReason]
    FINISH_REASON_ERROR: _ClassVar[FinishReason]
VERIFICATION_RULE_UNSPECIFIED: VerificationRule
VERIFICATION_RULE_FOLLOW: VerificationRule
VERIFICATION_RULE_TOKEN: VerificationRule
VERIFICATION_RULE_BLOCK: VerificationRule
VERIFICATION_RULE_NASD: VerificationRule
VERIFICATION_RULE_TREE_WITHOUT_REPLACEMENT: VerificationRule
VERIFICATION_RULE_TREE_INDEPENDENT: VerificationRule
VERIFICATION_RULE_GUMBEL: VerificationRule
FINISH_REASON_UNSPECIFIED: FinishReason
FINISH_REASON_STOP: FinishReason
FINISH_REASON_LENGTH: FinishReason
FINISH_REASON_ERROR: FinishReason

class TokenBias(_message.Message):
    __slots__ = ("token_id", "bias")
    TOKEN_ID_FIELD_NUMBER: _ClassVar[int]
    BIAS_FIELD_NUMBER: _ClassVar[int]
    token_id: int
    bias: float
    def __init__(self, token_id: _Optional[int] = ..., bias: _Optional[float] = ...) -> None: ...

class TokenSequence(_message.Message):
    __slots__ = ("token_ids",)
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, token_ids: _Optional[_Iterable[int]] = ...) -> None: ...

class SamplingOptions(_message.Message):
    __slots__ = ("max_tokens", "min_tokens", "temperature", "top_k", "top_p", "min_p", "repetition_penalty", "logit_biases", "stop_strings", "stop_token_ids", "ignore_end_tokens", "seed", "num_samples", "num_top_logprobs", "logprobs", "presence_penalty", "frequency_penalty", "json_schema", "grammar", "prediction")
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MIN_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_K_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    MIN_P_FIELD_NUMBER: _ClassVar[int]
    REPETITION_PENALTY_FIELD_NUMBER: _ClassVar[int]
    LOGIT_BIASES_FIELD_NUMBER: _ClassVar[int]
    STOP_STRINGS_FIELD_NUMBER: _ClassVar[int]
    STOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    IGNORE_END_TOKENS_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    NUM_SAMPLES_FIELD_NUMBER: _ClassVar[int]
    NUM_TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    PRESENCE_PENALTY_FIELD_NUMBER: _ClassVar[int]
    FREQUENCY_PENALTY_FIELD_NUMBER: _ClassVar[int]
    JSON_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    GRAMMAR_FIELD_NUMBER: _ClassVar[int]
    PREDICTION_FIELD_NUMBER: _ClassVar[int]
    max_tokens: int
    min_tokens: int
    temperature: float
    top_k: int
    top_p: float
    min_p: float
    repetition_penalty: float
    logit_biases: _containers.RepeatedCompositeFieldContainer[TokenBias]
    stop_strings: _containers.RepeatedScalarFieldContainer[str]
    stop_token_ids: _containers.RepeatedScalarFieldContainer[int]
    ignore_end_tokens: bool
    seed: int
    num_samples: int
    num_top_logprobs: int
    logprobs: bool
    presence_penalty: float
    frequency_penalty: float
    json_schema: str
    grammar: str
    prediction: str
    def __init__(self, max_tokens: _Optional[int] = ..., min_tokens: _Optional[int] = ..., temperature: _Optional[float] = ..., top_k: _Optional[int] = ..., top_p: _Optional[float] = ..., min_p: _Optional[float] = ..., repetition_penalty: _Optional[float] = ..., logit_biases: _Optional[_Iterable[_Union[TokenBias, _Mapping]]] = ..., stop_strings: _Optional[_Iterable[str]] = ..., stop_token_ids: _Optional[_Iterable[int]] = ..., ignore_end_tokens: bool = ..., seed: _Optional[int] = ..., num_samples: _Optional[int] = ..., num_top_logprobs: _Optional[int] = ..., logprobs: bool = ..., presence_penalty: _Optional[float] = ..., frequency_penalty: _Optional[float] = ..., json_schema: _Optional[str] = ..., grammar: _Optional[str] = ..., prediction: _Optional[str] = ...) -> None: ...

class SpeculationOptions(_message.Message):
    __slots__ = ("rule", "graph", "learn", "tenant", "node_budget", "max_depth", "draft_temperature", "draft_n", "draft_filler_top_k", "draft_stop_if_unknown")
    RULE_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    LEARN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    NODE_BUDGET_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    DRAFT_N_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FILLER_TOP_K_FIELD_NUMBER: _ClassVar[int]
    DRAFT_STOP_IF_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    rule: VerificationRule
    graph: str
    learn: bool
    tenant: str
    node_budget: int
    max_depth: int
    draft_temperature: float
    draft_n: int
    draft_filler_top_k: int
    draft_stop_if_unknown: bool
    def __init__(self, rule: _Optional[_Union[VerificationRule, str]] = ..., graph: _Optional[str] = ..., learn: bool = ..., tenant: _Optional[str] = ..., node_budget: _Optional[int] = ..., max_depth: _Optional[int] = ..., draft_temperature: _Optional[float] = ..., draft_n: _Optional[int] = ..., draft_filler_top_k: _Optional[int] = ..., draft_stop_if_unknown: bool = ...) -> None: ...

class ChatMessage(_message.Message):
    __slots__ = ("role", "content")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    role: str
    content: str
    def __init__(self, role: _Optional[str] = ..., content: _Optional[str] = ...) -> None: ...

class Chat(_message.Message):
    __slots__ = ("messages",)
    MESSAGES_FIELD_NUMBER: _ClassVar[int]
    messages: _containers.RepeatedCompositeFieldContainer[ChatMessage]
    def __init__(self, messages: _Optional[_Iterable[_Union[ChatMessage, _Mapping]]] = ...) -> None: ...

class GenerateRequest(_message.Message):
    __slots__ = ("prompt", "prompt_tokens", "chat", "sampling", "speculation")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CHAT_FIELD_NUMBER: _ClassVar[int]
    SAMPLING_FIELD_NUMBER: _ClassVar[int]
    SPECULATION_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    prompt_tokens: TokenSequence
    chat: Chat
    sampling: SamplingOptions
    speculation: SpeculationOptions
    def __init__(self, prompt: _Optional[str] = ..., prompt_tokens: _Optional[_Union[TokenSequence, _Mapping]] = ..., chat: _Optional[_Union[Chat, _Mapping]] = ..., sampling: _Optional[_Union[SamplingOptions, _Mapping]] = ..., speculation: _Optional[_Union[SpeculationOptions, _Mapping]] = ...) -> None: ...

class TokenLogprobs(_message.Message):
    __slots__ = ("logprob", "top_token_ids", "top_logprobs")
    LOGPROB_FIELD_NUMBER: _ClassVar[int]
    TOP_TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    TOP_LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    logprob: float
    top_token_ids: _containers.RepeatedScalarFieldContainer[int]
    top_logprobs: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, logprob: _Optional[float] = ..., top_token_ids: _Optional[_Iterable[int]] = ..., top_logprobs: _Optional[_Iterable[float]] = ...) -> None: ...

class GenerateResponse(_message.Message):
    __slots__ = ("sample", "token_ids", "num_accepted", "text", "logprobs", "finish_reason", "statistics")
    SAMPLE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_IDS_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    LOGPROBS_FIELD_NUMBER: _ClassVar[int]
    FINISH_REASON_FIELD_NUMBER: _ClassVar[int]
    STATISTICS_FIELD_NUMBER: _ClassVar[int]
    sample: int
    token_ids: _containers.RepeatedScalarFieldContainer[int]
    num_accepted: int
    text: str
    logprobs: _containers.RepeatedCompositeFieldContainer[TokenLogprobs]
    finish_reason: FinishReason
    statistics: GenerationStatistics
    def __init__(self, sample: _Optional[int] = ..., token_ids: _Optional[_Iterable[int]] = ..., num_accepted: _Optional[int] = ..., text: _Optional[str] = ..., logprobs: _Optional[_Iterable[_Union[TokenLogprobs, _Mapping]]] = ..., finish_reason: _Optional[_Union[FinishReason, str]] = ..., statistics: _Optional[_Union[GenerationStatistics, _Mapping]] = ...) -> None: ...

class GenerationStatistics(_message.Message):
    __slots__ = ("num_prompt_tokens", "num_tokens", "num_steps", "num_steps_without_drafter", "num_drafted", "num_accepted", "drafted_by_depth", "accepted_by_depth", "time_to_first_token", "total_time", "seed", "warning", "num_drafts", "num_from_target_cache", "num_from_prefix_cache", "num_tried", "rolling_acceptance")
    NUM_PROMPT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_WITHOUT_DRAFTER_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTED_FIELD_NUMBER: _ClassVar[int]
    NUM_ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    DRAFTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    ACCEPTED_BY_DEPTH_FIELD_NUMBER: _ClassVar[int]
    TIME_TO_FIRST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TIME_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    NUM_DRAFTS_FIELD_NUMBER: _ClassVar[int]
    NUM_FROM_TARGET_CACHE_FIELD_NUMBER: _ClassVar[int]
    NUM_FROM_PREFIX_CACHE_FIELD_NUMBER: _ClassVar[int]
    NUM_TRIED_FIELD_NUMBER: _ClassVar[int]
    ROLLING_ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    num_prompt_tokens: int
    num_tokens: int
    num_steps: int
    num_steps_without_drafter: int
    num_drafted: int
    num_accepted: int
    drafted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    accepted_by_depth: _containers.RepeatedScalarFieldContainer[int]
    time_to_first_token: _duration_pb2.Duration
    total_time: _duration_pb2.Duration
    seed: int
    warning: str
    num_drafts: int
    num_from_target_cache: int
    num_from_prefix_cache: int
    num_tried: int
    rolling_acceptance: float
    def __init__(self, num_prompt_tokens: _Optional[int] = ..., num_tokens: _Optional[int] = ..., num_steps: _Optional[int] = ..., num_steps_without_drafter: _Optional[int] = ..., num_drafted: _Optional[int] = ..., num_accepted: _Optional[int] = ..., drafted_by_depth: _Optional[_Iterable[int]] = ..., accepted_by_depth: _Optional[_Iterable[int]] = ..., time_to_first_token: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., total_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., seed: _Optional[int] = ..., warning: _Optional[str] = ..., num_drafts: _Optional[int] = ..., num_from_target_cache: _Optional[int] = ..., num_from_prefix_cache: _Optional[int] = ..., num_tried: _Optional[int] = ..., rolling_acceptance: _Optional[float] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    sha256: bytes
    def __init__(self, name: _Optional[str] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class DraftModelState(_message.Message):
    __slots__ = ("names", "present", "previous", "acceptance", "judged_tokens", "previous_acceptance", "passes", "passes_time")
    NAMES_FIELD_NUMBER: _ClassVar[int]
    PRESENT_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    JUDGED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_ACCEPTANCE_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    PASSES_TIME_FIELD_NUMBER: _ClassVar[int]
    names: _containers.RepeatedScalarFieldContainer[str]
    present: Adapter
    previous: Adapter
    acceptance: float
    judged_tokens: int
    previous_acceptance: float
    passes: int
    passes_time: _duration_pb2.Duration
    def __init__(self, names: _Optional[_Iterable[str]] = ..., present: _Optional[_Union[Adapter, _Mapping]] = ..., previous: _Optional[_Union[Adapter, _Mapping]] = ..., acceptance: _Optional[float] = ..., judged_tokens: _Optional[int] = ..., previous_acceptance: _Optional[float] = ..., passes: _Optional[int] = ..., passes_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListAdaptersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListAdaptersResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: DraftModelState
    def __init__(self, state: _Optional[_Union[DraftModelState, _Mapping]] = ...) -> None: ...

class LoadAdapterRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class LoadAdapterResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: DraftModelState
    def __init__(self, state: _Optional[_Union[DraftModelState, _Mapping]] = ...) -> None: ...

class RollbackAdapterRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RollbackAdapterResponse(_message.Message):
    __slots__ = ("state",)
    STATE_FIELD_NUMBER: _ClassVar[int]
    state: DraftModelState
    def __init__(self, state: _Optional[_Union[DraftModelState, _Mapping]] = ...) -> None: ...
