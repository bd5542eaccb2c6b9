"""Slow reference for the core's handling of steps, over protobuf's own classes.

Drafts come from the same core drafter, so tests compare everything else: parsing, checks, sessions and the response.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from google.protobuf.message import DecodeError

from speculant_drafter.sessions import Limits
from speculant_graph.config import DraftConfig
from speculant_graph.draft.options import DraftOptions, changed
from speculant_graph.draft.session_drafter import SessionDrafter
from speculant_graph.errors import DraftLimitError, DraftRequestError
from speculant_graph.rpc import convert
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import Draft
from support.sessions import draft_batch

NO_TOKEN = (1 << 32) - 1
OK, LOST, OUT_OF_SYNC = 1, 2, 3


@dataclass
class Reference:
    """An open session."""

    text: list[int] = field(default_factory=list)
    draft_id: int = 0
    is_in_prompt: bool = True


class ReferenceAnswerer:
    """Answers steps for one graph, without a clock, tenants or a memory limit."""

    def __init__(self, limits: Limits, draft: DraftConfig, drafter: SessionDrafter) -> None:
        self.limits, self.draft, self.drafter = limits, draft, drafter
        self.sessions: dict[int, Reference] = {}
        self.last_draft_id = 0

    def open(self, session_id: int) -> None:
        self.drafter.open(session_id)
        self.sessions[session_id] = Reference()

    def close(self, session_id: int) -> None:
        self.drafter.close(session_id)
        self.sessions.pop(session_id, None)

    def answer(self, payload: bytes) -> pb.DraftResponse:
        """Return the response to a serialized DraftRequest.

        Raises:
            SpeculantError: the request is refused.
        """
        self.last_draft_id += 1
        try:
            request = pb.DraftRequest.FromString(payload)
        except DecodeError:
            raise DraftRequestError("can't be parsed") from None
        options, budgets = self.checked(request)
        contexts, rows = self.parts(request)
        answer = pb.DraftResponse(draft_id=self.last_draft_id)
        statuses = [
            self.take(session_id, position, context, told)
            for session_id, position, context, told in zip(
                self.filled(request.session_ids, len(budgets)),
                self.filled(request.positions, len(budgets)),
                contexts,
                rows,
                strict=True,
            )
        ]
        answer.sequence_statuses.extend(statuses)
        self.draft_all(request, options, budgets, contexts, answer)
        answer.graph_generation = 1
        if len(answer.SerializeToString()) + 32 > self.limits.max_message_bytes:
            raise DraftLimitError("the answer is larger than it may be")
        return answer

    @staticmethod
    def filled(values, count: int) -> list[int]:
        return list(values) or [0] * count

    def checked(self, request: pb.DraftRequest) -> tuple[DraftOptions, list[int]]:
        limits, count = self.limits, len(request.context_lengths)
        if count > limits.max_sequences:
            raise DraftLimitError("sequences in one message")
        if len(request.context_tokens) > limits.max_tokens:
            raise DraftLimitError("context tokens in one message")
        if max(request.node_budgets, default=0) > limits.max_nodes:
            raise DraftLimitError("nodes asked for; ask for at most")
        options = convert.decode_options(request.options.SerializeToString())
        changed(DraftConfig(), options)
        num_rows = sum(request.feedback_row_counts)
        for name in (
            "session_ids", "positions", "node_budgets", "seeds", "least_path_probabilities", "feedback_draft_ids",
            "feedback_row_counts",
        ):  # fmt: skip
            if len(getattr(request, name)) not in {0, count}:
                raise DraftRequestError(f"{name} has")
        if not all(0.0 <= each <= 1.0 for each in request.least_path_probabilities):
            raise DraftRequestError("a least path probability is out of its bounds")
        for name, expected in (
            ("context_tokens", sum(request.context_lengths)),
            ("feedback_nodes", num_rows),
            ("feedback_tokens", num_rows * request.feedback_width),
        ):
            if len(getattr(request, name)) != expected:
                raise DraftRequestError(f"{name} has")
        budgets = list(request.node_budgets) or [min(self.draft.k, limits.max_nodes)] * count
        if sum(budgets) > limits.max_step_nodes:
            raise DraftLimitError("nodes asked for in one step")
        named = [session_id for session_id in request.session_ids if session_id]
        if len(set(named)) < len(named):
            raise DraftRequestError("twice in one step")
        return options, budgets

    def parts(self, request: pb.DraftRequest) -> tuple[list[list[int]], list[tuple[int, list[int], list[list[int]]]]]:
        contexts, told = [], []
        tokens, nodes, rows = map(list, (request.context_tokens, request.feedback_nodes, request.feedback_tokens))
        count, width = len(request.context_lengths), request.feedback_width
        for length, draft_id, num_rows in zip(
            request.context_lengths,
            self.filled(request.feedback_draft_ids, count),
            self.filled(request.feedback_row_counts, count),
            strict=True,
        ):
            contexts.append(tokens[:length])
            own = [rows[start : start + width] for start in range(0, num_rows * width, width)] if width else []
            told.append((draft_id, nodes[:num_rows], own))
            del tokens[:length], nodes[:num_rows], rows[: num_rows * width]
        return contexts, told

    def take(self, session_id: int, position: int, context: list[int], told) -> int:
        session = self.sessions.get(session_id)
        if not session_id:
            return OK
        if session is None:
            return LOST
        known = len(session.text)
        overlap = session.text[position : position + len(context)]
        if any(as_known(a) != as_known(b) for a, b in zip(overlap, context, strict=False)):
            self.close(session_id)
            return LOST
        if position > known or position + len(context) < known:
            return OUT_OF_SYNC
        unseen = context[known - position :]
        draft_id, nodes, rows = told
        if not unseen:
            return OK
        if rows and position == known and draft_id == session.draft_id:
            array = np.array(rows, np.int64)
            self.drafter.recycle(session_id, nodes, np.where(array == NO_TOKEN, -1, array))
        self.drafter.accept(session_id, unseen, is_prompt=session.is_in_prompt)
        session.text += unseen
        return OK

    def draft_all(self, request, options, budgets, contexts, answer: pb.DraftResponse) -> None:
        count = len(budgets)
        max_support = max(1, (self.limits.max_message_bytes - 32 - 128 - 28 * count - 16 * sum(budgets)) // 8)
        session_ids, seeds = self.filled(request.session_ids, count), self.filled(request.seeds, count)
        positions = self.filled(request.positions, count)
        least = list(request.least_path_probabilities) or [0.0] * count
        drafts: dict[int, Draft] = {}
        opened = [i for i in range(count) if session_ids[i] and answer.sequence_statuses[i] == OK]
        stateless = [i for i in range(count) if not session_ids[i]]
        if opened:
            batch = draft_batch(
                self.drafter,
                [session_ids[i] for i in opened], [budgets[i] for i in opened], [seeds[i] for i in opened],
                options, max_support, [least[i] for i in opened],
            )  # fmt: skip
            drafts |= dict(zip(opened, batch, strict=True))
            max_support = max(1, max_support - sum(q.token_ids.size for draft in batch for q in draft.proposals))
            for rank, index in enumerate(opened):
                self.sessions[session_ids[index]].draft_id = self.last_draft_id
                self.sessions[session_ids[index]].is_in_prompt &= not budgets[index]
                assert len(batch[rank]) <= budgets[index]
        if stateless:
            batch = self.drafter.draft_contexts(
                [np.array(contexts[i], np.int64) for i in stateless], [budgets[i] for i in stateless],
                [seeds[i] for i in stateless],
                [(positions[i] + len(contexts[i])) % (1 << 64) for i in stateless], options, max_support,
            )  # fmt: skip
            drafts |= {i: probable(draft, least[i], budgets[i]) for i, draft in zip(stateless, batch, strict=True)}
        for index in range(count):
            session = self.sessions.get(session_ids[index]) if session_ids[index] else None
            answer.next_positions.append(0 if session is None else len(session.text))
            if index not in drafts:
                answer.draft_lengths.append(0)
                answer.ended_early.append(0)
                continue
            draft = drafts[index]
            answer.draft_lengths.append(len(draft))
            answer.ended_early.append(int(draft.terminated_early))
            answer.draft_tokens.extend(draft.token_ids)
            answer.draft_parents.extend(draft.parents)
            answer.draft_path_probabilities.extend(draft.path_probabilities)
            for proposal in draft.proposals:
                answer.candidate_counts.append(proposal.token_ids.size)
                answer.candidate_tokens.extend(proposal.token_ids.tolist())
                answer.candidate_probabilities.extend(proposal.probabilities.tolist())


def probable(draft: Draft, least: float, budget: int) -> Draft:
    """Return the nodes of a draft whose path probability is at least ``least``."""
    if not draft.path_probabilities or draft.strategy == "specexec":
        return draft
    kept = draft.part([node for node, each in enumerate(draft.path_probabilities) if each >= least])
    return replace(kept, terminated_early=len(kept) < budget)


def as_known(token_id: int) -> int:
    """Map all ids outside the vocabulary to -1."""
    return token_id if token_id < 12 else -1
