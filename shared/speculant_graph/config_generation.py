"""Settings of a request."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from speculant_graph.config_base import Config
from speculant_graph.types import RuleName, TokenId


def _not_tiny(temperature: float) -> float:
    if 0.0 < temperature < 1e-3:
        raise ValueError("temperature must be 0 (greedy) or at least 0.001")
    return temperature


class GenerationConfig(Config):
    """How tokens are chosen, and for how long; a setting of the request."""

    max_tokens: Annotated[int, Field(ge=1)] = 256
    """Most new tokens."""
    temperature: Annotated[float, Field(ge=0.0, le=100.0, allow_inf_nan=False), AfterValidator(_not_tiny)] = 0.0
    """0 is greedy, where 'top_k', 'top_p' and 'min_p' do nothing; otherwise at least 0.001, below which logits
    overflow."""
    top_k: Annotated[int, Field(ge=0)] = 0
    """Keep the k most probable tokens; 0 keeps all."""
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Keep the most probable tokens that hold this mass."""
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    """Drop tokens less probable than this share of the most probable one."""
    repetition_penalty: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] = 1.0
    """Above 1 tokens of the sequence so far become less probable."""
    presence_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Taken from the logits of all tokens that were emitted."""
    frequency_penalty: Annotated[float, Field(ge=-2.0, le=2.0)] = 0.0
    """Taken from the logits of tokens as many times as they were emitted."""
    no_repeat_ngram_size: Annotated[int, Field(ge=0)] = 0
    """No n-gram of this length twice; 0 allows all."""
    logit_bias: dict[TokenId, float] = Field(default={})
    """Added to the logits of tokens, by token id."""
    json_schema: str = ""
    """The output is JSON of this schema, itself given as JSON; '{}' is any. 'regex', 'choices' and 'grammar' exclude it
    and each other."""
    regex: str = ""
    """The whole output matches this regular expression (Rust's syntax)."""
    choices: tuple[str, ...] = ()
    """The output is one of these texts."""
    grammar: str = ""
    """The output is of this grammar, in llguidance's variant of Lark, or grammars in its JSON."""
    bad_words: tuple[str, ...] = ()
    """Never emit these texts."""
    min_tokens: Annotated[int, Field(ge=0)] = 0
    """Fewest new tokens before an end token may come."""
    stop: tuple[str, ...] = ()
    """End before any of these texts."""
    end_token_ids: tuple[TokenId, ...] | None = None
    """Tokens that end the text, if not the model's own."""
    n: Annotated[int, Field(ge=1, le=1_024)] = 1
    """Samples of the same prompt; sample i uses the seed + i."""
    logprobs: Annotated[int, Field(ge=0, le=1_024)] | None = None
    """Return the log-probability of every emitted token, and those of so many most probable ones; all of the model
    itself, before temperature and the like."""
    rule: RuleName = "follow"
    """How drafts are verified. 'follow': the output is a function of prompt, settings and seed alone; so it is with
    'nasd', which looks at the most probable proposal only, and 'gumbel', the name of 'follow' where drafts are coupled.
    The others keep the distribution of the output, not the output itself: 'token' (rejection sampling), 'block' (block
    verification), 'tree-wor' and 'tree-iid' (trees whose siblings were drawn without replacement, or independently)."""
    speculation: Literal["auto", "on", "off"] = "auto"
    """Whether to use drafts: 'auto' uses as many as pay, 'on' as many as 'draft.k' allows. 'off' is plain decoding, a
    pass for every token, without 'verifier.target_cache'. With the rules 'follow', 'gumbel' and 'nasd' the text is the
    same."""
    node_budget: Annotated[int, Field(ge=0)] | None = None
    """Most tokens drafted per step, if fewer than 'draft.k'; 0 uses no drafts."""
    max_depth: Annotated[int, Field(ge=1, le=255)] | None = None
    """Longest path drafted, instead of 'draft.max_depth'; chains end there, too."""
    draft_temperature: Annotated[float, Field(gt=0.0, allow_inf_nan=False)] | None = None
    """What drafts are drawn with, instead of 'draft.temperature'."""
    prediction: str | tuple[TokenId, ...] = ""
    """Text that the output may resemble in parts, such as the file that is to be edited: drafts come from it, too."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the request's random streams."""
    ignore_end_tokens: bool = False
    """Go on after the model's end token, up to 'max_tokens'."""
