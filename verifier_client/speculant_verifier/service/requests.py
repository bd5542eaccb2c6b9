"""What requests of the wire ask for, in the library's terms; whatever is wrong is named as the wire names it."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from speculant_graph.config import GenerationConfig
from speculant_graph.errors import GenerationRequestError
from speculant_graph.rpc.v1 import verifier_pb2 as pb
from speculant_graph.types import Draft, Proposal, RuleName, TokenId
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


def draft_of(request: pb.VerifyRequest, most_nodes: int) -> Draft:
    """Return the draft that a client brings.

    Args:
        request: has the draft.
        most_nodes: that are verified at once.

    Raises:
        GenerationRequestError: it is too large, or its arrays do not fit together.
    """
    size = len(request.draft_tokens)
    if size > most_nodes:
        raise GenerationRequestError(
            f"the draft has {size} nodes, but at most {most_nodes} are verified at once; send fewer, or raise --draft.k"
        )
    parents = tuple(request.draft_parents) if request.draft_parents else tuple(range(size))
    if len(parents) != size:
        raise GenerationRequestError(f"draft_parents has {len(parents)} entries for {size} draft_tokens; send as many")
    proposals: list[Proposal] = []
    if request.candidate_counts:
        counts = np.array(request.candidate_counts, np.int64)
        token_ids = np.array(request.candidate_tokens, np.uint32)
        probabilities = np.array(request.candidate_probabilities, np.float32)
        if len(counts) != size or counts.sum() != len(token_ids) or len(token_ids) != len(probabilities):
            raise GenerationRequestError(
                "candidate_counts must have an entry for every node, and sum to the numbers of candidate_tokens and "
                "candidate_probabilities; fix them"
            )
        for end, count in zip(counts.cumsum().tolist(), counts.tolist(), strict=True):
            proposals.append(_proposal(token_ids[end - count : end], probabilities[end - count : end]))
    elif request.candidate_tokens or request.candidate_probabilities:
        raise GenerationRequestError("candidate_tokens need candidate_counts; send them, or none of these fields")
    return Draft(tuple(request.draft_tokens), parents, (), proposals)


def _proposal(token_ids: Any, probabilities: Any) -> Proposal:
    is_distribution = bool(np.isfinite(probabilities).all()) and bool((probabilities >= 0).all())
    if not is_distribution or not (np.diff(token_ids.astype(np.int64)) > 0).all():
        raise GenerationRequestError(
            "candidate_tokens must ascend within a node and candidate_probabilities be numbers from 0 to 1; fix them"
        )
    if not 0.999 < probabilities.sum(dtype=np.float64) < 1.001:
        raise GenerationRequestError("candidate_probabilities must sum to 1 within a node; normalise them")
    return Proposal(token_ids, probabilities)


def _rule(number: int) -> RuleName:
    try:
        return RULE_OF_NUMBER[number]
    except KeyError:
        raise GenerationRequestError(f"there is no rule {number}; see VerificationRule for those there are") from None
