"""Declares every setting of the project once: name, type, default, bounds and meaning.

:mod:`speculant_graph.settings` makes flags, environment variables, TOML keys and '--help' from these classes. All
classes are frozen and refuse unknown names.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Literal, get_args

from pydantic import AfterValidator, BeforeValidator, ByteSize, Field, SecretStr

from speculant_graph.base_config import Config, check_encoding
from speculant_graph.strategies import NGRAM_STRATEGIES, NgramStrategyName, StrategyName, described
from speculant_graph.types import (
    OnErrorName,
    RuleName,
    SourceName,
    SpecialTokensName,
    TokenId,
)

DEFAULT_MODEL = "openai/gpt-oss-20b"
"""Default target model, which this project is made for."""

MINIMUM_BUILD_MEMORY = 512_000_000
"""Minimum memory limit of a build, in bytes, for Python, the tokenizer and the smallest useful partition."""


def _split(names: object) -> object:
    return names.split(",") if isinstance(names, str) else names


class GraphConfig(Config):
    """How a graph is built from text."""

    tokenizer_name: str = DEFAULT_MODEL
    """Tokenizer: a name on the hub or a folder. The target model must use the same tokenizer."""
    max_order: Annotated[int, Field(ge=1, le=10)] = 5
    """Length of the longest context in tokens. Contexts of every length from 1 to this maximum are counted."""
    chunk_size: Annotated[int, Field(ge=1_024)] = 1_000_000
    """Number of characters tokenised at a time. More is faster, takes more memory, and gives the same graph."""
    hf_token: SecretStr | None = None
    """Access token for gated tokenizers on the hub."""
    text_field: str = "text"
    """Field of JSON and JSON Lines records that holds the text, or a list of token ids, which are counted unchanged.
    Dots in the field's name lead into nested objects and into each element of a list."""
    encoding: Annotated[str, AfterValidator(check_encoding)] = "auto"
    """Encoding of files that are not UTF-8, such as cp1252. 'auto' recognises many encodings and refuses ambiguous
    files."""
    on_error: OnErrorName = "fail"
    """Handling of unreadable files and records: 'fail' reports all of them and builds nothing, 'skip' leaves them out
    and lists them in the graph."""
    special_tokens: SpecialTokensName = "text"
    """Treatment of special tokens spelled out in a text, such as '<|start|>': 'text' encodes them as ordinary text,
    'parse' as special tokens. 'parse' is for trusted text, such as the model's own recorded outputs."""
    document_boundaries: bool = False
    """Count only n-grams within one document (a file or a JSON record), never across two documents."""
    neural: bool = True
    """Train a small neural model on the text. The neural model drafts text that the corpus does not contain word for
    word. Training takes up to half a minute, and the model adds up to 10 MB to the graph file."""
    memory: Annotated[ByteSize, Field(ge=MINIMUM_BUILD_MEMORY)] = ByteSize(2_000_000_000)
    """Memory limit of a build, such as 2GB, not counting memory-mapped files; the corpus may be larger."""


class DraftConfig(Config):
    """How much to draft, by which strategy, and from which sources."""

    k: Annotated[int, Field(ge=0, le=2_048)] = 8
    """Maximum number of tokens drafted per step; 0 turns speculation off."""
    strategy: Annotated[StrategyName, Field(description=described(get_args(StrategyName)))] = "tree"
    """Strategy that makes the drafts; :data:`~speculant_graph.strategies.STRATEGIES` has the text of ``--help``."""
    max_candidates: Annotated[int, Field(ge=0)] = 0
    """Maximum number of tokens that a draft distribution q may contain. Before a token is drawn, the distribution is
    cut to this number and renormalised. 0 keeps the whole distribution."""
    temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Temperature of 'sampling'. The draft distribution is raised to the power of 1 / temperature, capped at
    'max_candidates' tokens, normalised, and returned as q. A temperature below 1 favours the most probable tokens, and
    a temperature above 1 the less probable tokens."""
    sources: Annotated[frozenset[SourceName], BeforeValidator(_split)] = frozenset(get_args(SourceName))
    """Sources that 'tree', 'adaptive' and 'specexec' draft from. 'corpus' is the graph, 'session' the sequence itself,
    and 'learned' accepted text of earlier sequences. 'recycled' is the target's own top tokens. 'neural' is the graph's
    neural model, and a small network that mixes all sources."""
    max_depth: Annotated[int, Field(ge=1, le=255)] = 24
    """Longest path of a draft tree, in tokens."""
    max_branches: Annotated[int, Field(ge=1, le=64)] = 64
    """Maximum number of children of a node in a draft tree. For 'specexec' with a draft model, this is also the maximum
    number of nodes in one forward pass of the draft model."""
    max_learned_tokens: Annotated[int, Field(ge=0)] = 1_000_000
    """Maximum number of accepted tokens kept per tenant; the oldest are dropped first. 0 keeps none."""
    n: Annotated[int, Field(ge=2, le=16)] = 4
    """Length of the longest n-gram of the strategy 'nasd' in tokens, one more than the length of its context."""
    filler_top_k: Annotated[int, Field(ge=0, le=64)] = 3
    """Number of the target's most probable tokens that the strategy 'nasd' learns per position. 1 or 0 learns only the
    emitted token."""
    stop_if_unknown: bool = True
    """Whether the strategy 'nasd' ends a draft at an unknown context; if not, it drafts a random token there."""


class NgramDraftConfig(DraftConfig):
    """Drafting settings outside a verifier: strategies that only a verifier can run are not available."""

    strategy: Annotated[NgramStrategyName, Field(description=described(NGRAM_STRATEGIES))] = "tree"
    """Strategy that makes the drafts, as in :class:`DraftConfig`."""

    @classmethod
    def section(cls) -> str:
        """Return the name of the section that all drafting settings share: ``draft``."""
        return DraftConfig.section()


class VerifierConfig(Config):
    """Which target model verifies drafts, and where it runs."""

    model_name: str = DEFAULT_MODEL
    """Target model: a name on the hub or a folder."""
    tokenizer_name: str | None = None
    """Tokenizer: a name on the hub or a folder; by default the model's own."""
    device: str = "auto"
    """Device of the model: 'auto', 'cpu', 'cuda', 'cuda:1', ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; 'auto' keeps the checkpoint's own on a GPU and uses float32 on a CPU."""
    num_threads: Annotated[int, Field(ge=0)] = 0
    """Number of CPU threads of torch; 0 takes all cores but one. If threads wait for a busy core, every step
    becomes slower."""
    cuda_graphs: bool = True
    """On a GPU, record forward passes as CUDA graphs. With CUDA graphs, a forward pass needs one launch instead of
    thousands, but somewhat more memory."""
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    """Maximum number of sequences decoded together; others wait for a free slot."""
    max_kv_tokens: Annotated[int, Field(ge=0)] = 0
    """Maximum size of the KV cache in tokens: the number of running sequences times the longest length that any of them
    may reach. Requests wait until the cache has space. 0 allows the largest batch at the model's longest context."""
    target_cache: ByteSize = ByteSize(0)
    """Memory for a cache of the target's logits by prefix (SpecExec's speculative cache). A prefix in this cache needs
    no forward pass of the target."""
    prefix_cache: ByteSize = ByteSize(1_000_000_000)
    """Memory for KV cache entries of finished requests, which prompts with the same prefix reuse. If weights are
    streamed, the prefix cache is off unless this setting is given."""
    measure_costs: bool = True
    """Measure the time of forward passes for a few seconds when a model is first used with drafts on this machine. The
    result is kept in the cache folder. Without this measurement, typical costs of a forward pass are assumed."""
    memory_budget: ByteSize = ByteSize(0)
    """Memory limit, such as 6GB, of the process, or of the GPU if the model runs on a GPU. Weights that do not fit are
    streamed from the disk, or from this machine's memory. 0 uses ``memory_fraction``."""
    host_budget: ByteSize = ByteSize(0)
    """Limit on this machine's memory, such as 20GB, for weights that are not in GPU memory. Weights beyond this limit
    are read from the disk. 0 uses ``memory_fraction``."""
    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Fraction of the free memory that is used on the GPU and on this machine, wherever no memory budget is set."""
    resident_layers: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of decoder layers in memory. For a mixture of experts, memory has space for the experts of at most
    this many layers. By default, memory holds as many layers as fit."""
    hf_token: SecretStr | None = None
    """Access token for gated models on the hub."""


class ClientConfig(Config):
    """Connection to drafter sidecars, and the deadline of a step."""

    address: str = ""
    """Sidecar addresses, separated by commas: 'unix:///path/to.sock', 'host:port', or 'dns:///name:port' for every
    address of a DNS name. Each tenant uses one sidecar. Empty: draft in this process."""
    graph: str = ""
    """Name of the graph to draft from, or up to four names joined by '+'; empty: the sidecar's default."""
    tenant: str = ""
    """Tenant of the decoded text. Accepted text of a tenant helps to draft later sequences of the same tenant only."""
    learn: bool = True
    """Let later sequences of the tenant draft from this client's accepted text."""
    deadline_ms: Annotated[float, Field(gt=0)] = 20.0
    """Longest wait for a step's draft, in milliseconds."""
    tls_ca: Path | None = None
    """Certificates (PEM) of the authorities to trust; setting them enables encryption (TLS)."""
    tls_certificate: Path | None = None
    """Certificate (PEM) of this client, for sidecars that require one."""
    tls_key: Path | None = None
    """Private key (PEM) of this client's certificate."""
    token: SecretStr | None = None
    """Bearer token, for sidecars that require one."""


class AccessConfig(Config):
    """Which clients may use a server (the sidecar or the verifier), and its TLS certificates."""

    file: Path | None = None
    """TOML file that lists the permitted clients with their tenants and graphs. Without this file, every client that
    can connect may use everything."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM) of this server; if set, connections to TCP addresses are encrypted."""
    tls_key: Path | None = None
    """Private key (PEM) of this server's certificate."""
    tls_client_ca: Path | None = None
    """Certificates (PEM) of authorities; every client must present a certificate that one of them has signed. Without
    this setting, clients need no certificate."""


OPEN_ACCESS = AccessConfig()
"""Access settings that give full access to every client."""


class ServerConfig(Config):
    """The drafter sidecar."""

    listen: str = "unix:///tmp/speculant-drafter/drafter.sock"
    """Addresses to serve on, separated by commas: 'unix:///path/to.sock' or 'host:port'."""
    admin_listen: str = ""
    """Address of the admin service, which must not be public; empty: not served."""
    metrics_listen: str = ""
    """'host:port' of Prometheus metrics and /healthz over HTTP. The explorer is served at this address, too, if only
    this machine can reach it. Empty: not served."""
    graph: Path = Path("graph.pkl")
    """Default graph: a file, or an address such as s3://bucket/graph.pkl, which is downloaded. The graph's name is the
    file name without the suffix."""
    graphs: dict[str, Path] = Field(default={})
    """More graph files to serve, each under a name: docs=docs.pkl"""
    default: str = ""
    """Graphs for sessions that name no graph: up to four names joined by '+', such as docs+house. Each of these graphs
    is a separate source of drafts. Empty: server.graph."""
    tenant_graphs: dict[str, str] = Field(default={})
    """Graphs for a tenant's sessions that name no graph: acme=docs+acme-history"""
    learned: Path | None = None
    """Folder that keeps accepted text for later sequences, across restarts. Without a folder, accepted text is kept
    only in memory."""
    max_session_memory: Annotated[ByteSize, Field(ge=1_000_000)] = ByteSize(1_000_000_000)
    """Memory limit of all sessions together, such as 1GB; beyond it, the sessions that have been idle longest are
    dropped."""


class FoldConfig(Config):
    """How the oldest learned text of a tenant becomes graph files instead of being lost."""

    enabled: bool = True
    """Fold the oldest learned text into graph files, if a folder for learned text is set. Without folding, text beyond
    draft.max_learned_tokens is lost."""
    young_tokens: Annotated[int, Field(ge=2)] = 262_144
    """Maximum number of accepted tokens that a tenant keeps as text. Beyond this maximum, a low-priority process counts
    the oldest half into a graph file of the tenant."""
    max_tokens: Annotated[int, Field(ge=0)] = 8_000_000
    """Maximum number of tokens in a tenant's graph files; a token takes some 50 bytes. Beyond this maximum, the oldest
    graph file, which has at most half as many tokens, is deleted. 0: no limit."""
    max_days: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """Days after which learned text is deleted; text in graph files may stay up to 1.5 times as long. 0: never."""


_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:[0-9]{1,5})?")
_DEFAULT_PORTS = (("http://", ":80"), ("https://", ":443"))


def _split_origins(origins: object) -> object:
    return [part.strip() for part in origins.split(",") if part.strip()] if isinstance(origins, str) else origins


def _check_origin(origin: str) -> str:
    origin = origin.lower()  # as browsers write it
    if origin != "*" and not _ORIGIN.fullmatch(origin):
        raise ValueError("must be '*', or the scheme and host of a page, such as https://app.example:8443")
    if any(origin.startswith(scheme) and origin.endswith(port) for scheme, port in _DEFAULT_PORTS):
        raise ValueError("must not name its scheme's own port, which browsers leave out")
    return origin


_Origin = Annotated[str, AfterValidator(_check_origin)]


class ServiceConfig(Config):
    """The verifier as a service over gRPC and HTTP."""

    listen: str = "unix:///tmp/speculant-verifier/verifier.sock"
    """Addresses of the gRPC service, separated by commas: 'unix:///path/to.sock' or 'host:port'; empty: not served."""
    admin_listen: str = ""
    """Address of the admin service, which must not be public; empty: not served."""
    http: str = "127.0.0.1:8000"
    """'host:port' of the OpenAI-compatible API over HTTP, with /healthz and /metrics; empty: not served."""
    model_id: str = ""
    """Name of the model in the HTTP API; empty: the last part of the model's name."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Maximum number of requests that wait for a slot in the batch; further requests are refused until there is
    capacity."""
    cors_origins: Annotated[tuple[_Origin, ...], BeforeValidator(_split_origins)] = ()
    """Origins of web pages that may call the HTTP API from a browser, such as https://app.example, separated by commas;
    '*': all pages. Empty: none."""


def _not_tiny(temperature: float) -> float:
    if 0.0 < temperature < 1e-3:
        raise ValueError("must be 0 (greedy) or at least 0.001")
    return temperature


class GenerationConfig(Config):
    """Settings of a request: sampling, length and verification of its output."""

    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Maximum number of new tokens."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False), AfterValidator(_not_tiny)] = 0.0
    """Sampling temperature. 0 is greedy and ignores 'top_k', 'top_p' and 'min_p'. Values between 0 and 0.001 are
    refused, because logits would overflow."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the most probable tokens up to this cumulative probability."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Drop tokens whose probability is below this share of the highest probability."""
    repetition_penalty: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Penalty on tokens that are already in the sequence. A penalty above 1 makes these tokens less probable."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Value that is subtracted from the logit of every token that was emitted."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Value that is subtracted from a token's logit once for each time the token was emitted."""
    logit_bias: dict[TokenId, float] = Field(default={})
    """Values that are added to the logits of tokens, by token id."""
    json_schema: str = ""
    """JSON schema that the output must match, as JSON text; '{}' allows any JSON. 'json_schema' can't be combined with
    'grammar'."""
    grammar: str = ""
    """Grammar that the output must match, in llguidance's variant of Lark or in llguidance's JSON format. For example,
    'start: /[0-9]+/' is a regular expression, and 'start: "yes" | "no"' is a choice."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Minimum number of new tokens before an end token is allowed."""
    stop: tuple[str, ...] = ()
    """Stop texts. The output ends before the first stop text."""
    end_token_ids: tuple[TokenId, ...] | None = None
    """Ids of the tokens that end the text; by default the model's own."""
    n: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Number of samples of the same prompt; sample i uses the seed plus i."""
    logprobs: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """At every position, return the log-probabilities of the emitted token and of this many most probable tokens.
    Log-probabilities are the model's own, before temperature and other settings change them."""
    rule: RuleName = "follow"
    """Rule by which drafts are verified. With 'follow' (also named 'gumbel') and 'nasd', the output depends only on
    prompt, settings and seed. 'nasd' checks only the most probable proposal. With 'follow', 'gumbel' and 'nasd', the
    strategy 'sampling' draws with the rule's own noise, which raises the acceptance rate. The rules 'token' (rejection
    sampling), 'block' (block verification), 'tree-wor' and 'tree-iid' keep only the distribution of the output, not the
    output itself. 'tree-wor' and 'tree-iid' verify trees with siblings drawn without replacement, or independently."""
    speculation: Literal["auto", "on", "off"] = "auto"
    """Whether to use drafts: 'auto' drafts as many tokens as pay off, 'on' as many as 'draft.k' allows. 'off' is plain
    decoding, one pass per token, without 'verifier.target_cache'. With the rules 'follow', 'gumbel' and 'nasd', all
    three values give the same text."""
    node_budget: Annotated[int, Field(ge=0)] | None = None
    """Maximum tokens drafted per step for this request, at most 'draft.k'; 0 drafts none. With the rules 'follow',
    'gumbel' and 'nasd', this limit does not change the text, and neither do the other draft settings of a request."""
    max_depth: Annotated[int, Field(ge=1)] | None = None
    """Longest drafted path in tokens, at most 'draft.max_depth'."""
    draft_temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Temperature of the strategy 'sampling', instead of 'draft.temperature'."""
    draft_n: Annotated[int, Field(ge=2)] | None = None
    """Length of the longest n-gram that the strategy 'nasd' looks up, in tokens, at most 'draft.n'."""
    draft_filler_top_k: Annotated[int, Field(ge=0)] | None = None
    """Number of the target's most probable tokens that 'nasd' learns per position, at most 'draft.filler_top_k'."""
    draft_stop_if_unknown: bool | None = None
    """Whether the strategy 'nasd' ends a draft at an unknown context."""
    prediction: str | tuple[TokenId, ...] = ""
    """Text that parts of the output may resemble, such as the file to edit. The drafter drafts from this text, too."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the request's random streams."""
    ignore_end_tokens: bool = False
    """Continue after the model's end token, up to 'max_tokens'."""


class DraftModelConfig(Config):
    """A small language model that drafts with the graph, in the verifier's process and on its device."""

    name: str = ""
    """Draft model: any causal model with the target's tokenizer, as a name on the hub or a folder; empty: none."""
    adapter: str = ""
    """LoRA adapter that the draft model starts with: a folder, or the name of one of 'adapters'; empty: none."""
    adapters: dict[str, Path] = Field(default={})
    """Adapter folders, each under a name: legal=adapters/legal"""


class RecordConfig(Config):
    """Detailed mode: records whole requests in a database, to show where drafts fail and to train a draft model."""

    folder: Path | None = None
    """Folder of a SQLite database of finished requests. A record has prompt and output as token ids and, for each
    position, the drafted tokens, their sources, acceptance, and the target's most probable tokens. None: no records."""
    threshold: Literal["relative"] | Annotated[float, Field(ge=0.0, le=1.0)] = "relative"
    """Acceptance rate below which a request is a failure, counted over positions with drafted tokens. 'relative' stands
    for the rate of the tenant's latest 100 requests. A request without drafts is not a failure."""
    max_bytes: Annotated[ByteSize, Field(ge=10_000)] = ByteSize(200_000_000)
    """Maximum size, in bytes, of the recorded failures. The replay sample of the other requests has a separate limit of
    the same size. Beyond a limit, the oldest records are deleted."""


class TrainConfig(Config):
    """How a LoRA adapter of the draft model is trained on records."""

    rank: Annotated[int, Field(ge=1, le=1_024)] = 8
    """Rank of the adapter's matrices. In a model of a billion parameters, the default trains about half a percent of
    them. Models of a few million parameters need a rank of about half their width."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3e-3
    """Highest learning rate, with warm-up and cosine decay. Models of billions of parameters may need a tenth of the
    default."""
    epochs: Annotated[float, Field(gt=0.0)] = 4.0
    """Number of passes over the failures. The adapter state with the lowest loss on held-out requests is kept."""
    min_failures: Annotated[int, Field(ge=0)] = 0
    """Number of new failures after which 'speculant verifier' trains an adapter; 0: it never trains on its own. Other
    commands ignore this setting."""
