"""The explorer's requests, with the limits of their fields."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from speculant_graph.errors import DraftRequestError
from speculant_graph.serving.json_body import read_json
from speculant_graph.strategies import NgramStrategyName
from speculant_graph.validation_messages import humanise

MAX_CHARACTERS, MAX_TOKENS = 20_000, 4_096
MAX_SUCCESSORS, MAX_BUDGET, MAX_PLACES = 100, 64, 100

_LONGEST_NAME = 40


def default_budget(k: int) -> int:
    """Return the default number of nodes of a draft: ``draft.k``, limited to the range from 1 to the page's limit."""
    return min(max(k, 1), MAX_BUDGET)


class Question(BaseModel):
    """A question about a graph, as a request to the explorer contains it."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    text: Annotated[str, Field(max_length=MAX_CHARACTERS)] | None = None
    """The context as text; a question has either ``text`` or ``token_ids``."""
    token_ids: Annotated[list[Annotated[int, Field(ge=0, lt=2**32)]], Field(max_length=MAX_TOKENS)] | None = None
    """The context as token ids."""
    successors: Annotated[int, Field(ge=1, le=MAX_SUCCESSORS)] = 20
    """Maximum number of successors to show per context."""
    strategy: NgramStrategyName | None = None
    """Drafting strategy; None for the server's setting."""
    budget: Annotated[int, Field(ge=1, le=MAX_BUDGET)] | None = None
    """Maximum number of nodes in the draft; None for the server's setting, up to the page's limit."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    """Seed of the strategy ``sampling``."""
    places: Annotated[int, Field(ge=0, le=MAX_PLACES)] = 0
    """Maximum number of places to find in the corpus files for the longest known suffix; 0 disables the search."""

    @classmethod
    def read(cls, body: bytes) -> Question:
        """Read a question.

        Raises:
            DraftRequestError: the question is invalid; the message is one line that ends with the fix.
        """
        try:
            question = cls.model_validate(read_json(body))
        except ValidationError as error:
            raise DraftRequestError(_message_of(error)) from None
        if (question.text is None) == (question.token_ids is None):
            raise DraftRequestError("send either text or token_ids")
        return question


def _message_of(error: ValidationError) -> str:
    problem = error.errors(include_input=False, include_url=False, include_context=False)[0]
    where = ".".join(map(str, problem["loc"]))[:_LONGEST_NAME]
    if problem["type"] == "extra_forbidden":
        return f"there is no field {where!r}; send {', '.join(Question.model_fields)}"
    if not where:
        return "this is not a question; send one JSON object"
    return f"{where}: {humanise(problem)}; correct it"
