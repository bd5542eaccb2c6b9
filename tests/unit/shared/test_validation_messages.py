"""Wrong values are told of in plain words, whatever pydantic calls them."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
from pydantic import AfterValidator, BaseModel, Field, TypeAdapter, ValidationError

from speculant_graph.validation_messages import humanise


class Closed(BaseModel, extra="forbid"):
    """Takes nothing."""


def even(number: int) -> int:
    if number % 2:
        raise ValueError("Even numbers only; add 1")
    return number


@pytest.mark.parametrize(
    ("kind", "value", "said"),
    [
        (int, "two", "must be a whole number"),
        (int, 2.5, "must be a whole number"),
        (float, "much", "must be a number"),
        (bool, "maybe", "must be true or false"),
        (str, 5, "must be text"),
        (list[int], 5, "must be a list"),
        (tuple[int, ...], 5, "must be a list"),
        (dict[str, int], 5, "must be an object"),
        (Literal["a", "b"], "c", "must be 'a' or 'b'"),
        (Annotated[int, Field(ge=1)], 0, "must be greater than or equal to 1"),
        (Annotated[list[int], Field(min_length=1)], [], "must have at least 1 item"),
        (Annotated[list[int], Field(max_length=1)], [1, 2], "must have at most 1 item"),
        (Annotated[str, Field(max_length=1)], "ab", "must have at most 1 character"),
        (Annotated[str, Field(pattern="^a$")], "b", "must match pattern '^a$'"),
        (Closed, {"x": 1}, "there is no such setting"),
        (Annotated[int, AfterValidator(even)], 3, "even numbers only; add 1"),
    ],
)
def test_complaints_are_the_rest_of_a_sentence(kind: Any, value: object, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        TypeAdapter(kind).validate_python(value)
    assert humanise(caught.value.errors()[0]) == said
