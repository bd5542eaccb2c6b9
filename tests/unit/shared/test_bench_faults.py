"""'speculant bench faults': what is sent, what is held against limits, and a small run of all of it."""

from __future__ import annotations

import copy
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import psutil
import pytest
from google.protobuf.message import DecodeError

from speculant_graph.bench.faults_connections import MALFORMED, PREFACE
from speculant_graph.bench.faults_fuzz import shows_python
from speculant_graph.bench.faults_mutations import MutatedCall, mutated_calls
from speculant_graph.bench.faults_report import missed, rows_of
from speculant_graph.cli.bench import run
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.v1 import drafter_pb2 as pb

TEXT = [Random(3).randrange(50) for _ in range(300)]
REQUESTS = {
    "Draft": pb.DraftRequest, "StreamDraft": pb.StreamDraftRequest, "OpenSession": pb.OpenSessionRequest,
    "CloseSession": pb.CloseSessionRequest, "ListGraphs": pb.ListGraphsRequest, "LoadGraph": pb.LoadGraphRequest,
    "ReloadGraph": pb.ReloadGraphRequest, "UnloadGraph": pb.UnloadGraphRequest,
    "SaveLearnedState": pb.SaveLearnedStateRequest, "GetStatistics": pb.GetStatisticsRequest,
}  # fmt: skip
QUANTILES = {"p50": 1.0, "p99": 2.0, "max": 3.0}
STOP = {"steps_before_open": 3.0, "before_open_ms": QUANTILES, "open_us": QUANTILES, "back_ms": [50.0], "different": 0}
KILL = {
    "steps_meanwhile": 9, "raised": 0, "meanwhile_ms": QUANTILES, "back_ms": [50.0], "reopened": 4, "compared": 20,
    "different": 0,
}  # fmt: skip
GOOD: dict[str, dict[str, Any]] = {
    "stop": {"blocking": STOP, "asyncio": STOP},
    "kill": {"blocking": KILL, "asyncio": KILL},
    "reload": {
        "requests": 100, "reloads": 5, "reloads_per_s": 2.0, "failures": 0, "neither": 0, "misnamed": 0,
        "moved_sessions": 0, "ms": QUANTILES, "quiet_ms": QUANTILES,
    },
    "sessions": {
        "sessions": 100, "refused": 3, "failures": 0, "opens_per_s": 50.0, "limit_bytes": 1000, "most_bytes": 1000,
        "samples": 7, "most_open": 9, "evicted": 91, "resident_before": 1, "resident_after": 2, "live_steps": 10,
        "live_late": 0, "live_lost": 0,
    },
    "fuzz": {
        "seed": 0, "messages": 10, "statuses": {"OK": 4, "INVALID_ARGUMENT": 6}, "leaks": 0, "connections": 5,
        "slow": 2, "slow_s": 1.0, "slow_sent_away": 0, "good_steps": 9, "good_answered": 8, "good_wrong": 0,
        "good_longest_gap_ms": 80.0, "resident_warm": 100, "resident_after": 110, "descriptors_warm": 30,
        "descriptors_after": 30, "logged_errors": 0, "serving": True,
    },
}  # fmt: skip
BAD = [
    ("stop", {"asyncio": {**STOP, "open_us": {**QUANTILES, "p99": 100.0}}}, "100 µs"),
    ("stop", {"blocking": {**STOP, "back_ms": [20.0, 301.0]}}, "300 ms"),
    ("stop", {"blocking": {**STOP, "different": 1}}, "the same drafts"),
    ("kill", {"asyncio": {**KILL, "raised": 1}}, "raises"),
    ("kill", {"asyncio": {**KILL, "back_ms": [501.0]}}, "500 ms"),
    ("kill", {"blocking": {**KILL, "different": 1}}, "undisturbed"),
    ("reload", {"failures": 1}, "no failures"),
    ("reload", {"neither": 1}, "one of the graphs"),
    ("reload", {"misnamed": 1}, "generation"),
    ("reload", {"moved_sessions": 1}, "generation"),
    ("sessions", {"most_bytes": 1001}, "memory"),
    ("sessions", {"failures": 1}, "no failures"),
    ("sessions", {"live_lost": 1}, "live session"),
    ("fuzz", {"statuses": {"OK": 9, "INTERNAL": 1}}, "statuses"),
    ("fuzz", {"statuses": {"OK": 9, "UNKNOWN": 1}}, "statuses"),
    ("fuzz", {"statuses": {"OK": 9, "DEADLINE_EXCEEDED": 1}}, "statuses"),
    ("fuzz", {"leaks": 1}, "Python"),
    ("fuzz", {"logged_errors": 1}, "log"),
    ("fuzz", {"good_wrong": 1}, "good client"),
    ("fuzz", {"good_longest_gap_ms": 1_001.0}, "good client"),
    ("fuzz", {"resident_after": 111}, "memory"),
    ("fuzz", {"descriptors_after": 31}, "descriptors"),
    ("fuzz", {"serving": False}, "serving"),
]
SMALL = [
    *("--tokens", "20000", "--repeats", "1", "--open-steps", "50", "--requests", "60", "--sessions", "300"),
    *("--session-memory-mb", "2", "--messages", "300", "--connections", "40", "--slow", "20", "--slow-s", "1"),
]


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose sockets have short paths: 107 bytes are the most, and those of ``tmp_path`` are long."""
    with tempfile.TemporaryDirectory(prefix="s-") as folder:
        yield Path(folder)


def parsed(call: MutatedCall) -> Any:
    """Return the message of a call; None if it is none."""
    try:
        return REQUESTS[call.method].FromString(call.payload)
    except DecodeError:
        return None


def test_mutated_calls_are_of_every_method_right_and_wrong_and_the_same_again() -> None:
    calls = mutated_calls(2_000, 5, TEXT, "graph")
    assert len(calls) == 2_000
    assert calls == mutated_calls(2_000, 5, TEXT, "graph") != mutated_calls(2_000, 6, TEXT, "graph")
    methods = Counter(call.method for call in calls)
    assert methods.keys() == REQUESTS.keys()
    assert all(call.is_admin == (call.method not in list(REQUESTS)[:4]) for call in calls)
    unparsable = Counter(call.method for call in calls if parsed(call) is None)
    assert all(0 < unparsable[name] < methods[name] for name in ("Draft", "StreamDraft", "OpenSession"))
    drafts = [message for call in calls if call.method == "Draft" and (message := parsed(call)) is not None]
    sizes = {
        name: {len(getattr(each, name)) for each in drafts} for name in ("context_lengths", "session_ids", "seeds")
    }
    assert all(len(found) > 4 for found in sizes.values())
    assert any(len(each.session_ids) != len(each.context_lengths) for each in drafts)
    assert max(len(call.payload) for call in calls) > 1 << 20


def test_no_mutated_call_takes_the_served_graph_away() -> None:
    for call in mutated_calls(4_000, 1, TEXT, "graph"):
        if call.method in ("UnloadGraph", "ReloadGraph") and (message := parsed(call)) is not None:
            assert message.name not in ("", "graph") or getattr(message, "path", ""), call


def test_malformed_connections_never_say_what_a_client_would() -> None:
    random = Random(2)
    for make in MALFORMED.values():
        for _ in range(50):
            payload = make(random)
            assert payload != PREFACE
            assert not payload.startswith(PREFACE) or len(payload) > len(PREFACE) + 9


@pytest.mark.parametrize(
    ("text", "is_shown"),
    [
        ("a session is twice in one step; send one sequence for each", False),
        ("SERVER: Received message larger than max (2 vs. 1)", False),
        ("name one relative to it / or none", False),
        ("ValueError: bad", True),
        ("grpc.RpcException", True),
        ("Traceback (most recent call last)", True),
        ('File "x", line 3', True),
        ("steps.py", True),
        ("/srv/graphs/a.pkl is not a graph file", True),
        ("can't open '/srv/a.pkl'", True),
        ("<class 'int'>", True),
        ("object at 0x7f0012345678", True),
    ],
)
def test_what_python_says_is_known(text: str, is_shown: bool) -> None:
    assert shows_python(text) is is_shown


@pytest.mark.parametrize("section", GOOD)
def test_good_figures_miss_no_limit(section: str) -> None:
    assert missed(section, GOOD[section]) == []
    rows = rows_of(section, GOOD[section])
    assert rows[0] == (section, "within its limits")
    assert len(rows) > 4


@pytest.mark.parametrize(("section", "change", "limit"), BAD)
def test_every_limit_can_be_missed(section: str, change: dict[str, Any], limit: str) -> None:
    figures = {**copy.deepcopy(GOOD[section]), **change}
    [miss] = missed(section, figures)
    assert limit in miss
    assert rows_of(section, figures)[0] == (section, f"missed: {miss}")


def test_a_section_that_does_not_exist_is_named() -> None:
    with pytest.raises(ConfigError, match="only"):
        run(["faults", "--only", "nothing"])


@pytest.mark.faults
@pytest.mark.timeout(300)
def test_the_whole_command(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["faults", *SMALL, "--check", "--json"])
    printed = capsys.readouterr()
    report = json.loads(printed.out.splitlines()[-1])
    assert report["passed"].keys() == GOOD.keys()
    assert status == int(not all(report["passed"].values()))
    # How long something took is the machine's business, and no test's.
    timed = {
        "p99 of steps while open under 100 µs",
        "drafts within 300 ms",
        "drafts within 500 ms",
        "the good client drafts on",
    }
    assert {miss for misses in report["missed"].values() for miss in misses} <= timed
    for section, figures in GOOD.items():
        assert report[section].keys() >= figures.keys()
    assert report["stop"]["blocking"]["open_steps"] == 50
    assert report["kill"]["asyncio"]["reopened"] == 4
    assert report["reload"]["reloads"] >= 3
    assert report["sessions"]["sessions"] == 300
    assert report["sessions"]["evicted"] > 0
    assert sum(report["fuzz"]["statuses"].values()) == report["fuzz"]["messages"] == 300
    assert sum(report["fuzz"]["connection_kinds"].values()) == 40
    assert "fuzz: mutated messages" in printed.err
    assert not psutil.Process().children(recursive=True)


@pytest.mark.faults
def test_ctrl_c_leaves_no_process(short_folder: Path) -> None:
    command = [sys.executable, "-m", "speculant_graph.cli.main", "bench", "faults", *SMALL, "--only", "stop"]
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    with subprocess.Popen([*command, "--open-steps", "100000"], env=environment, stderr=subprocess.PIPE) as process:
        bench = psutil.Process(process.pid)
        assert process.stderr is not None
        while b"blocking client" not in process.stderr.readline():
            assert process.poll() is None
        [server] = bench.children()
        give_up_s = time.monotonic() + 60.0
        while server.status() != psutil.STATUS_STOPPED and time.monotonic() < give_up_s:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        assert process.wait(60.0) == 130
    assert not server.is_running()
    assert not list(short_folder.iterdir())
