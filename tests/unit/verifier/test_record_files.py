"""The database of records: writing, reading, limits, faults, and the replay sample."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.config import RecordConfig
from speculant_verifier.records import database as module
from speculant_verifier.records.database import DATABASE, RecordWriter, read_records, replay_of
from speculant_verifier.records.record import RequestRecord
from support.records import record_of


def writing(folder, flush_s=60.0, num_replay=200, **settings):
    return RecordWriter(RecordConfig(folder=folder, **settings), flush_s=flush_s, num_replay=num_replay)


def numbers(folder, tenant=None):
    return [int(each.request_id) for each in read_records(folder, tenant=tenant)]


def counts(writer):
    return writer.statistics.recorded, writer.statistics.written, writer.statistics.lost


def change(folder, statement, *values):
    with closing(sqlite3.connect(folder / DATABASE)) as connection, connection:
        connection.execute(statement, values)


def wait_for(condition, timeout_s=60.0):
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_records_come_back_as_they_went(tmp_path):
    folder = tmp_path / "new" / "folder"
    failures = [record_of(number, tenant) for number, tenant in enumerate(("a", "b", "", "a"))]
    kept = record_of(4, "a", key=0.25)
    with writing(folder) as writer:
        for record in (*failures, kept):
            writer.record(record)
        assert numbers(folder) == [], "the caller does not touch the disk"
        writer.flush()
        assert read_records(folder) == failures
    assert read_records(folder, tenant="a") == [failures[0], failures[3]]
    assert read_records(folder, tenant="") == [failures[2]]
    assert replay_of(folder, "a", 9) == replay_of(folder, None, 9) == [kept]
    assert replay_of(folder, "b", 9) == read_records(folder, tenant="c") == []
    assert counts(writer) == (5, 5, 0)
    writer.close()
    writer.record(kept)
    assert counts(writer) == (6, 5, 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in folder.iterdir()] == [DATABASE]
    assert (folder / DATABASE).stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(folder / DATABASE)) as connection:
        line = json.loads(connection.execute("SELECT record FROM records").fetchone()[0])
    assert set(line) == {each.name for each in dataclasses.fields(RequestRecord)}
    assert read_records(tmp_path / "none") == replay_of(tmp_path / "none", None, 3) == []


def test_the_thread_writes_without_being_asked(tmp_path):
    with writing(tmp_path, flush_s=0.01) as writer:
        writer.record(record_of())
        wait_for(lambda: writer.statistics.written == 1)
        assert numbers(tmp_path) == [0]


@given(
    st.lists(st.tuples(st.sampled_from("ab"), st.floats(0, 1, exclude_max=True)), unique_by=lambda each: each[1]),
    st.integers(0, 4),
    st.integers(0, 4),
)
def test_replay_is_the_requests_with_the_smallest_keys(tmp_path_factory, requests, size, num_restarts):
    """This holds in any order, across restarts, and with two alternating writers."""
    folder = tmp_path_factory.mktemp("replay")
    writers = [writing(folder, num_replay=size) for _ in range(2)]
    restarts = {len(requests) * (each + 1) // (num_restarts + 1) for each in range(num_restarts)}
    for number, (tenant, key) in enumerate(requests):
        if number in restarts:
            writers[number % 2].close()
            writers[number % 2] = writing(folder, num_replay=size)
        writers[number % 2].record(record_of(number, tenant, key=key))
        if number % 3:
            writers[number % 2].flush()
    for writer in writers:
        writer.close()
    for tenant in "ab":
        smallest = sorted(key for each, key in requests if each == tenant)[:size]
        assert [each.reservoir_key for each in replay_of(folder, tenant, 99)] == smallest
    together = sorted(key for _, key in requests)[:size]
    assert [each.reservoir_key for each in replay_of(folder, None, size)] == together
    shutil.rmtree(folder)


def test_records_never_take_more_than_the_limit_and_the_newest_stay(tmp_path):
    with writing(tmp_path, max_bytes=20_000) as writer:
        for number in range(200):
            writer.record(record_of(number))
            writer.record(record_of(number, key=0.5 - number / 1_000))
            if number % 7 == 0:
                writer.flush()
                assert (tmp_path / DATABASE).stat().st_size < 2 * 20_000 + 40_000
    found, replay = numbers(tmp_path), replay_of(tmp_path, "", 999)
    for kept in (found, sorted(int(each.request_id) for each in replay)):
        assert kept == list(range(200 - len(kept), 200))
        assert len(kept) > 10
    assert counts(writer) == (400, 400, 0)


@pytest.mark.parametrize(
    "spoilt",
    [
        {"schema_version": 2},
        {"prompt": [-1]},
        None,
    ],
)
def test_damaged_newer_and_contradictory_records_are_left_out(tmp_path, warnings, spoilt):
    with writing(tmp_path) as writer:
        writer.record(record_of(0))
        writer.record(record_of(1))
    content = "{" if spoilt is None else json.dumps(dataclasses.asdict(record_of(0)) | spoilt)
    change(tmp_path, "UPDATE records SET record = ? WHERE id = 1", content)
    assert numbers(tmp_path) == [1]
    assert len(warnings) == 1


def test_what_the_disk_does_not_keep_up_with_is_lost_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 100)
    with writing(tmp_path) as writer:
        with writer._writing:  # the disk is slow
            writer.record(record_of(0, num_tokens=1_000))
            for number in range(1, 5):
                writer.record(record_of(number))
        assert counts(writer) == (5, 0, 4), "one is kept, however large"
        writer.flush()
        for number in range(5, 8):
            writer.record(record_of(number))
    assert numbers(tmp_path) == [0, 5, 6, 7]


@pytest.mark.faults
def test_killed_processes_leave_whole_records(tmp_path):
    program = (
        "import sys, time\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from pathlib import Path\n"
        "from speculant_graph.config import RecordConfig\n"
        "from speculant_verifier.records.database import RecordWriter\n"
        "from support.records import record_of\n"
        "writer = RecordWriter(RecordConfig(folder=Path(sys.argv[1])), flush_s=0.001)\n"
        "print('go', flush=True)\n"
        "number = 0\n"
        "while True:\n"
        "    writer.record(record_of(number, sys.argv[2]))\n"
        "    number += 1\n"
        "    if number % 5 == 0: time.sleep(0.001)\n"
    )
    folder = tmp_path / "folder"
    tests = next(path for path in sys.path if path.endswith("tests"))
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(folder), name, tests], stdout=subprocess.PIPE)
        for name in ("one", "two")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"go\n"
        wait_for(lambda: {each.tenant for each in read_records(folder)} == {"one", "two"})
        wait_for(lambda: (folder / DATABASE).stat().st_size > 200_000)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    for name in ("one", "two"):
        found = numbers(folder, name)
        assert found == list(range(len(found)))
        assert found


def test_a_full_disk_damages_nothing(tmp_path, warnings):
    with writing(tmp_path) as writer:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, limits[1]))
        try:
            for number in range(200):
                writer.record(record_of(number))
                writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lost = writer.statistics.lost
        assert 0 < lost < 200
        assert len(warnings) == 1
        writer.record(record_of(999))
    written = writer.statistics.written
    assert counts(writer) == (201, 201 - lost, lost)
    assert numbers(tmp_path) == [*range(written - 1), 999]
