import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Strategy(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STRATEGY_UNSPECIFIED: _ClassVar[Strategy]
    STRATEGY_GREEDY: _ClassVar[Strategy]
    STRATEGY_SAMPLING: _ClassVar[Strategy]
    STRATEGY_ADAPTIVE: _ClassVar[Strategy]
    STRATEGY_TREE: _ClassVar[Strategy]
    STRATEGY_SPECEXEC: _ClassVar[Strategy]

class Coupling(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COUPLING_UNSPECIFIED: _ClassVar[Coupling]
    COUPLING_NONE: _ClassVar[Coupling]
    COUPLING_GUMBEL: _ClassVar[Coupling]

class Siblings(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SIBLINGS_UNSPECIFIED: _ClassVar[Siblings]
    SIBLINGS_WITHOUT_REPLACEMENT: _ClassVar[Siblings]
    SIBLINGS_INDEPENDENT: _ClassVar[Siblings]

class SourceBit(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SOURCE_BIT_UNSPECIFIED: _ClassVar[SourceBit]
    SOURCE_BIT_CORPUS: _ClassVar[SourceBit]
    SOURCE_BIT_SESSION: _ClassVar[SourceBit]
    SOURCE_BIT_LEARNED: _ClassVar[SourceBit]
    SOURCE_BIT_RECYCLED: _ClassVar[SourceBit]
    SOURCE_BIT_NEURAL: _ClassVar[SourceBit]

class SequenceStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SEQUENCE_STATUS_UNSPECIFIED: _ClassVar[SequenceStatus]
    SEQUENCE_STATUS_OK: _ClassVar[SequenceStatus]
    SEQUENCE_STATUS_SESSION_LOST: _ClassVar[SequenceStatus]
    SEQUENCE_STATUS_OUT_OF_SYNC: _ClassVar[SequenceStatus]
STRATEGY_UNSPECIFIED: Strategy
STRATEGY_GREEDY: Strategy
STRATEGY_SAMPLING: Strategy
STRATEGY_ADAPTIVE: Strategy
STRATEGY_TREE: Strategy
STRATEGY_SPECEXEC: Strategy
COUPLING_UNSPECIFIED: Coupling
COUPLING_NONE: Coupling
COUPLING_GUMBEL: Coupling
SIBLINGS_UNSPECIFIED: Siblings
SIBLINGS_WITHOUT_REPLACEMENT: Siblings
SIBLINGS_INDEPENDENT: Siblings
SOURCE_BIT_UNSPECIFIED: SourceBit
SOURCE_BIT_CORPUS: SourceBit
SOURCE_BIT_SESSION: SourceBit
SOURCE_BIT_LEARNED: SourceBit
SOURCE_BIT_RECYCLED: SourceBit
SOURCE_BIT_NEURAL: SourceBit
SEQUENCE_STATUS_UNSPECIFIED: SequenceStatus
SEQUENCE_STATUS_OK: SequenceStatus
SEQUENCE_STATUS_SESSION_LOST: SequenceStatus
SEQUENCE_STATUS_OUT_OF_SYNC: SequenceStatus

class StrategyOptions(_message.Message):
    __slots__ = ("strategy", "max_depth", "max_branches", "max_candidates", "sources", "omit_proposals", "coupling", "siblings", "temperature", "omit_neural")
    STRATEGY_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    MAX_CANDIDATES_FIELD_NUMBER: _ClassVar[int]
    SOURCES_FIELD_NUMBER: _ClassVar[int]
    OMIT_PROPOSALS_FIELD_NUMBER: _ClassVar[int]
    COUPLING_FIELD_NUMBER: _ClassVar[int]
    SIBLINGS_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    OMIT_NEURAL_FIELD_NUMBER: _ClassVar[int]
    strategy: Strategy
    max_depth: int
    max_branches: int
    max_candidates: int
    sources: int
    omit_proposals: bool
    coupling: Coupling
    siblings: Siblings
    temperature: float
    omit_neural: bool
    def __init__(self, strategy: _Optional[_Union[Strategy, str]] = ..., max_depth: _Optional[int] = ..., max_branches: _Optional[int] = ..., max_candidates: _Optional[int] = ..., sources: _Optional[int] = ..., omit_proposals: bool = ..., coupling: _Optional[_Union[Coupling, str]] = ..., siblings: _Optional[_Union[Siblings, str]] = ..., temperature: _Optional[float] = ..., omit_neural: bool = ...) -> None: ...

class DraftRequest(_message.Message):
    __slots__ = ("graph", "session_ids", "positions", "context_lengths", "context_tokens", "node_budgets", "options", "seeds", "feedback_draft_ids", "feedback_row_counts", "feedback_nodes", "feedback_width", "feedback_tokens", "least_path_probabilities")
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    SESSION_IDS_FIELD_NUMBER: _ClassVar[int]
    POSITIONS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    CONTEXT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NODE_BUDGETS_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    SEEDS_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_DRAFT_IDS_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_ROW_COUNTS_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_NODES_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_WIDTH_FIELD_NUMBER: _ClassVar[int]
    FEEDBACK_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LEAST_PATH_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    graph: str
    session_ids: _containers.RepeatedScalarFieldContainer[int]
    positions: _containers.RepeatedScalarFieldContainer[int]
    context_lengths: _containers.RepeatedScalarFieldContainer[int]
    context_tokens: _containers.RepeatedScalarFieldContainer[int]
    node_budgets: _containers.RepeatedScalarFieldContainer[int]
    options: StrategyOptions
    seeds: _containers.RepeatedScalarFieldContainer[int]
    feedback_draft_ids: _containers.RepeatedScalarFieldContainer[int]
    feedback_row_counts: _containers.RepeatedScalarFieldContainer[int]
    feedback_nodes: _containers.RepeatedScalarFieldContainer[int]
    feedback_width: int
    feedback_tokens: _containers.RepeatedScalarFieldContainer[int]
    least_path_probabilities: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, graph: _Optional[str] = ..., session_ids: _Optional[_Iterable[int]] = ..., positions: _Optional[_Iterable[int]] = ..., context_lengths: _Optional[_Iterable[int]] = ..., context_tokens: _Optional[_Iterable[int]] = ..., node_budgets: _Optional[_Iterable[int]] = ..., options: _Optional[_Union[StrategyOptions, _Mapping]] = ..., seeds: _Optional[_Iterable[int]] = ..., feedback_draft_ids: _Optional[_Iterable[int]] = ..., feedback_row_counts: _Optional[_Iterable[int]] = ..., feedback_nodes: _Optional[_Iterable[int]] = ..., feedback_width: _Optional[int] = ..., feedback_tokens: _Optional[_Iterable[int]] = ..., least_path_probabilities: _Optional[_Iterable[float]] = ...) -> None: ...

class DraftResponse(_message.Message):
    __slots__ = ("graph_generation", "draft_id", "sequence_statuses", "next_positions", "draft_lengths", "draft_tokens", "draft_parents", "draft_path_probabilities", "candidate_counts", "candidate_tokens", "candidate_probabilities", "server_time", "ended_early", "sequence_generations")
    GRAPH_GENERATION_FIELD_NUMBER: _ClassVar[int]
    DRAFT_ID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_STATUSES_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITIONS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_LENGTHS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_TOKENS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PARENTS_FIELD_NUMBER: _ClassVar[int]
    DRAFT_PATH_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_COUNTS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    CANDIDATE_PROBABILITIES_FIELD_NUMBER: _ClassVar[int]
    SERVER_TIME_FIELD_NUMBER: _ClassVar[int]
    ENDED_EARLY_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_GENERATIONS_FIELD_NUMBER: _ClassVar[int]
    graph_generation: int
    draft_id: int
    sequence_statuses: _containers.RepeatedScalarFieldContainer[int]
    next_positions: _containers.RepeatedScalarFieldContainer[int]
    draft_lengths: _containers.RepeatedScalarFieldContainer[int]
    draft_tokens: _containers.RepeatedScalarFieldContainer[int]
    draft_parents: _containers.RepeatedScalarFieldContainer[int]
    draft_path_probabilities: _containers.RepeatedScalarFieldContainer[float]
    candidate_counts: _containers.RepeatedScalarFieldContainer[int]
    candidate_tokens: _containers.RepeatedScalarFieldContainer[int]
    candidate_probabilities: _containers.RepeatedScalarFieldContainer[float]
    server_time: _duration_pb2.Duration
    ended_early: _containers.RepeatedScalarFieldContainer[int]
    sequence_generations: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, graph_generation: _Optional[int] = ..., draft_id: _Optional[int] = ..., sequence_statuses: _Optional[_Iterable[int]] = ..., next_positions: _Optional[_Iterable[int]] = ..., draft_lengths: _Optional[_Iterable[int]] = ..., draft_tokens: _Optional[_Iterable[int]] = ..., draft_parents: _Optional[_Iterable[int]] = ..., draft_path_probabilities: _Optional[_Iterable[float]] = ..., candidate_counts: _Optional[_Iterable[int]] = ..., candidate_tokens: _Optional[_Iterable[int]] = ..., candidate_probabilities: _Optional[_Iterable[float]] = ..., server_time: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., ended_early: _Optional[_Iterable[int]] = ..., sequence_generations: _Optional[_Iterable[int]] = ...) -> None: ...

class StreamDraftRequest(_message.Message):
    __slots__ = ("step_id", "draft")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    draft: DraftRequest
    def __init__(self, step_id: _Optional[int] = ..., draft: _Optional[_Union[DraftRequest, _Mapping]] = ...) -> None: ...

class StreamDraftResponse(_message.Message):
    __slots__ = ("step_id", "draft", "error")
    STEP_ID_FIELD_NUMBER: _ClassVar[int]
    DRAFT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    step_id: int
    draft: DraftResponse
    error: StepError
    def __init__(self, step_id: _Optional[int] = ..., draft: _Optional[_Union[DraftResponse, _Mapping]] = ..., error: _Optional[_Union[StepError, _Mapping]] = ...) -> None: ...

class StepError(_message.Message):
    __slots__ = ("code", "message", "retry_delay")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    retry_delay: _duration_pb2.Duration
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class OpenSessionRequest(_message.Message):
    __slots__ = ("session_id", "graph", "tokenizer_sha256", "learn", "tenant")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    LEARN_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    graph: str
    tokenizer_sha256: bytes
    learn: bool
    tenant: str
    def __init__(self, session_id: _Optional[int] = ..., graph: _Optional[str] = ..., tokenizer_sha256: _Optional[bytes] = ..., learn: bool = ..., tenant: _Optional[str] = ...) -> None: ...

class OpenSessionResponse(_message.Message):
    __slots__ = ("graph_generation", "vocabulary_size", "tokenizer_sha256", "tokenizer_name", "max_order", "next_position")
    GRAPH_GENERATION_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_ORDER_FIELD_NUMBER: _ClassVar[int]
    NEXT_POSITION_FIELD_NUMBER: _ClassVar[int]
    graph_generation: int
    vocabulary_size: int
    tokenizer_sha256: bytes
    tokenizer_name: str
    max_order: int
    next_position: int
    def __init__(self, graph_generation: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., tokenizer_sha256: _Optional[bytes] = ..., tokenizer_name: _Optional[str] = ..., max_order: _Optional[int] = ..., next_position: _Optional[int] = ...) -> None: ...

class CloseSessionRequest(_message.Message):
    __slots__ = ("session_id", "tenant")
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    TENANT_FIELD_NUMBER: _ClassVar[int]
    session_id: int
    tenant: str
    def __init__(self, session_id: _Optional[int] = ..., tenant: _Optional[str] = ...) -> None: ...

class CloseSessionResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GraphInfo(_message.Message):
    __slots__ = ("name", "generation", "corpus_tokens", "max_order", "vocabulary_size", "tokenizer_sha256", "tokenizer_name", "file_bytes", "open_sessions")
    NAME_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    CORPUS_TOKENS_FIELD_NUMBER: _ClassVar[int]
    MAX_ORDER_FIELD_NUMBER: _ClassVar[int]
    VOCABULARY_SIZE_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_SHA256_FIELD_NUMBER: _ClassVar[int]
    TOKENIZER_NAME_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    OPEN_SESSIONS_FIELD_NUMBER: _ClassVar[int]
    name: str
    generation: int
    corpus_tokens: int
    max_order: int
    vocabulary_size: int
    tokenizer_sha256: bytes
    tokenizer_name: str
    file_bytes: int
    open_sessions: int
    def __init__(self, name: _Optional[str] = ..., generation: _Optional[int] = ..., corpus_tokens: _Optional[int] = ..., max_order: _Optional[int] = ..., vocabulary_size: _Optional[int] = ..., tokenizer_sha256: _Optional[bytes] = ..., tokenizer_name: _Optional[str] = ..., file_bytes: _Optional[int] = ..., open_sessions: _Optional[int] = ...) -> None: ...

class ListGraphsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListGraphsResponse(_message.Message):
    __slots__ = ("graphs",)
    GRAPHS_FIELD_NUMBER: _ClassVar[int]
    graphs: _containers.RepeatedCompositeFieldContainer[GraphInfo]
    def __init__(self, graphs: _Optional[_Iterable[_Union[GraphInfo, _Mapping]]] = ...) -> None: ...

class ReloadGraphRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReloadGraphResponse(_message.Message):
    __slots__ = ("graph",)
    GRAPH_FIELD_NUMBER: _ClassVar[int]
    graph: GraphInfo
    def __init__(self, graph: _Optional[_Union[GraphInfo, _Mapping]] = ...) -> None: ...
