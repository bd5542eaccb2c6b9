"""Logging: the library is silent until a program asks for messages."""

from __future__ import annotations

import sys

from loguru import logger

_PACKAGES = ("speculant_graph", "speculant_drafter", "speculant_verifier")


def silence() -> None:
    """Turn the packages' messages off: the state a library must start in."""
    for package in _PACKAGES:
        logger.disable(package)


def log_to_stderr(level: str = "INFO") -> None:
    """Send the packages' messages to standard error; for programs, never called by the library."""
    logger.remove()
    logger.add(
        sys.stderr,
        level=level,
        format="<dim>{time:HH:mm:ss.SSS}</dim> <level>{level: <7}</level> {message}",
        backtrace=False,
        diagnose=False,  # never print variables: they may hold text of users
    )
    for package in _PACKAGES:
        logger.enable(package)
