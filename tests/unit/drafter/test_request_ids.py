"""Names of calls."""

from __future__ import annotations

import re

import pytest
from loguru import logger

from speculant_graph.serving.request_ids import bound_to_messages, request_id_of


def test_a_sane_id_of_the_client_is_kept() -> None:
    assert request_id_of([("a", "b"), ("x-request-id", "Req.1_2-3")]) == "Req.1_2-3"
    assert request_id_of([("x-request-id", "a" * 64)]) == "a" * 64
    assert request_id_of([("x-request-id", "not sane"), ("x-request-id", "sane")]) == "sane"


@pytest.mark.parametrize(
    "value", ["", "a" * 65, "two words", "line\nend", "end\n", "ümlaut", "{x}", "\x1b[31m", b"abc"]
)
def test_another_is_replaced_by_a_random_one(value: str | bytes) -> None:
    ids = {request_id_of([("x-request-id", value)]) for _ in range(20)}
    assert len(ids) == 20
    assert all(re.fullmatch("[0-9a-f]{16}", name) for name in ids)


def test_without_metadata_it_is_random() -> None:
    assert re.fullmatch("[0-9a-f]{16}", request_id_of(None))
    assert re.fullmatch("[0-9a-f]{16}", request_id_of(()))


def test_messages_carry_it_and_what_else_is_known() -> None:
    bound: list[dict[str, object]] = []
    logger.remove()
    logger.add(lambda message: bound.append(message.record["extra"]), format="")
    with bound_to_messages("abc", method="Draft"):
        logger.info("inside")
    logger.info("outside")
    assert bound == [{"request_id": "abc", "method": "Draft"}, {}]
