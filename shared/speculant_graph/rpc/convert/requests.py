"""Steps: what a client asks. Requests are small and become tuples."""

from __future__ import annotations

from speculant_graph.errors import ConfigError, DraftLimitError, DraftRequestError, UnservedRequestError
from speculant_graph.rpc.convert.checks import expect, per_sequence, spans
from speculant_graph.rpc.messages import SequenceRequest, StepOptions, StepRequest
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import StrategyName

_STRATEGY_NUMBERS: dict[StrategyName, pb.Strategy] = {
    "greedy": pb.STRATEGY_GREEDY,
    "sampling": pb.STRATEGY_SAMPLING,
}
_STRATEGY_NAMES: dict[int, StrategyName] = {number: name for name, number in _STRATEGY_NUMBERS.items()}
_SERVED_MIXINGS = (pb.MIXING_UNSPECIFIED, pb.MIXING_LONGEST)


def require_served(strategy: StrategyName) -> None:
    """Refuse a strategy that does not travel.

    Raises:
        ConfigError: the sidecar does not serve it.
    """
    if strategy not in _STRATEGY_NUMBERS:
        raise ConfigError(
            f"the sidecar does not serve strategy {strategy}; choose one of {', '.join(_STRATEGY_NUMBERS)}, or draft "
            "in the verifier's own process"
        )


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
    contexts = spans("context_tokens", token_ids, message.context_lengths)
    session_ids = per_sequence("session_ids", message.session_ids, count)
    positions = per_sequence("positions", message.positions, count)
    seeds = per_sequence("seeds", message.seeds, count)
    budgets = per_sequence("node_budgets", message.node_budgets, count) if message.node_budgets else None
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
    per_sequence("feedback_draft_ids", message.feedback_draft_ids, count)
    num_rows = sum(per_sequence("feedback_row_counts", message.feedback_row_counts, count))
    expect("feedback_nodes", message.feedback_nodes, num_rows, "the sum of feedback_row_counts")
    num_tokens = num_rows * message.feedback_width
    expect("feedback_tokens", message.feedback_tokens, num_tokens, "feedback_width times the number of rows")
