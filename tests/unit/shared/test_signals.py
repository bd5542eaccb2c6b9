"""Signals end a command wherever they find it."""

from __future__ import annotations

import asyncio
import ctypes
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from speculant_graph.cli.signals import signals_unwind
from speculant_graph.errors import GraphError

CALLED_BACK = """
import ctypes, os, sys, time
from speculant_graph.cli.signals import signals_unwind

def interrupted():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.01)  # here the signal's exception comes up, and machine code can't pass it on

with signals_unwind():
    ctypes.CFUNCTYPE(None)(interrupted)()
    time.sleep(30)
"""


@pytest.mark.parametrize(("number", "status"), [(15, 143), (2, -2)])
def test_a_signal_in_a_callback_from_machine_code_is_not_lost(number: int, status: int) -> None:
    command = [sys.executable, "-c", CALLED_BACK, str(number)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert result.returncode == status, result.stderr
    assert "Exception ignored" not in result.stderr


@pytest.fixture
def _interruptible() -> Iterator[None]:
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_that_a_callback_loses(capfd: pytest.CaptureFixture[str]) -> None:
    callback = ctypes.CFUNCTYPE(None)(lambda: signal.raise_signal(signal.SIGINT))

    def ended(after: Callable[[], object]) -> None:
        with signals_unwind():
            callback()
            after()

    def fail() -> None:
        raise RuntimeError("what the compiler says of it")

    for after in (fail, threading.Event().wait):
        with pytest.raises(KeyboardInterrupt):
            ended(after)
    assert capfd.readouterr().err == ""
    callback = ctypes.CFUNCTYPE(None)(lambda: None)
    with pytest.raises(RuntimeError, match="what the compiler says"):
        ended(fail)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_that_machine_code_prints(capfd: pytest.CaptureFixture[str]) -> None:
    def end() -> None:
        with signals_unwind():
            # Prints what comes up, and returns as if nothing were.
            ctypes.pythonapi.PyRun_SimpleString(b"import signal; signal.raise_signal(signal.SIGINT)")
            threading.Event().wait(20)

    with pytest.raises(KeyboardInterrupt):
        end()
    assert capfd.readouterr().err == ""


@pytest.mark.usefixtures("_interruptible")
@pytest.mark.parametrize(("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)])
def test_an_error_that_machine_code_makes_of_a_signal_is_the_signal(
    monkeypatch: pytest.MonkeyPatch, number: signal.Signals, ending: type[BaseException]
) -> None:
    def end_by(error: Exception) -> None:
        with signals_unwind():
            try:
                signal.raise_signal(number)
            except ending:
                raise error from None

    with pytest.raises(ending):
        end_by(RuntimeError("Error building 'model': KeyboardInterrupt"))
    with pytest.raises(GraphError):
        end_by(GraphError("ours are meant"))
    monkeypatch.setattr("speculant_graph.cli.signals._SOON_S", 0.0)
    with pytest.raises(RuntimeError):
        end_by(RuntimeError("much later"))


@pytest.mark.usefixtures("_interruptible")
def test_an_interrupt_does_not_wait_for_a_coroutine_to_await() -> None:
    reached: list[str] = []

    async def busy() -> None:
        signal.raise_signal(signal.SIGINT)
        reached.append("what comes next")

    with pytest.raises(KeyboardInterrupt), signals_unwind():
        asyncio.run(busy())
    assert not reached


def test_a_lost_exit_that_is_no_signals_is_reported_and_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda lost: reported.append(lost.exc_value.code))

    def exits() -> None:
        raise SystemExit(3)

    with signals_unwind():
        ctypes.CFUNCTYPE(None)(exits)()
    assert reported == [3]
