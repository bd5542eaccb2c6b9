"""What the processes of ``speculant bench engines`` have in common: orders come, results go, a line of JSON each.

This file and the workers beside it run in the engine's own installation, where torch and the rest of this half may be
missing.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

Decode = Callable[[list[list[int]], int], dict[str, Any]]
"""Of prompts and a number of new tokens: ``ids``, ``seconds``, ``passes`` (sequences in each, together), for JSON."""


def serve_orders(start: Callable[[dict[str, Any]], tuple[Decode, Callable[[], list[float]]]]) -> None:
    """Answer orders until there are no more.

    Args:
        start: makes the engine as the first line wants it; returns what decodes, and what tells how long each batch of
            drafts took, seconds.
    """
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # engines print what they like
    decode, draft_times = start(json.loads(sys.stdin.readline()))

    def answer(content: dict[str, Any]) -> None:
        answers.write(json.dumps(content) + "\n")
        answers.flush()

    answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if order.get("times"):
            answer({"times": draft_times()})
        else:
            answer(decode(order["prompts"], order["max_tokens"]))
