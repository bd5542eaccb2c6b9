"""Log messages as text and as JSON."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from speculant_graph.log import json_line, log_to_stderr


def fail(secret: str) -> None:
    raise ValueError(f"of {len(secret)} characters")


def test_json_of_an_exception_has_its_type_and_traceback_but_no_values(capsys: pytest.CaptureFixture[str]) -> None:
    log_to_stderr("INFO", "json")
    try:
        fail("hu" + "sh")  # the log shows the source line, but no values
    except ValueError as error:
        logger.opt(exception=error).error("it failed")
    log_to_stderr()
    logger.error("in text")
    line, text = capsys.readouterr().err.splitlines()
    assert "ERROR   in text" in text
    found = json.loads(line)
    assert (found["message"], found["exception"]) == ("it failed", "ValueError")
    assert found["traceback"].startswith("Traceback")
    assert "in fail" in found["traceback"]
    assert found["traceback"].endswith("ValueError: of 4 characters\n")
    assert "hush" not in line


@given(st.dictionaries(st.text(min_size=1), st.text() | st.integers() | st.binary()), st.text())
def test_whatever_is_said_is_one_line(bound: dict[str, object], message: str) -> None:
    lines: list[str] = []
    logger.remove()
    logger.add(lambda message: lines.append(json_line(message.record)), format="")
    logger.bind(**bound).info("{}", message)
    (line,) = lines
    assert line.splitlines(keepends=True) == [line]
    found = json.loads(line)
    assert found["message"] == message
    assert found.keys() == {"time", "level", "message", "logger", *bound}
