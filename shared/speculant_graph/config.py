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
"""Default model, for which the project is made."""

MINIMUM_BUILD_MEMORY = 512_000_000
"""Bytes that Python, the tokenizer and the smallest useful partition take together."""


def _split(names: object) -> object:
    return names.split(",") if isinstance(names, str) else names


class GraphConfig(Config):
    """How a graph is built from text."""

    tokenizer_name: str = DEFAULT_MODEL
    """Tokenizer: a name on the hub or a folder. It must be the tokenizer of the verifier."""
    max_order: Annotated[int, Field(ge=1, le=10)] = 5
    """Longest context in tokens. Contexts of every length from 1 up to it are counted."""
    chunk_size: Annotated[int, Field(ge=1_024)] = 1_000_000
    """Number of characters tokenised at a time. More is faster and takes more memory; the graph is the same."""
    hf_token: SecretStr | None = None
    """Access token for gated tokenizers on the hub."""
    text_field: str = "text"
    """Field of JSON and JSON Lines records that contains the text or a list of token ids, which are counted unchanged.
    Dots in the name lead into nested objects and through lists."""
    encoding: Annotated[str, AfterValidator(check_encoding)] = "auto"
    """Encoding of files that are not UTF-8, such as cp1252. 'auto' recognises many encodings and refuses ambiguous
    files."""
    on_error: OnErrorName = "fail"
    """Handling of unreadable files and records: 'fail' reports all of them and builds nothing, 'skip' leaves them out
    and lists them in the graph."""
    special_tokens: SpecialTokensName = "text"
    """Treatment of special tokens spelled out in a text, such as '<|start|>': 'text' encodes them as ordinary text,
    'parse' as special tokens. Use 'parse' for text that you trust, such as the model's own recorded outputs."""
    document_boundaries: bool = False
    """Count no n-gram that crosses from one document (file or JSON record) into the next."""
    neural: bool = True
    """Train a small neural model on the text. It drafts text that is not in the corpus word for word. Training takes up
    to half a minute, and the model up to 10 MB of the file."""
    memory: Annotated[ByteSize, Field(ge=MINIMUM_BUILD_MEMORY)] = ByteSize(2_000_000_000)
    """Memory limit of a build, such as 2GB; corpora may be larger. Mapped files don't count."""


class DraftConfig(Config):
    """Drafting: how much, by which strategy, from which sources."""

    k: Annotated[int, Field(ge=0, le=2_048)] = 8
    """Maximum number of tokens drafted per step; 0 turns speculation off."""
    strategy: Annotated[StrategyName, Field(description=described(get_args(StrategyName)))] = "tree"
    """How drafts are made; :data:`~speculant_graph.strategies.STRATEGIES` has the text of ``--help``."""
    max_candidates: Annotated[int, Field(ge=0)] = 0
    """Maximum number of tokens in a draft distribution q. The distribution is cut and renormalised before a token is
    drawn. 0 keeps the whole distribution."""
    temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Temperature of 'sampling'. The draft distribution is raised to the power of 1 / temperature, normalised, capped,
    and returned as q. Below 1, the most probable tokens are drawn more often, above 1 the others."""
    sources: Annotated[frozenset[SourceName], BeforeValidator(_split)] = frozenset(get_args(SourceName))
    """Sources of 'tree', 'adaptive' and 'specexec': 'corpus', 'session' (the sequence itself), 'learned' (accepted text
    of earlier sequences), 'recycled' (the target's own top tokens), 'neural' (the graph's neural model, and a
    small network that mixes all sources)."""
    max_depth: Annotated[int, Field(ge=1, le=255)] = 24
    """Longest path of a draft tree, in tokens."""
    max_branches: Annotated[int, Field(ge=1, le=64)] = 64
    """Maximum number of children of a node. For 'specexec' with a draft model, it is also the maximum number of nodes
    in one pass of that model."""
    max_learned_tokens: Annotated[int, Field(ge=0)] = 1_000_000
    """Maximum number of accepted tokens kept per tenant; the oldest are dropped first. 0 learns nothing."""
    n: Annotated[int, Field(ge=2, le=16)] = 4
    """'nasd': length of the longest n-gram in tokens, one more than the length of its context."""
    filler_top_k: Annotated[int, Field(ge=0, le=64)] = 3
    """'nasd': how many of the target's most probable tokens are learned per position. 1 or 0 learns only the emitted
    token."""
    stop_if_unknown: bool = True
    """'nasd': end a draft at an unknown context; otherwise draft a random token there."""


class NgramDraftConfig(DraftConfig):
    """Drafting without a verifier, so without the strategies that need one."""

    strategy: Annotated[NgramStrategyName, Field(description=described(NGRAM_STRATEGIES))] = "tree"
    """How drafts are made, as in :class:`DraftConfig`."""

    @classmethod
    def section(cls) -> str:
        """Return the section of all settings of drafting."""
        return DraftConfig.section()


class VerifierConfig(Config):
    """Which model verifies, and where it runs."""

    model_name: str = DEFAULT_MODEL
    """Model: a name on the hub or a folder."""
    tokenizer_name: str | None = None
    """Tokenizer: a name on the hub or a folder; by default the model's own."""
    device: str = "auto"
    """Device of the model: 'auto', 'cpu', 'cuda', 'cuda:1', ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Data type of the weights; 'auto' keeps the checkpoint's own on a GPU and uses float32 on a CPU."""
    num_threads: Annotated[int, Field(ge=0)] = 0
    """Number of CPU threads of torch; 0 takes all cores but one. Threads that wait for a busy core slow every step
    down."""
    cuda_graphs: bool = True
    """On a GPU, record passes as CUDA graphs. A pass then needs one launch instead of thousands, but some more
    memory."""
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    """Maximum number of sequences decoded together; others wait for a free slot."""
    max_kv_tokens: Annotated[int, Field(ge=0)] = 0
    """Maximum size of the KV cache in tokens. Its size is the number of running sequences times the longest length that
    any of them may reach. Requests wait until there is space. 0 allows the largest batch at the model's longest
    context."""
    target_cache: ByteSize = ByteSize(0)
    """Memory for a cache of the target's logits by prefix (SpecExec's speculative cache). A cached prefix needs no
    pass."""
    prefix_cache: ByteSize = ByteSize(1_000_000_000)
    """Memory for a cache of finished requests' keys and values, which prompts with the same prefix reuse. With streamed
    weights the cache is off unless you set this."""
    measure_costs: bool = True
    """Measure pass times for a few seconds when a model is first used with drafts on this machine; the result is kept
    in the cache folder. If this is off, typical costs are assumed."""
    memory_budget: ByteSize = ByteSize(0)
    """Memory limit, such as 6GB, of the process, or of the GPU if the model runs on it. Weights that do not fit are
    streamed from the disk, or from this machine's memory. 0 uses ``memory_fraction``."""
    host_budget: ByteSize = ByteSize(0)
    """Limit on this machine's memory, such as 20GB, for weights that are not in GPU memory. Weights beyond it are read
    from the disk. 0 uses ``memory_fraction``."""
    memory_fraction: Annotated[float, Field(gt=0.0, le=1.0)] = 0.9
    """Fraction of the free memory, of a GPU and of this machine, that is used where no budget is set."""
    resident_layers: Annotated[int, Field(ge=0)] | None = None
    """Maximum number of decoder layers in memory. For a mixture of experts, it is the number of layers whose experts
    have space there. By default as many as fit."""
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
    """Tenant of the decoded text. Accepted text helps this tenant's later sequences, and no other tenant's."""
    learn: bool = True
    """Let later sequences of the tenant draft from accepted text."""
    deadline_ms: Annotated[float, Field(gt=0)] = 20.0
    """Longest wait for a step's draft, in milliseconds."""
    tls_ca: Path | None = None
    """Certificates (PEM) of the authorities to trust; enables encryption."""
    tls_certificate: Path | None = None
    """Certificate (PEM) of this client, for sidecars that require one."""
    tls_key: Path | None = None
    """Private key (PEM) of this client's certificate."""
    token: SecretStr | None = None
    """Bearer token, for sidecars that require one."""


class AccessConfig(Config):
    """Access to a server: the sidecar, or the verifier."""

    file: Path | None = None
    """TOML file that lists the permitted clients with their tenants and graphs. Without it, every client that can
    connect may use everything."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM) of this server; with it, TCP addresses are encrypted."""
    tls_key: Path | None = None
    """Private key (PEM) of this server's certificate."""
    tls_client_ca: Path | None = None
    """Certificates (PEM) of the authorities, one of which must have signed a client's certificate. Without this
    setting, clients need no certificate."""


OPEN_ACCESS = AccessConfig()
"""Access settings that give full access to every client."""


class ServerConfig(Config):
    """The drafter sidecar."""

    listen: str = "unix:///tmp/speculant-drafter/drafter.sock"
    """Addresses to serve on, separated by commas: 'unix:///path/to.sock' or 'host:port'."""
    admin_listen: str = ""
    """Address of the admin service, which must not be public; empty: not served."""
    metrics_listen: str = ""
    """'host:port' of Prometheus metrics and /healthz over HTTP. The explorer is served there, too, if only this machine
    can reach the address. Empty: not served."""
    graph: Path = Path("graph.pkl")
    """Default graph file, or an address such as s3://bucket/graph.pkl, which is downloaded. The graph's name is the
    file name without the suffix."""
    graphs: dict[str, Path] = Field(default={})
    """More graph files to serve, each under a name: docs=docs.pkl"""
    default: str = ""
    """Default graphs of sessions that name none: up to four names joined by '+', such as docs+house. Each of these
    graphs is a separate source of drafts. Empty: server.graph."""
    tenant_graphs: dict[str, str] = Field(default={})
    """Default graphs of a tenant's sessions that name none: acme=docs+acme-history"""
    learned: Path | None = None
    """Folder that keeps accepted text for later sequences, across restarts. Without it, the text is kept only in
    memory."""
    max_session_memory: Annotated[ByteSize, Field(ge=1_000_000)] = ByteSize(1_000_000_000)
    """Memory limit of all sessions together, such as 1GB; beyond it, the sessions that have been idle longest are
    dropped."""


class FoldConfig(Config):
    """How the oldest learned text of a tenant becomes graph files instead of being lost."""

    enabled: bool = True
    """Fold learned text into graph files, if there is a folder for learned text. Otherwise text beyond
    draft.max_learned_tokens is lost."""
    young_tokens: Annotated[int, Field(ge=2)] = 262_144
    """Number of accepted tokens that a tenant keeps as text. If there are more, a low-priority process counts the
    oldest half into a graph file of the tenant."""
    max_tokens: Annotated[int, Field(ge=0)] = 8_000_000
    """Maximum number of tokens in a tenant's graph files; a token takes some 50 bytes. If there are more, the oldest
    file is deleted, which has at most half of this number. 0: no limit."""
    max_days: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """Days after which learned text is deleted. Text in graph files stays up to half as long again. 0: never."""


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
    """The verifier as a service."""

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
    """Sampling and length of the output; settings of the request."""

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
    """Penalty on tokens that are already in the sequence. Above 1 they become less probable."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Value that is subtracted from the logit of every token that was emitted."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Value that is subtracted from a token's logit once for each time the token was emitted."""
    logit_bias: dict[TokenId, float] = Field(default={})
    """Values that are added to the logits of tokens, by token id."""
    json_schema: str = ""
    """JSON schema that the output must match, as JSON text; '{}' allows any JSON. It can't be combined with
    'grammar'."""
    grammar: str = ""
    """Grammar that the output must match, in llguidance's variant of Lark, or grammars in its JSON. For example,
    'start: /[0-9]+/' is a regular expression, and 'start: "yes" | "no"' is a choice."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Minimum number of new tokens before an end token is allowed."""
    stop: tuple[str, ...] = ()
    """Stop texts. The output ends before the first of them."""
    end_token_ids: tuple[TokenId, ...] | None = None
    """Ids of the tokens that end the text; by default the model's own."""
    n: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Number of samples of the same prompt; sample i uses the seed plus i."""
    logprobs: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """Return the log-probability of every emitted token, and of this many of the most probable tokens.
    Log-probabilities are the model's own, before temperature and other settings change them."""
    rule: RuleName = "follow"
    """How drafts are verified. With 'follow' (also named 'gumbel') and 'nasd', the output depends only on prompt,
    settings and seed. 'nasd' checks only the most probable proposal. With these rules, the strategy 'sampling' draws
    with the rule's own noise, which raises acceptance. The other rules keep the distribution of the output, not the
    output itself: 'token' (rejection sampling), 'block' (block verification), 'tree-wor' and 'tree-iid' (trees with
    siblings drawn without replacement, or independently)."""
    speculation: Literal["auto", "on", "off"] = "auto"
    """Whether to use drafts: 'auto' drafts as many tokens as pay off, 'on' as many as 'draft.k' allows. 'off' is plain
    decoding, one pass per token, without 'verifier.target_cache'. With the rules 'follow', 'gumbel' and 'nasd', all
    three give the same text."""
    node_budget: Annotated[int, Field(ge=0)] | None = None
    """Maximum tokens drafted per step for this request, at most 'draft.k'; 0 drafts none. Like the draft settings
    below, it does not change the text with the rules 'follow', 'gumbel' and 'nasd'."""
    max_depth: Annotated[int, Field(ge=1)] | None = None
    """Longest drafted path in tokens, at most 'draft.max_depth'."""
    draft_temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Temperature of the strategy 'sampling', instead of 'draft.temperature'."""
    draft_n: Annotated[int, Field(ge=2)] | None = None
    """'nasd': length of the longest n-gram looked up, in tokens, at most 'draft.n'."""
    draft_filler_top_k: Annotated[int, Field(ge=0)] | None = None
    """'nasd': how many of the target's most probable tokens are learned per position, at most 'draft.filler_top_k'."""
    draft_stop_if_unknown: bool | None = None
    """'nasd': whether a draft ends at an unknown context."""
    prediction: str | tuple[TokenId, ...] = ""
    """Text that parts of the output may resemble, such as the file to edit. Drafts come from it, too."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the request's random streams."""
    ignore_end_tokens: bool = False
    """Continue after the model's end token, up to 'max_tokens'."""


class DraftModelConfig(Config):
    """A small language model that drafts with the graph, in the verifier's process and on its device."""

    name: str = ""
    """Draft model, any causal model with the target's tokenizer: a name on the hub or a folder; empty: none."""
    adapter: str = ""
    """LoRA adapter at the start: a folder, or the name of one of 'adapters'; empty: none."""
    adapters: dict[str, Path] = Field(default={})
    """Adapter folders, each under a name: legal=adapters/legal"""


class RecordConfig(Config):
    """Detailed mode: records whole requests in a database, to show where drafts fail and to train a draft model."""

    folder: Path | None = None
    """Folder of a SQLite database of finished requests. A record has prompt and output as token ids and, for each
    position, the drafted tokens, their sources, acceptance, and the target's most probable tokens. None: no records."""
    threshold: Literal["relative"] | Annotated[float, Field(ge=0.0, le=1.0)] = "relative"
    """Acceptance rate, over positions with drafted tokens, below which a request is a failure. 'relative' stands for
    the rate of the tenant's latest 100 requests. A request without drafts is not a failure."""
    max_bytes: Annotated[ByteSize, Field(ge=10_000)] = ByteSize(200_000_000)
    """Maximum number of bytes of recorded failures, and likewise of replay, a sample of the other requests. The oldest
    are deleted."""


class TrainConfig(Config):
    """How a LoRA adapter of the draft model is trained on records."""

    rank: Annotated[int, Field(ge=1, le=1_024)] = 8
    """Rank of the adapter's matrices. In a model of a billion parameters, the default trains about half a percent of
    them. Models of a few million parameters need a rank of about half their width."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3e-3
    """Highest learning rate, with warm-up and cosine decay. Models of billions of parameters may need a tenth of the
    default."""
    epochs: Annotated[float, Field(gt=0.0)] = 4.0
    """Number of passes over the failures. The state with the lowest loss on held-out requests is kept."""
    min_failures: Annotated[int, Field(ge=0)] = 0
    """Number of new failures after which 'speculant verifier' trains an adapter; 0: it never trains on its own. Other
    commands ignore this."""
