"""Signals end a command at any point."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Iterator

import pytest

from speculant_graph.cli.main import signals_unwind


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a background process ignores SIGINT
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(
    ("number", "ending", "code"),
    [(signal.SIGINT, KeyboardInterrupt, None), (signal.SIGTERM, SystemExit, 143), (signal.SIGHUP, SystemExit, 129)],
)
def test_a_signal_leaves_by_an_exception(number: signal.Signals, ending: type[BaseException], code: int | None) -> None:
    before = signal.getsignal(number)
    with pytest.raises(ending) as left, signals_unwind():
        signal.raise_signal(number)
    assert getattr(left.value, "code", None) == code
    assert signal.getsignal(number) is before


def test_cleaning_up_is_not_interrupted_by_a_second_signal() -> None:
    cleaned: list[str] = []

    @signals_unwind()
    def end() -> None:
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            signal.raise_signal(signal.SIGTERM)
            cleaned.append("all")

    with pytest.raises(SystemExit):
        end()
    assert cleaned == ["all"]


def test_what_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)  # as nohup does
    try:
        with signals_unwind():
            signal.raise_signal(signal.SIGHUP)
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_does_not_wait_for_a_coroutine_to_await() -> None:
    reached: list[str] = []

    async def busy() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("what comes next")

    with pytest.raises(KeyboardInterrupt), signals_unwind():
        asyncio.run(busy())
    assert not reached
