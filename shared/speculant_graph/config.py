"""Declares every setting of the project once: name, type, default, bounds and meaning.

:mod:`speculant_graph.settings` makes flags, environment variables, TOML keys and '--help' from these classes. All are
frozen and refuse unknown names.
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
    """Tokenizer: a name on the hub or a folder. It must be the verifier's."""
    max_order: Annotated[int, Field(ge=1, le=10)] = 5
    """Longest context in tokens; all orders from 1 up to it are counted."""
    chunk_size: Annotated[int, Field(ge=1_024)] = 1_000_000
    """Characters tokenised at a time. Larger is faster and takes more memory; the graph is the same."""
    hf_token: SecretStr | None = None
    """Access token for gated tokenizers on the hub."""
    text_field: str = "text"
    """Field of JSON and JSON Lines records with the text, or with a list of token ids, which are counted unchanged;
    dots lead into nested objects and through lists."""
    encoding: Annotated[str, AfterValidator(check_encoding)] = "auto"
    """Encoding of files that are not UTF-8, such as cp1252; 'auto' recognises many, and refuses ambiguous files."""
    on_error: OnErrorName = "fail"
    """Handling of unreadable files and records: 'fail' reports all of them and builds nothing, 'skip' leaves them out
    and lists them in the graph."""
    special_tokens: SpecialTokensName = "text"
    """Encoding of special tokens that a text spells out, such as '<|start|>': 'text' as ordinary text, 'parse' as
    special tokens. Use 'parse' for text that you trust, such as the model's own recorded outputs."""
    document_boundaries: bool = False
    """Count no n-gram that crosses from one document (file or JSON record) into the next."""
    neural: bool = True
    """Train a small neural model on the text, which drafts text that is not in the corpus word for word. It takes up to
    half a minute of a build, and up to 10 MB of the file."""
    memory: Annotated[ByteSize, Field(ge=MINIMUM_BUILD_MEMORY)] = ByteSize(2_000_000_000)
    """Memory limit of a build, such as 2GB; corpora may be larger. Mapped files don't count."""


class DraftConfig(Config):
    """Drafting: how much, by which strategy, from which sources."""

    k: Annotated[int, Field(ge=0, le=2_048)] = 8
    """Maximum number of tokens drafted per step; 0 turns speculation off."""
    strategy: Annotated[StrategyName, Field(description=described(get_args(StrategyName)))] = "tree"
    """How drafts are made; :data:`~speculant_graph.strategies.STRATEGIES` has the text of ``--help``."""
    max_candidates: Annotated[int, Field(ge=0)] = 0
    """Cap of q's support, applied and renormalised before a token is drawn; 0 keeps whole distributions."""
    temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """'sampling' draws from q to the power of 1 / temperature, normalised, and then capped: below 1 it draws the most
    probable tokens more often, above 1 the others. It returns this distribution as q."""
    sources: Annotated[frozenset[SourceName], BeforeValidator(_split)] = frozenset(get_args(SourceName))
    """Sources of 'tree', 'adaptive' and 'specexec': 'corpus', 'session' (the sequence itself), 'learned' (accepted text
    of earlier sequences), 'recycled' (the target's own top tokens), 'neural' (the graph's neural model, and a
    small network that mixes all sources)."""
    max_depth: Annotated[int, Field(ge=1, le=255)] = 24
    """Longest path of a tree."""
    max_branches: Annotated[int, Field(ge=1, le=64)] = 64
    """Maximum children of a node. 'specexec' with a draft model: also the maximum nodes of one pass of that model."""
    max_learned_tokens: Annotated[int, Field(ge=0)] = 1_000_000
    """Maximum number of accepted tokens kept per tenant; the oldest are dropped first. 0 learns nothing."""
    n: Annotated[int, Field(ge=2, le=16)] = 4
    """'nasd': tokens of the longest n-gram, one more than its context."""
    filler_top_k: Annotated[int, Field(ge=0, le=64)] = 3
    """'nasd': number of the target's most probable tokens learned per position; 1 or 0 learns only the emitted
    token."""
    stop_if_unknown: bool = True
    """'nasd': end a draft at an unknown context; otherwise draft a random token there."""


class NgramDraftConfig(DraftConfig):
    """Drafting without a verifier, so without the strategies that need one."""

    strategy: Annotated[NgramStrategyName, Field(description=described(NGRAM_STRATEGIES))] = "tree"
    """How drafts are made, as above."""

    @classmethod
    def section(cls) -> str:
        """Return the section of all settings of drafting."""
        return DraftConfig.section()


class VerifierConfig(Config):
    """Which model verifies, and where it runs."""

    model_name: str = DEFAULT_MODEL
    """Model: a name on the hub or a folder."""
    tokenizer_name: str | None = None
    """Tokenizer if it is not the model's own."""
    device: str = "auto"
    """'auto', 'cpu', 'cuda', 'cuda:1', ..."""
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    """Number type of the weights; 'auto' keeps the checkpoint's own on a GPU and uses float32 on a CPU."""
    num_threads: Annotated[int, Field(ge=0)] = 0
    """CPU threads of torch; 0 takes all cores but one. Threads that wait for a busy core slow every step down."""
    cuda_graphs: bool = True
    """On a GPU, record passes as CUDA graphs: one launch per pass instead of thousands. Takes some memory."""
    max_batch_size: Annotated[int, Field(ge=1, le=256)] = 8
    """Maximum number of sequences decoded together; others wait for a free slot."""
    max_kv_tokens: Annotated[int, Field(ge=0)] = 0
    """Limit of the KV cache in tokens: running sequences times the longest length that any of them may reach.
    Requests wait until there is space. 0 allows the largest batch of the model's longest contexts."""
    target_cache: ByteSize = ByteSize(0)
    """Memory for the target's logits by prefix; a cached prefix needs no pass (SpecExec's speculative cache)."""
    prefix_cache: ByteSize = ByteSize(1_000_000_000)
    """Memory for keys and values of finished requests, which prompts with the same prefix reuse. With streamed weights
    it is off unless you set it."""
    measure_costs: bool = True
    """Measure pass times for a few seconds when a model is first used with drafts on this machine; the result is kept
    in the cache folder. Otherwise typical costs are assumed."""
    memory_budget: ByteSize = ByteSize(0)
    """Memory limit, such as 6GB, of the process, or of the GPU if the model runs on one. Weights beyond it are streamed
    from the disk, or from this machine's memory. 0 uses the free memory."""
    host_budget: ByteSize = ByteSize(0)
    """Limit of this machine's memory, such as 20GB, for weights that a GPU does not hold. Weights beyond it are read
    from the disk. 0 uses the free memory."""
    resident_layers: Annotated[int, Field(ge=0)] | None = None
    """Maximum decoder layers kept in memory, or with space there for their experts; by default as many as fit."""
    hf_token: SecretStr | None = None
    """Access token for gated models on the hub."""


class ClientConfig(Config):
    """Connection to drafter sidecars, and the deadline of a step."""

    address: str = ""
    """'unix:///path/to.sock' or 'host:port', several of them separated by commas, or 'dns:///name:port' for every
    address of a name: each tenant uses one of them. Empty: draft in this process."""
    graph: str = ""
    """Name of the graph to draft from, or up to four names joined by '+'; empty: the sidecar's default."""
    tenant: str = ""
    """Tenant of the decoded text: accepted text helps this tenant's later sequences and no other tenant's."""
    learn: bool = True
    """Let later sequences of the tenant draft from accepted text."""
    deadline_ms: Annotated[float, Field(gt=0)] = 20.0
    """Longest wait for a step's draft."""
    tls_ca: Path | None = None
    """Certificates (PEM) of the authorities to trust; enables encryption."""
    tls_certificate: Path | None = None
    """This client's certificate (PEM), for sidecars that require one."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    token: SecretStr | None = None
    """Bearer token, for sidecars that require one."""


class AccessConfig(Config):
    """Access to a server: the sidecar, or the verifier."""

    file: Path | None = None
    """TOML file of the permitted clients, their tenants and graphs; without it, every client that can connect may use
    everything."""
    tls_certificate: Path | None = None
    """Certificate chain (PEM) of this server; with it, TCP addresses are encrypted."""
    tls_key: Path | None = None
    """Its private key (PEM)."""
    tls_client_ca: Path | None = None
    """Certificates (PEM) of the authorities that must have signed clients' certificates; without it clients need
    none."""


OPEN_ACCESS = AccessConfig()
"""Lets every client that can connect use everything."""


class ServerConfig(Config):
    """The drafter sidecar."""

    listen: str = "unix:///tmp/speculant-drafter/drafter.sock"
    """Address to serve on: 'unix:///path/to.sock' or 'host:port', several of them separated by commas."""
    admin_listen: str = ""
    """Address of the admin service, which must not be public; empty: not served."""
    metrics_listen: str = ""
    """'host:port' of Prometheus metrics and /healthz over HTTP, and of the explorer, if only this machine can reach it;
    empty: not served."""
    graph: Path = Path("graph.pkl")
    """Default graph file, or an address such as s3://bucket/graph.pkl, which is downloaded. Its name is the file name
    without the suffix."""
    graphs: dict[str, Path] = Field(default={})
    """More graph files to serve, each under a name: docs=docs.pkl"""
    default: str = ""
    """Graphs of sessions that name none, as names joined by '+': docs+house. Sessions draft from all of them, at most
    four, each a separate source; empty: server.graph."""
    tenant_graphs: dict[str, str] = Field(default={})
    """The same for a tenant's sessions: acme=docs+acme-history"""
    learned: Path | None = None
    """Folder that keeps accepted text for later sequences, across restarts; without it, in memory."""
    max_session_memory: Annotated[ByteSize, Field(ge=1_000_000)] = ByteSize(1_000_000_000)
    """Memory limit of all sessions together, such as 1GB; beyond it the longest idle sessions are dropped."""


class FoldConfig(Config):
    """How the oldest learned text of a tenant becomes graph files instead of being lost."""

    enabled: bool = True
    """Fold learned text into graph files, if there is a folder for learned text. Otherwise text beyond
    draft.max_learned_tokens is lost."""
    young_tokens: Annotated[int, Field(ge=2)] = 262_144
    """Accepted tokens that a tenant keeps as text. Beyond them a low-priority process counts the oldest half into a
    graph file of the tenant."""
    max_tokens: Annotated[int, Field(ge=0)] = 8_000_000
    """Maximum tokens in the graph files of a tenant, at some 50 bytes each. Beyond them its oldest file, with at most
    half of them, is deleted. 0: no limit."""
    max_days: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0
    """Days after which learned text is deleted; graph files keep it for up to half as long again. 0: never."""


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
    """Address of the gRPC service: 'unix:///path/to.sock' or 'host:port', several of them separated by commas; empty:
    not served."""
    admin_listen: str = ""
    """Address of the admin service, which must not be public; empty: not served."""
    http: str = "127.0.0.1:8000"
    """'host:port' of the OpenAI-compatible API over HTTP, with /healthz and /metrics; empty: not served."""
    model_id: str = ""
    """Name of the model in the HTTP API; empty: the last part of the model's name."""
    max_waiting: Annotated[int, Field(ge=0)] = 256
    """Maximum requests that wait for a slot in the batch; further ones are refused until there is capacity."""
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
    """0 is greedy and ignores 'top_k', 'top_p' and 'min_p'; otherwise at least 0.001, below which logits overflow."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the most probable tokens up to this cumulative probability."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Drop tokens less probable than this share of the most probable one."""
    repetition_penalty: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Above 1, tokens that are already in the sequence become less probable."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted from the logits of all emitted tokens."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Subtracted from the logits of tokens once for each time they were emitted."""
    logit_bias: dict[TokenId, float] = Field(default={})
    """Added to the logits of tokens, by token id."""
    json_schema: str = ""
    """The output is JSON that matches this schema, given as JSON; '{}' allows any. It excludes 'grammar'."""
    grammar: str = ""
    """The output matches this grammar, in llguidance's variant of Lark, or grammars in its JSON. 'start: /[0-9]+/' is a
    regular expression, 'start: "yes" | "no"' a choice."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Fewest new tokens before an end token is allowed."""
    stop: tuple[str, ...] = ()
    """End before any of these texts."""
    end_token_ids: tuple[TokenId, ...] | None = None
    """Tokens that end the text, if not the model's own."""
    n: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Samples of the same prompt; sample i uses the seed + i."""
    logprobs: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """Return the log-probability of every emitted token, and of this many of the most probable tokens; all are the
    model's own, before temperature and the like."""
    rule: RuleName = "follow"
    """How drafts are verified. With 'follow' the output is a function of prompt, settings and seed alone; the same
    holds for 'nasd', which checks only the most probable proposal, and 'gumbel', another name for 'follow'. For these,
    'sampling' draws with the rule's own noise, which raises acceptance. The others keep the distribution of the output,
    not the output itself: 'token' (rejection sampling), 'block' (block verification), 'tree-wor' and 'tree-iid' (trees
    with siblings drawn without replacement, or independently)."""
    speculation: Literal["auto", "on", "off"] = "auto"
    """Whether to use drafts: 'auto' uses as many as pay, 'on' as many as 'draft.k' allows. 'off' is plain decoding, one
    pass per token, without 'verifier.target_cache'. With the rules 'follow', 'gumbel' and 'nasd' the text is the
    same."""
    node_budget: Annotated[int, Field(ge=0)] | None = None
    """Maximum tokens drafted per step for this request, at most 'draft.k'; 0 drafts none. Like the next settings, it
    does not change the text under rules that keep it."""
    max_depth: Annotated[int, Field(ge=1)] | None = None
    """Longest drafted path, at most 'draft.max_depth'."""
    draft_temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """Temperature of 'sampling', instead of 'draft.temperature'."""
    draft_n: Annotated[int, Field(ge=2)] | None = None
    """'nasd': tokens of the longest n-gram looked up, at most 'draft.n'."""
    draft_filler_top_k: Annotated[int, Field(ge=0)] | None = None
    """'nasd': number of the target's most probable tokens learned per position, at most 'draft.filler_top_k'."""
    draft_stop_if_unknown: bool | None = None
    """'nasd': whether a draft ends at an unknown context."""
    prediction: str | tuple[TokenId, ...] = ""
    """Text that the output may resemble in parts, such as the file to edit: drafts come from it, too."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the request's random streams."""
    ignore_end_tokens: bool = False
    """Continue after the model's end token, up to 'max_tokens'."""


class DraftModelConfig(Config):
    """A small language model that drafts with the graph, in the verifier's process and on its device."""

    name: str = ""
    """Any causal model with the target's tokenizer: a name on the hub or a folder; empty: none."""
    adapter: str = ""
    """LoRA adapter to begin with: a folder, or one of 'adapters' by its name; empty: none."""
    adapters: dict[str, Path] = Field(default={})
    """Adapter folders, each under a name: legal=adapters/legal"""


class RecordConfig(Config):
    """Detailed mode: whole requests in a database, to find out where drafts fail and to train a draft model."""

    folder: Path | None = None
    """Write finished requests to a SQLite database in this folder: prompt and output as token ids, and per position the
    drafted tokens, their sources, acceptance, and the target's most probable tokens. None: no records."""
    threshold: Literal["relative"] | Annotated[float, Field(ge=0.0, le=1.0)] = "relative"
    """A request is a failure if its acceptance rate, over positions with drafted tokens, is below this. 'relative':
    below that of its tenant's latest 100 requests. A request without drafts is not a failure."""
    max_bytes: Annotated[ByteSize, Field(ge=10_000)] = ByteSize(200_000_000)
    """Maximum number of bytes of failures, and of replay (a sample of the other requests); the oldest are deleted."""


class TrainConfig(Config):
    """How a LoRA adapter of the draft model is trained on records."""

    rank: Annotated[int, Field(ge=1, le=1_024)] = 8
    """Rank of the adapter's matrices; for models of a billion parameters it trains about half a percent of them. Models
    of a few million need a rank of about half their width."""
    learning_rate: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 3e-3
    """Highest learning rate, with warm-up and cosine decay. Models of billions of parameters may need a tenth of it."""
    epochs: Annotated[float, Field(gt=0.0)] = 4.0
    """Passes over every failure; the state with the lowest loss on held-out requests is kept."""
    min_failures: Annotated[int, Field(ge=0)] = 0
    """New failures after which the verifier trains an adapter; 0: it never trains on its own."""
