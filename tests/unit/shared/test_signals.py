"""Signals end a command wherever they find it."""

from __future__ import annotations

import subprocess
import sys

import pytest

CALLED_BACK = """
import ctypes, os, sys, time
from speculant_graph.cli.main import _signals_unwind

def interrupted():
    os.kill(os.getpid(), int(sys.argv[1]))
    time.sleep(0.01)  # here the signal's exception comes up, and machine code can't pass it on

with _signals_unwind():
    ctypes.CFUNCTYPE(None)(interrupted)()
    time.sleep(30)
"""


@pytest.mark.parametrize(("number", "status"), [(15, 143), (2, -2)])
def test_a_signal_in_a_callback_from_machine_code_is_not_lost(number: int, status: int) -> None:
    command = [sys.executable, "-c", CALLED_BACK, str(number)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=25, check=False)
    assert result.returncode == status, result.stderr
    assert "Exception ignored" not in result.stderr
