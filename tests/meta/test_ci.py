"""How ``.ci/run`` judges the suites."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MAKE = """#!/bin/sh
case " check $WITHOUT_TESTS " in *" $1 "*) ;; *) printf . >> "$SPECULANT_TESTS_RUN" ;; esac
[ "$1" != "$CUT_OFF" ] || exit 124
"""


@pytest.mark.parametrize("cut_off", ["", "test-faults", "test-slow"])
@pytest.mark.parametrize("suite", ["", "test", "test-faults", "test-sanitized", "test-slow"])
def test_a_suite_of_which_no_test_ran_has_not_passed(tmp_path: Path, suite: str, cut_off: str) -> None:
    """This holds even if its time was over: a suite without tests has proved nothing."""
    for path, text in ((".ci/run", (ROOT / ".ci/run").read_text()), ("make", MAKE), ("chromium", "")):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).write_text(text)
        (tmp_path / path).chmod(0o700)
    told = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "WITHOUT_TESTS": suite, "CUT_OFF": cut_off}
    run = subprocess.run([tmp_path / ".ci/run"], env=os.environ | told, capture_output=True, text=True, check=False)
    assert (run.returncode != 0) == bool(suite)
    if suite:
        assert run.stdout.splitlines()[-1].startswith(f"{suite} failed: none of its tests ran")
