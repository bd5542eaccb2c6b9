"""Messages to token ids by the model's own chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from speculant_graph.errors import GenerationRequestError
from speculant_graph.types import TokenId

Message = Mapping[str, Any]
"""One message: 'role' and 'content', and whatever else the template takes."""


def chat_tokens(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message], **options: Any) -> list[TokenId]:
    """Return the token ids of a chat, control tokens included, ready for the model's answer.

    The ids come straight from the template's text. Text of a message that spells a control token becomes that token,
    as with transformers: clean text of unknown origin.

    Args:
        tokenizer: the model's; it must have a chat template.
        messages: from the first to the latest, such as ``{"role": "user", "content": "Hello"}``.
        options: for the template, such as ``tools`` or ``reasoning_effort``; ``add_generation_prompt=False`` ends
            without the beginning of an answer, ``chat_template`` replaces the tokenizer's own.

    Raises:
        GenerationError: there is no template, or it can't make anything of the messages.
    """
    if not (options.get("chat_template") or tokenizer.chat_template):
        raise GenerationRequestError(
            "the tokenizer has no chat template; give the prompt as text, or choose a chat model"
        )
    is_list = isinstance(messages, Sequence) and bool(messages)
    if not is_list or not all(isinstance(each, Mapping) and isinstance(each.get("role"), str) for each in messages):
        raise GenerationRequestError('messages must be a list such as [{"role": "user", "content": "Hello"}]; give one')
    try:
        token_ids: Any = tokenizer.apply_chat_template(
            [dict(message) for message in messages],
            **{"add_generation_prompt": True} | options | {"tokenize": True, "return_dict": False},
        )
    except Exception as error:  # a template is a program from the tokenizer
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise GenerationRequestError(
            f"the chat template refuses the messages: {reason}; change their roles, contents or the options"
        ) from error
    return [int(token) for token in token_ids]
