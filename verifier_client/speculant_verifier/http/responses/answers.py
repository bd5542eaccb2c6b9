"""What clients of the Responses API get. Only fields that were given a value are sent."""

from __future__ import annotations

from typing import Any, Literal

from speculant_verifier.http.answers import Answer, Speculation

Status = Literal["in_progress", "completed", "incomplete"]


class OutputPart(Answer):
    """A piece of an item's content."""

    type: Literal["output_text", "reasoning_text"]
    """Said, or thought."""
    text: str
    """The text."""
    annotations: list[Any] | None = None
    """Of said text: none."""
    logprobs: list[Any] | None = None
    """Of said text: none."""


class OutputItem(Answer):
    """A message, a call or thoughts."""

    id: str
    """Its id."""
    type: Literal["message", "function_call", "reasoning"]
    """Which of these."""
    status: Status
    """'incomplete' if it was cut off."""
    role: Literal["assistant"] | None = None
    """Of a message."""
    content: list[OutputPart] | None = None
    """Of a message and of thoughts: one part."""
    summary: list[Any] | None = None
    """Of thoughts: nothing, they are returned as they are."""
    call_id: str | None = None
    """Of a call: what its output names."""
    name: str | None = None
    """Of a call: the function."""
    arguments: str | None = None
    """Of a call: JSON text."""


class InputDetails(Answer):
    """What became of the input."""

    cached_tokens: int
    """Those that an earlier request of the tenant began with, too, so that they were not read again."""
    cache_write_tokens: int
    """0: nothing is charged for keeping a prompt."""


class OutputDetails(Answer):
    """What the output consists of."""

    reasoning_tokens: int
    """Tokens of thoughts, by their text."""


class ResponseUsage(Answer):
    """Token counts."""

    input_tokens: int
    """Of the prompt."""
    input_tokens_details: InputDetails
    """What became of it."""
    output_tokens: int
    """Of the answer, thoughts and end tokens included."""
    output_tokens_details: OutputDetails
    """What it consists of."""
    total_tokens: int
    """The sum."""


class IncompleteDetails(Answer):
    """Why an answer is incomplete."""

    reason: Literal["max_output_tokens"]
    """It has as many tokens as it may."""


class ResponseAnswer(Answer):
    """An answer, or what is known of it so far."""

    id: str
    """Its id; a later request may go on from it."""
    object: Literal["response"]
    """'response'."""
    created_at: int
    """Seconds since 1970."""
    status: Status
    """'incomplete' if it was cut off."""
    error: None
    """Always null: errors are answers of their own."""
    incomplete_details: IncompleteDetails | None
    """Why it is incomplete."""
    model: str
    """The model's name."""
    output: list[OutputItem]
    """Items in the order in which they came."""
    usage: ResponseUsage | None = None
    """Token counts, when it has ended."""
    speculant: Speculation | None = None
    """How the answer came about, when it has ended."""
    instructions: str | None
    """As in the request, like all that follows."""
    max_output_tokens: int | None
    """Most new tokens."""
    metadata: dict[str, str]
    """Whatever was sent."""
    parallel_tool_calls: bool
    """Whether several calls were asked for."""
    previous_response_id: str | None
    """What it goes on from."""
    reasoning: dict[str, Any]
    """How it was to think."""
    store: bool
    """Whether it is kept."""
    temperature: float
    """What it was drawn with."""
    text: dict[str, Any]
    """Its form."""
    tool_choice: Any
    """Whether it had to call."""
    tools: list[dict[str, Any]]
    """What it could call."""
    top_p: float
    """What it was drawn from."""
    truncation: Literal["disabled"]
    """'disabled'."""


class ResponseEvent(Answer):
    """One event of a stream; which fields it has depends on its type."""

    type: str
    """Such as 'response.output_text.delta'."""
    sequence_number: int
    """0, 1, 2 ..."""
    response: ResponseAnswer | None = None
    """Of the events that begin and end a response."""
    output_index: int | None = None
    """Which item."""
    item_id: str | None = None
    """Its id."""
    content_index: int | None = None
    """0: items have one part."""
    item: OutputItem | None = None
    """Of the events that begin and end an item."""
    part: OutputPart | None = None
    """Of the events that begin and end a part."""
    delta: str | None = None
    """More text."""
    text: str | None = None
    """All text."""
    name: str | None = None
    """The function that is called."""
    arguments: str | None = None
    """All arguments."""
    logprobs: list[Any] | None = None
    """None."""
    code: str | None = None
    """Of an error."""
    message: str | None = None
    """Of an error."""
    param: str | None = None
    """Of an error."""
