from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Message = Mapping[str, Any]


def chat_tokens(tokenizer: Any, messages: Any, **options: Any) -> list[int]:
    ids: list[int] = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False, **options)
    return ids
