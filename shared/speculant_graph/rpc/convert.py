"""Protobuf messages of the drafter to values of ours and back; the only such mapping.

Every decoder checks what the wire's specification promises and raises :class:`DraftRequestError` with a one-line
reason otherwise; nothing else escapes, whatever the message. What depends on the graph (token ids of a request,
graph names) is left to the caller. Requests are small and become tuples; the distributions of an answer are large
and are checked as whole arrays.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence, Sized
from itertools import accumulate, pairwise

import numpy as np
from google.protobuf.duration_pb2 import Duration

from speculant_graph.errors import DraftLimitError, DraftRequestError, UnservedRequestError
from speculant_graph.rpc.messages import (
    OpenAnswer,
    OpenRequest,
    SequenceAnswer,
    SequenceRequest,
    SequenceStatus,
    StepAnswer,
    StepOptions,
    StepRequest,
)
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft, Fingerprint, Proposal, StrategyName

_STRATEGY_NUMBERS: dict[StrategyName, pb.Strategy] = {
    "greedy": pb.STRATEGY_GREEDY,
    "sampling": pb.STRATEGY_SAMPLING,
}
_STRATEGY_NAMES: dict[int, StrategyName] = {number: name for name, number in _STRATEGY_NUMBERS.items()}
_SERVED_MIXINGS = (pb.MIXING_UNSPECIFIED, pb.MIXING_LONGEST)
_STATUSES = frozenset(SequenceStatus)
_MASS_TOLERANCE = 1e-3
_SHA256_BYTES = 32


def encode_step_request(request: StepRequest) -> pb.DraftRequest:
    """Return the message for ``request``; arrays that hold nothing but defaults stay empty."""
    sequences = request.sequences
    message = pb.DraftRequest(graph=request.graph)
    if request.options != StepOptions():
        options = message.options
        if request.options.strategy is not None:
            options.strategy = _STRATEGY_NUMBERS[request.options.strategy]
        options.max_candidates = request.options.max_candidates
        options.omit_proposals = request.options.omit_proposals
    message.context_lengths.extend([len(sequence.token_ids) for sequence in sequences])
    for sequence in sequences:
        message.context_tokens.extend(sequence.token_ids)
    if any(sequence.session_id is not None for sequence in sequences):
        message.session_ids.extend([sequence.session_id or 0 for sequence in sequences])
    if any(sequence.position for sequence in sequences):
        message.positions.extend([sequence.position for sequence in sequences])
    if any(sequence.seed for sequence in sequences):
        message.seeds.extend([sequence.seed for sequence in sequences])
    budgets = [sequence.node_budget for sequence in sequences if sequence.node_budget is not None]
    if budgets and len(budgets) < len(sequences):
        raise DraftRequestError("node budgets are mixed; give one to every sequence of a step or to none")
    message.node_budgets.extend(budgets)
    return message


def decode_step_request(message: pb.DraftRequest, *, max_sequences: int) -> StepRequest:
    """Return the step that ``message`` asks for; feedback is checked and left out.

    Raises:
        DraftLimitError: it holds more than ``max_sequences``.
        UnservedRequestError: it asks for a strategy or an option that has no meaning here.
        DraftRequestError: it breaks a rule of the wire.
    """
    count = len(message.context_lengths)
    if count > max_sequences:
        raise DraftLimitError(f"{count} sequences in one message; send at most {max_sequences}")
    token_ids = tuple(message.context_tokens)
    contexts = _spans("context_tokens", token_ids, message.context_lengths)
    session_ids = _per_sequence("session_ids", message.session_ids, count)
    positions = _per_sequence("positions", message.positions, count)
    seeds = _per_sequence("seeds", message.seeds, count)
    budgets = _per_sequence("node_budgets", message.node_budgets, count) if message.node_budgets else None
    _check_feedback(message, count)
    sequences = tuple(
        SequenceRequest(
            token_ids=token_ids[contexts[index]],
            session_id=session_ids[index] or None,
            position=positions[index],
            node_budget=None if budgets is None else budgets[index],
            seed=seeds[index],
        )
        for index in range(count)
    )
    return StepRequest(sequences, _decode_options(message.options), message.graph)


def _decode_options(options: pb.StrategyOptions) -> StepOptions:
    """Return what is served of ``options``; those of other strategies mean nothing here."""
    strategy = None
    if options.strategy != pb.STRATEGY_UNSPECIFIED:
        strategy = _STRATEGY_NAMES.get(options.strategy)
        if strategy is None:
            served = ", ".join(_STRATEGY_NUMBERS)
            asked = _strategy_label(options.strategy)
            raise UnservedRequestError(f"strategy {asked} is not served; ask for one of {served}")
    if options.mixing not in _SERVED_MIXINGS:
        raise UnservedRequestError("this way of mixing orders is not served; ask for MIXING_LONGEST")
    if options.sources and not options.sources & pb.SOURCE_BIT_CORPUS:
        raise UnservedRequestError("no source but the corpus is served; add SOURCE_BIT_CORPUS")
    if options.min_path_probability:
        raise UnservedRequestError("paths have no estimated probability here; leave min_path_probability 0")
    if options.cost_aware:
        raise UnservedRequestError("drafts of a cost-aware length are not served; leave cost_aware unset")
    return StepOptions(strategy, options.max_candidates, options.omit_proposals)


def _strategy_label(number: int) -> str:
    return pb.Strategy.Name(number) if number in pb.Strategy.values() else str(number)


def _check_feedback(message: pb.DraftRequest, count: int) -> None:
    _per_sequence("feedback_draft_ids", message.feedback_draft_ids, count)
    num_rows = sum(_per_sequence("feedback_row_counts", message.feedback_row_counts, count))
    _expect("feedback_nodes", message.feedback_nodes, num_rows, "the sum of feedback_row_counts")
    num_tokens = num_rows * message.feedback_width
    _expect("feedback_tokens", message.feedback_tokens, num_tokens, "feedback_width times the number of rows")


def encode_step_answer(answer: StepAnswer, *, omit_proposals: bool = False) -> pb.DraftResponse:
    """Return the message for ``answer``, without the distributions q if so asked."""
    drafts = [sequence.draft for sequence in answer.sequences]
    message = pb.DraftResponse(graph_generation=answer.graph_generation, draft_id=answer.draft_id)
    message.sequence_statuses.extend([sequence.status for sequence in answer.sequences])
    message.next_positions.extend([sequence.next_position for sequence in answer.sequences])
    message.draft_lengths.extend([len(draft) for draft in drafts])
    message.ended_early.extend([int(draft.terminated_early) for draft in drafts])
    for draft in drafts:
        message.draft_tokens.extend(draft.token_ids)
        message.draft_parents.extend(draft.parents)
        message.draft_path_probabilities.extend(draft.path_probabilities)
        for proposal in () if omit_proposals else draft.proposals:
            message.candidate_counts.append(len(proposal.token_ids))
            message.candidate_tokens.extend(proposal.token_ids.tolist())
            message.candidate_probabilities.extend(proposal.probabilities.tolist())
    message.server_time.FromNanoseconds(answer.server_time_ns)
    return message


def decode_step_answer(
    message: pb.DraftResponse, *, budgets: Sequence[int], strategy: StrategyName, vocabulary_size: int
) -> StepAnswer:
    """Return the answer to a step.

    Args:
        message: the answer.
        budgets: most nodes asked for, per sequence.
        strategy: the strategy asked for.
        vocabulary_size: drafted token ids and those of q must be below it.

    Raises:
        DraftRequestError: the answer breaks a rule of the wire. A draft that passes can be verified safely.
    """
    count = len(budgets)
    for name, array in (
        ("sequence_statuses", message.sequence_statuses),
        ("next_positions", message.next_positions),
        ("draft_lengths", message.draft_lengths),
    ):
        _expect(name, array, count, "the number of sequences")
    ended_early = _per_sequence("ended_early", message.ended_early, count)
    token_ids, parents = list(message.draft_tokens), list(message.draft_parents)
    _expect("draft_parents", parents, len(token_ids), "the number of nodes")
    path_probabilities = list(message.draft_path_probabilities)
    if path_probabilities:
        _expect("draft_path_probabilities", path_probabilities, len(token_ids), "the number of nodes")
    # Written so that NaN fails.
    if not all(0.0 <= probability <= 1.0 for probability in path_probabilities):
        raise DraftRequestError("draft_path_probabilities are not all between 0 and 1")
    _check_token_ids("draft_tokens", max(token_ids, default=0), vocabulary_size)
    proposals = _decode_proposals(message, token_ids, vocabulary_size)
    if message.draft_id == 0 and token_ids:
        raise DraftRequestError("draft_id is 0")

    sequences = []
    for index, nodes in enumerate(_spans("draft_tokens", token_ids, message.draft_lengths)):
        status = message.sequence_statuses[index]
        if status not in _STATUSES:
            raise DraftRequestError(f"sequence status {status} is unknown; update the client")
        draft = Draft(
            token_ids=tuple(token_ids[nodes]),
            parents=tuple(parents[nodes]),
            path_probabilities=tuple(path_probabilities[nodes]),
            proposals=tuple(proposals[nodes]),
            strategy=strategy,
            terminated_early=bool(ended_early[index]),
            draft_id=message.draft_id,
        )
        _check_tree(draft, budgets[index])
        sequences.append(SequenceAnswer(SequenceStatus(status), message.next_positions[index], draft))
    server_time_ns = message.server_time.seconds * 1_000_000_000 + message.server_time.nanos
    return StepAnswer(message.graph_generation, message.draft_id, tuple(sequences), server_time_ns)


def _check_tree(draft: Draft, budget: int) -> None:
    if len(draft) > budget:
        raise DraftRequestError(f"a draft has {len(draft)} nodes where {budget} were asked for")
    if draft.is_chain:
        return
    if any(parent > index for index, parent in enumerate(draft.parents)):
        raise DraftRequestError("a node of a draft comes before its parent")
    if len(set(zip(draft.parents, draft.token_ids, strict=True))) < len(draft):
        raise DraftRequestError("two siblings of a draft have the same token")


def _decode_proposals(message: pb.DraftResponse, token_ids: list[int], vocabulary_size: int) -> list[Proposal]:
    """Return q of every node, or nothing if none were sent."""
    counts = list(message.candidate_counts)
    total = sum(counts)
    _expect("candidate_tokens", message.candidate_tokens, total, "the sum of candidate_counts")
    _expect("candidate_probabilities", message.candidate_probabilities, total, "the sum of candidate_counts")
    if not counts:
        return []
    _expect("candidate_counts", counts, len(token_ids), "the number of nodes")
    if min(counts) == 0:
        raise DraftRequestError("a node has an empty distribution")
    candidates = np.fromiter(message.candidate_tokens, np.uint32, total)
    probabilities = np.fromiter(message.candidate_probabilities, np.float32, total)
    ends = list(accumulate(counts))
    starts = [0, *ends[:-1]]
    _check_token_ids("candidate_tokens", int(candidates.max()), vocabulary_size)
    is_ascending = candidates[1:] > candidates[:-1]
    is_ascending[np.asarray(starts[1:], dtype=np.intp) - 1] = True
    if not is_ascending.all():
        raise DraftRequestError("candidate_tokens do not ascend within a node")
    # Written so that NaN fails.
    if not ((probabilities >= 0.0) & (probabilities < np.inf)).all():
        raise DraftRequestError("candidate_probabilities are not all probabilities")
    masses = np.add.reduceat(probabilities, starts, dtype=np.float64)
    if np.abs(masses - 1.0).max() > _MASS_TOLERANCE:
        raise DraftRequestError("candidate_probabilities do not sum to 1 within a node")
    drawn = np.repeat(np.asarray(token_ids, dtype=np.uint32), counts)
    if np.count_nonzero((candidates == drawn) & (probabilities > 0.0)) < len(counts):
        raise DraftRequestError("a drafted token has no probability in its own distribution")
    return [Proposal(candidates[start:end], probabilities[start:end]) for start, end in zip(starts, ends, strict=True)]


def encode_open_request(request: OpenRequest) -> pb.OpenSessionRequest:
    """Return the message for ``request``."""
    message = pb.OpenSessionRequest(
        session_id=request.session_id,
        graph=request.graph,
        tokenizer_sha256=_digest(request.tokenizer_sha256),
        tenant=request.tenant,
    )
    if request.idle_timeout_s is not None:
        message.idle_timeout.FromNanoseconds(round(request.idle_timeout_s * 1e9))
    return message


def decode_open_request(message: pb.OpenSessionRequest) -> OpenRequest:
    """Return the session that ``message`` asks for.

    Raises:
        DraftRequestError: it breaks a rule of the wire.
    """
    if message.session_id == 0:
        raise DraftRequestError("session id 0 means no session; choose another, at random for instance")
    num_bytes = len(message.tokenizer_sha256)
    if num_bytes not in (0, _SHA256_BYTES):
        raise DraftRequestError(f"tokenizer_sha256 has {num_bytes} bytes; send {_SHA256_BYTES}")
    cost = message.verify_cost
    _expect("verify_cost.relative_costs", cost.relative_costs, len(cost.tokens), "the number of its points")
    return OpenRequest(
        session_id=message.session_id,
        tokenizer_sha256=message.tokenizer_sha256.hex(),
        tenant=message.tenant,
        graph=message.graph,
        idle_timeout_s=_seconds(message.idle_timeout) if message.HasField("idle_timeout") else None,
    )


def encode_open_answer(answer: OpenAnswer) -> pb.OpenSessionResponse:
    """Return the message for ``answer``."""
    return pb.OpenSessionResponse(
        graph_generation=answer.graph_generation,
        vocabulary_size=answer.tokenizer.vocabulary_size,
        tokenizer_sha256=_digest(answer.tokenizer.sha256),
        tokenizer_name=answer.tokenizer.name,
        max_order=answer.max_order,
        next_position=answer.next_position,
    )


def decode_open_answer(message: pb.OpenSessionResponse) -> OpenAnswer:
    """Return the answer to the opening of a session."""
    tokenizer = Fingerprint(message.tokenizer_name, message.tokenizer_sha256.hex(), message.vocabulary_size)
    return OpenAnswer(message.graph_generation, tokenizer, message.max_order, message.next_position)


def _seconds(duration: Duration) -> float:
    seconds = duration.seconds + duration.nanos * 1e-9
    if seconds <= 0:
        raise DraftRequestError("idle_timeout is not positive; leave it unset for the server's default")
    return seconds


def _per_sequence(name: str, values: Iterable[int], count: int) -> list[int]:
    """Return one value per sequence; an empty array stands for zeros."""
    entries = list(values)
    if not entries:
        return [0] * count
    _expect(name, entries, count, "the number of sequences")
    return entries


def _expect(name: str, values: Sized, expected: int, meaning: str) -> None:
    if len(values) != expected:
        raise DraftRequestError(f"{name} has {len(values)} entries; {meaning} is {expected}")


def _spans(name: str, values: Sized, lengths: Iterable[int]) -> list[slice]:
    """Return where each sequence's members lie in ``values``."""
    ends = list(accumulate(lengths, initial=0))
    _expect(name, values, ends[-1], "the sum of its lengths")
    return [slice(start, end) for start, end in pairwise(ends)]


def _check_token_ids(name: str, largest: int, vocabulary_size: int) -> None:
    if largest >= vocabulary_size:
        raise DraftRequestError(f"{name} holds {largest}; the vocabulary has {vocabulary_size} tokens")


def _digest(sha256: str) -> bytes:
    try:
        return bytes.fromhex(sha256)
    except ValueError:
        raise DraftRequestError(f"{sha256!r} is not the hex digest of a tokenizer") from None
