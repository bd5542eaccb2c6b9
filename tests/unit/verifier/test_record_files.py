"""Records in files that outlive disks and processes: writing, reading, bounds, and the reservoir of replay."""

from __future__ import annotations

import dataclasses
import json
import random
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from speculant_graph.config_learning import RecordConfig
from speculant_graph.errors import ConfigError
from speculant_verifier.records import writer as module
from speculant_verifier.records.reader import read_records, replay_of
from speculant_verifier.records.record import RequestRecord
from speculant_verifier.records.writer import RecordWriter
from support.records import record_of


def writing(folder, flush_s=60.0, **settings):
    return RecordWriter(RecordConfig(folder=folder, **settings), flush_s=flush_s)


def numbers(folder, tenant=None):
    return [int(each.request_id) for each in read_records(folder, tenant=tenant)]


def counts(writer):
    return dataclasses.astuple(writer.statistics)[:4]


def size_of(folder, kind="failures"):
    return sum(path.stat().st_size for path in folder.glob(f"{kind}-*.jsonl"))


def wait_for(condition, timeout_s=60.0):
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


@pytest.fixture
def warnings():
    found: list[str] = []
    logger.enable("speculant_verifier")
    sink = logger.add(found.append, level="WARNING", format="{message}")
    yield found
    logger.remove(sink)
    logger.disable("speculant_verifier")


def test_records_come_back_as_they_went(tmp_path):
    folder = tmp_path / "new" / "folder"
    failures = [record_of(number, tenant) for number, tenant in enumerate(("a", "b", "", "a"))]
    kept = record_of(4, "a", key=0.25)
    with writing(folder) as writer:
        for record in (*failures, kept):
            writer.record(record)
        assert not any(path.is_file() for path in tmp_path.rglob("*")), "the caller does not touch the disk"
        writer.flush()
        assert read_records(folder) == failures
    assert read_records(folder, tenant="a") == [failures[0], failures[3]]
    assert read_records(folder, tenant="") == [failures[2]]
    assert replay_of(folder, "a", 9) == replay_of(folder, None, 9) == [kept]
    assert replay_of(folder, "b", 9) == read_records(folder, tenant="c") == []
    assert counts(writer) == (5, 5, 0, 0)
    writer.close()
    writer.record(kept)
    assert counts(writer) == (6, 5, 0, 1)
    assert folder.stat().st_mode & 0o777 == 0o700
    for path in folder.iterdir():
        assert path.stat().st_mode & 0o777 == 0o600
        line = json.loads(path.read_bytes().splitlines()[0])
        assert line["schema_version"] == 1
        assert set(line) == {each.name for each in dataclasses.fields(RequestRecord)}
    assert read_records(tmp_path / "none") == replay_of(tmp_path / "none", None, 3) == []


def test_more_files_than_may_be_open(tmp_path):
    """Every process writes a file of its own."""
    for number in range(40):
        with writing(tmp_path) as writer:
            writer.record(record_of(number))
            writer.record(record_of(100 + number, key=0.5))
    code = (
        "import resource, sys; from speculant_verifier.records.reader import read_records, replay_of; "
        "resource.setrlimit(resource.RLIMIT_NOFILE, (24, 24)); "
        "print(len(read_records(sys.argv[1])), len(replay_of(sys.argv[1], None, 50)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=False)
    assert done.stdout == "40 40\n", done.stderr


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
    """Whatever came when, also over restarts and by two writers in turns."""
    folder = tmp_path_factory.mktemp("replay")
    writers = [writing(folder, replay=size) for _ in range(2)]
    restarts = {len(requests) * (each + 1) // (num_restarts + 1) for each in range(num_restarts)}
    for number, (tenant, key) in enumerate(requests):
        if number in restarts:
            writers[number % 2].close()
            writers[number % 2] = writing(folder, replay=size)
        writers[number % 2].record(record_of(number, tenant, key=key))
        writers[number % 2].flush()
    for writer in writers:
        writer.close()
    for tenant in "ab":
        smallest = sorted(key for each, key in requests if each == tenant)[:size]
        assert [each.reservoir_key for each in replay_of(folder, tenant, size)] == smallest
    together = sorted(key for _, key in requests)[:size]
    assert [each.reservoir_key for each in replay_of(folder, None, size)] == together
    shutil.rmtree(folder)


def test_of_many_requests_few_are_written(tmp_path):
    """Of n about size * (1 + ln(n / size)): here 10 * (1 + ln(200)) = 63."""
    generator = random.Random(1)
    keys = [generator.random() for _ in range(2_000)]
    with writing(tmp_path, replay=10) as writer:
        for number, key in enumerate(keys):
            writer.record(record_of(number, key=key))
    written = writer.statistics.written
    assert 40 < written < 90
    assert counts(writer) == (2_000, written, 2_000 - written, 0)
    assert [each.reservoir_key for each in replay_of(tmp_path, "", 10)] == sorted(keys)[:10]


def test_where_replay_was_deleted_to_make_room_later_requests_take_its_place(tmp_path):
    with writing(tmp_path, replay=3, max_bytes=10_000) as writer:
        for number in range(3):
            writer.record(record_of(number, "a", key=number / 1_000))
        for number in range(3, 40):  # another tenant's take all the room
            writer.record(record_of(number, "b", key=1 / number, num_tokens=40))
            writer.flush()
            assert size_of(tmp_path, "replay") <= 10_000
        assert replay_of(tmp_path, "a", 3) == []
        writer.record(record_of(99, "a", key=0.999))
    assert [each.request_id for each in replay_of(tmp_path, "a", 3)] == ["99"]
    assert writer.statistics.lost == 0


def test_torn_damaged_and_newer_lines_are_left_out(tmp_path, warnings):
    with writing(tmp_path) as writer:
        for number in range(4):
            writer.record(record_of(number))
            writer.record(record_of(number, key=number / 10))
    for path in tmp_path.iterdir():
        lines = path.read_bytes().splitlines(keepends=True)
        newer = lines[1].replace(b'"schema_version":1', b'"schema_version":2')
        assert newer != lines[1]
        path.write_bytes(b"".join([lines[0], newer, b"\xff\xfe{\n", b"\n", lines[2], lines[3][:-20]]))
    assert numbers(tmp_path) == [0, 2]
    assert len(warnings) == 1, "one for the file"
    assert "4 lines" in warnings[0]
    assert [each.request_id for each in replay_of(tmp_path, "", 9)] == ["0", "2"]
    with writing(tmp_path, replay=2) as writer:
        writer.record(record_of(5, key=0.3))
        writer.record(record_of(6, key=0.1))
    assert counts(writer) == (2, 1, 1, 0), "what is damaged counts for nothing"


@pytest.mark.parametrize(
    "spoilt",
    [
        {"prompt": [-1]},
        {"output": [1, 2]},
        {"top_token_ids": [[2**40, -3]]},
        {"top_logprobs": [[-0.5] * 9]},
        {"drafted": [[1, 2]]},
        {"accepted": []},
    ],
)
def test_records_that_contradict_themselves_are_left_out(tmp_path, warnings, spoilt):
    with writing(tmp_path) as writer:
        writer.record(record_of(0))
        writer.record(record_of(1))
    [path] = tmp_path.iterdir()
    first, second = path.read_bytes().splitlines()
    path.write_bytes(json.dumps(json.loads(first) | spoilt).encode() + b"\n" + second + b"\n")
    assert numbers(tmp_path) == [1]
    assert len(warnings) == 1


def test_files_never_take_more_than_the_limit_and_the_newest_stay(tmp_path):
    limit = 20_000
    (tmp_path / "other.jsonl").write_bytes(b"x" * 100_000)
    with writing(tmp_path, max_bytes=limit) as writer:
        for number in range(200):
            writer.record(record_of(number))
            writer.record(record_of(number, key=0.5))
            if number % 7 == 0:
                writer.flush()
                assert size_of(tmp_path) <= limit
                assert size_of(tmp_path, "replay") <= limit
    found = numbers(tmp_path)
    assert found == list(range(200 - len(found), 200))
    assert size_of(tmp_path) > limit * 0.7
    assert (tmp_path / "other.jsonl").stat().st_size == 100_000
    assert counts(writer) == (400, 400, 0, 0)


def test_a_record_over_the_limit_is_lost_alone(tmp_path, warnings):
    with writing(tmp_path, max_bytes=10_000) as writer:
        for number, num_tokens in enumerate((3, 9_000, 100, 3)):
            writer.record(record_of(number, num_tokens=num_tokens))
        writer.record(dataclasses.replace(record_of(9), tenant="\udcff"))
    assert numbers(tmp_path) == [0, 2, 3]
    assert counts(writer) == (5, 3, 0, 2)
    assert len(warnings) == 2


def test_two_writers_share_a_folder_and_its_limit(tmp_path):
    limit = 30_000
    with writing(tmp_path, max_bytes=limit) as one, writing(tmp_path, max_bytes=limit) as two:
        two.record(record_of(0, "two"))
        two.flush()
        for number in range(1, 100):
            one.record(record_of(number, "one"))
            one.flush()
            assert size_of(tmp_path) <= limit
        # The oldest file was deleted while it was in use: what comes next is not lost.
        assert numbers(tmp_path, "two") == []
        two.record(record_of(100, "two"))
        two.flush()
        one.record(record_of(101, "one"))
    found = numbers(tmp_path)
    assert found == list(range(102 - len(found), 102)), "in the order of time, over all files"
    assert one.statistics.lost == two.statistics.lost == 0


def test_a_folder_that_goes_away_comes_back(tmp_path):
    folder = tmp_path / "folder"
    with writing(folder, replay=1) as writer:
        for number in range(2):
            writer.record(record_of(number))
            writer.record(record_of(number, key=0.1))
            writer.flush()
            if not number:
                shutil.rmtree(folder)
    assert numbers(folder) == [1]
    assert [each.request_id for each in replay_of(folder, "", 9)] == ["1"]


def test_a_folder_that_can_not_be_written_costs_records_and_one_warning(tmp_path, warnings):
    folder = tmp_path / "folder"
    with writing(folder, replay=0) as writer:
        folder.rmdir()
        folder.write_bytes(b"a file in its place")
        for number in range(3):
            writer.record(record_of(number))
            writer.record(record_of(number, key=0.1))
            writer.flush()
        assert counts(writer) == (6, 0, 3, 3)
        assert len(warnings) == 1
        assert str(folder) in warnings[0]
        folder.unlink()
        writer.record(record_of(3))
    assert numbers(folder) == [3]
    with pytest.raises(ConfigError, match="name another folder"):
        writing(next(folder.iterdir()))


def test_what_the_disk_does_not_keep_up_with_is_lost_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 100)
    with writing(tmp_path) as writer:
        with writer._writing:  # the disk is slow
            writer.record(record_of(0, num_tokens=1_000))
            for number in range(1, 5):
                writer.record(record_of(number))
        assert counts(writer) == (5, 0, 0, 4), "one is kept, however large"
        writer.flush()
        for number in range(5, 8):
            writer.record(record_of(number))
    assert numbers(tmp_path) == [0, 5, 6, 7]


def test_many_threads_record_at_once(tmp_path):
    with writing(tmp_path, flush_s=0.001) as writer:

        def work(name):
            for number in range(100):
                writer.record(record_of(number, name))

        threads = [threading.Thread(target=work, args=(str(each),)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for name in map(str, range(4)):
        assert numbers(tmp_path, name) == list(range(100))


@pytest.mark.faults
def test_killed_processes_leave_whole_lines(tmp_path):
    program = (
        "import sys, time\n"
        "sys.path.insert(0, sys.argv[3])\n"
        "from pathlib import Path\n"
        "from speculant_graph.config_learning import RecordConfig\n"
        "from speculant_verifier.records.writer import RecordWriter\n"
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
        wait_for(lambda: size_of(folder) > 200_000)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    lines = [line for path in folder.glob("*.jsonl") for line in path.read_bytes().splitlines(keepends=True)]
    torn = [line for line in lines if not line.endswith(b"\n")]
    assert len(torn) <= 2
    records = read_records(folder)
    assert len(records) == len(lines) - len(torn)
    assert all(one.time_s <= two.time_s for one, two in pairwise(records))
    for name in ("one", "two"):
        found = numbers(folder, name)
        assert found == list(range(len(found)))
        assert found


def test_a_full_disk_tears_no_line(tmp_path, warnings):
    with writing(tmp_path) as writer:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
        try:
            for number in range(40):
                writer.record(record_of(number))
                writer.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lost = writer.statistics.lost
        assert 0 < lost < 40
        assert len(warnings) == 1
        writer.record(record_of(99))
    written = writer.statistics.written
    assert counts(writer) == (41, 41 - lost, 0, lost)
    assert numbers(tmp_path) == [*range(written - 1), 99]
    (path,) = tmp_path.iterdir()
    assert len(path.read_bytes().splitlines()) == written
