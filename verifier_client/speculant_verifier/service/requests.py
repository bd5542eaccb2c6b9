"""What requests of the wire ask for, in the library's terms; whatever is wrong is named as the wire names it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.types import RuleName, TokenId
from speculant_verifier.chat_template import Message
from speculant_verifier.requests import changed
from speculant_verifier.text import Prompt

RULE_OF_NUMBER: dict[int, RuleName] = {
    pb.VERIFICATION_RULE_FOLLOW: "follow",
    pb.VERIFICATION_RULE_TOKEN: "token",
    pb.VERIFICATION_RULE_BLOCK: "block",
    pb.VERIFICATION_RULE_NASD: "nasd",
    pb.VERIFICATION_RULE_TREE_WITHOUT_REPLACEMENT: "tree-wor",
    pb.VERIFICATION_RULE_TREE_INDEPENDENT: "tree-iid",
    pb.VERIFICATION_RULE_GUMBEL: "gumbel",
}
"""Names of rules by their numbers on the wire."""

_SEED_BITS = 63
_MOST_ENTRIES = {"logit_biases": 1024, "bad_words": 128, "choices": 1024, "stop_strings": 16, "stop_token_ids": 1024}
_MOST_CHARACTERS = 1024
_GIVEN_IF_PRESENT = ("max_tokens", "temperature", "top_p", "min_p", "repetition_penalty", "seed")
_OF_DRAFTS = ("node_budget", "max_depth", "draft_temperature")
_GIVEN_IF_NOT_ZERO = (
    "min_tokens", "top_k", "no_repeat_ngram_size", "presence_penalty", "frequency_penalty", "json_schema", "regex",
    "grammar", "prediction",
)  # fmt: skip


def generation_config(
    sampling: pb.SamplingOptions,
    speculation: pb.SpeculationOptions,
    defaults: GenerationConfig,
    end_token_ids: frozenset[TokenId],
) -> GenerationConfig:
    """Return the settings that a request asks for.

    Args:
        sampling: how tokens are chosen.
        speculation: how drafts are made and verified.
        defaults: of the server, for what the request leaves open. A seed that is left open is drawn at random.
        end_token_ids: the model's own.

    Raises:
        GenerationRequestError: a value is not allowed; the message names it.
    """
    for name, most in _MOST_ENTRIES.items():
        if len(getattr(sampling, name)) > most:
            raise GenerationRequestError(f"{name} has {len(getattr(sampling, name))} entries; send at most {most}")
    for name in ("bad_words", "stop_strings"):
        if max(map(len, getattr(sampling, name)), default=0) > _MOST_CHARACTERS:
            raise GenerationRequestError(f"a text of {name} is too long; send at most {_MOST_CHARACTERS} characters")
    wanted: dict[str, Any] = {name: getattr(sampling, name) for name in _GIVEN_IF_PRESENT if sampling.HasField(name)}
    wanted |= {name: value for name in _GIVEN_IF_NOT_ZERO if (value := getattr(sampling, name))}
    wanted.setdefault("seed", secrets.randbits(_SEED_BITS))
    if sampling.logit_biases:
        wanted["logit_bias"] = {each.token_id: each.bias for each in sampling.logit_biases}
    if sampling.bad_words:
        wanted["bad_words"] = tuple(sampling.bad_words)
    if sampling.choices:
        wanted["choices"] = tuple(sampling.choices)
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
    if speculation.rule:
        wanted["rule"] = _rule(speculation.rule)
    wanted |= {name: getattr(speculation, name) for name in _OF_DRAFTS if speculation.HasField(name)}
    return changed(defaults, wanted)


def prompt_of(request: pb.GenerateRequest, read_chat: Callable[[Sequence[Message]], list[TokenId]]) -> Prompt:
    """Return the text or the token ids to be continued.

    Args:
        request: the request.
        read_chat: makes token ids of a conversation.

    Raises:
        GenerationRequestError: the request has no input, or the conversation can't be read.
    """
    match request.WhichOneof("input"):
        case "prompt":
            return request.prompt
        case "prompt_tokens":
            return list(request.prompt_tokens.token_ids)
        case "chat":
            return read_chat([{"role": each.role, "content": each.content} for each in request.chat.messages])
    raise GenerationRequestError("the request has no input; set prompt, prompt_tokens or chat")


def _rule(number: int) -> RuleName:
    try:
        return RULE_OF_NUMBER[number]
    except KeyError:
        raise GenerationRequestError(f"there is no rule {number}; see VerificationRule for those there are") from None
