"""Logging: the library is silent until a program asks for messages."""

from __future__ import annotations

import os
import sys
import traceback
from datetime import UTC
from typing import TYPE_CHECKING, Literal

from loguru import logger

from speculant_graph.file_names import displayed, json_text

if TYPE_CHECKING:
    from loguru import Message, Record

LogFormat = Literal["text", "json"]
"""Format of log messages: text for people, or one JSON object per line."""

_PACKAGES = ("speculant_graph", "speculant_drafter", "speculant_verifier")
_SHOWN_IN_TEXT = {"worker": "w", "request_id": ""}
"""Names of loguru's bound values that text messages show, each with its prefix."""


def silence() -> None:
    """Turn off the log messages of this project's packages; a library must start in this state."""
    for package in _PACKAGES:
        logger.disable(package)


def log_to_stderr(level: str = "INFO", log_format: LogFormat = "text") -> None:
    """Send the log messages of this project's packages to standard error.

    Only programs call this function, never the library.

    Each message goes to the current ``sys.stderr``, so that progress bars there stay below the messages.

    Args:
        level: lowest level of the messages to show.
        log_format: "text", or "json" for one object per line. The object has time (UTC), level, message, logger, and
            bound values (``request_id``, ``method``, ``graph``, ...). For an exception, the object also has the type
            and traceback.
    """
    logger.remove()
    # Values of variables are never printed (diagnose=False), because they may contain users' text.
    if log_format == "json":
        logger.add(_write_json, level=level, format="", backtrace=False, diagnose=False)
    else:
        logger.add(
            _write_text, level=level, format=_text_format, colorize=_has_colors(), backtrace=False, diagnose=False
        )
    for package in _PACKAGES:
        logger.enable(package)


def _text_format(record: Record) -> str:
    extra = record["extra"]
    context = "".join(f" <dim>{mark}{{extra[{key}]}}</dim>" for key, mark in _SHOWN_IN_TEXT.items() if key in extra)
    return f"<dim>{{time:HH:mm:ss.SSS}}</dim> <level>{{level: <7}}</level>{context} {{message}}\n{{exception}}"


def _has_colors() -> bool:
    return sys.stderr.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def _write_text(message: Message) -> None:
    sys.stderr.write(displayed(message))
    sys.stderr.flush()


def _write_json(message: Message) -> None:
    sys.stderr.write(json_line(message.record))
    sys.stderr.flush()


def json_line(record: Record) -> str:
    """Return a log record as one JSON object on one line, including the line end."""
    # Bound values come first, so that they can't replace our own fields.
    line: dict[str, object] = dict(record["extra"])
    line |= {
        "time": record["time"].astimezone(UTC).isoformat(timespec="microseconds"),
        "level": record["level"].name,
        "message": record["message"],
        "logger": record["name"],
    }
    if (exception := record["exception"]) is not None and exception.type is not None:
        line["exception"] = exception.type.__name__
        line["traceback"] = "".join(traceback.format_exception(exception.type, exception.value, exception.traceback))
    return json_text(line) + "\n"
