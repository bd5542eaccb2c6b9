"""What was learned survives lost bytes, full disks, and death at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from loguru import logger

from speculant_graph.draft.learned_records import Label
from support.learned import DOCUMENTS, IDENTITY, loaded, log_file, newest, opened, written


@pytest.fixture
def warnings() -> Iterator[list[str]]:
    messages: list[str] = []
    logger.enable("speculant_graph")
    sink = logger.add(lambda message: messages.append(message.record["message"]), level="WARNING")
    yield messages
    logger.remove(sink)
    assert all(len(message.splitlines()) == 1 for message in messages)


def test_truncation_at_every_byte_keeps_all_whole_documents(tmp_path: Path, warnings: list[str]) -> None:
    written(tmp_path / "0", DOCUMENTS[:1])
    ends = []
    for count in range(1, len(DOCUMENTS) + 1):
        shutil.rmtree(tmp_path / "0")
        ends.append(written(tmp_path / "0", DOCUMENTS[:count]).stat().st_size)
    whole = log_file(tmp_path / "0").read_bytes()
    assert ends[-1] == len(whole)
    for size in range(len(whole)):
        log_file(tmp_path / "0").write_bytes(whole[:size])
        warnings.clear()
        kept = [document for document, end in zip(DOCUMENTS, ends, strict=True) if end <= size]
        with opened(tmp_path / "0") as log:
            assert loaded(log) == kept
            at_border = size in (0, *ends, ends[0] - 12 - 4 * len(DOCUMENTS[0]))
            assert bool(warnings) != at_border, size
            assert log.append("", [4, 5])
            assert loaded(log) == [*kept, [4, 5]]
        warnings.clear()
        with opened(tmp_path / "0") as log:  # it was cut off for good
            assert loaded(log) == [*kept, [4, 5]]
        assert not warnings


def test_appending_without_loading_goes_on_behind_a_torn_record(tmp_path: Path, warnings: list[str]) -> None:
    path = written(tmp_path, DOCUMENTS)
    whole = path.read_bytes()
    for size, kept in ((len(whole) - 1, DOCUMENTS[:-1]), (30, []), (5, []), (0, [])):
        path.write_bytes(whole[:size])
        with opened(tmp_path) as log:
            assert log.append("", [9, 9, 9])
        warnings.clear()
        with opened(tmp_path) as log:
            assert loaded(log) == [*kept, [9, 9, 9]]
        assert bool(warnings) == (size > 0)


def test_every_flipped_byte_costs_at_most_its_own_document(tmp_path: Path, warnings: list[str]) -> None:
    path = written(tmp_path, DOCUMENTS)
    whole = path.read_bytes()
    sizes = [12 + 4 * len(document) for document in DOCUMENTS]
    header = len(whole) - sum(sizes)
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x01 if position % 2 else 0xFF
        path.write_bytes(damaged)
        warnings.clear()
        kept = list(DOCUMENTS)
        if position >= header:
            del kept[next(i for i in range(len(sizes)) if position < header + sum(sizes[: i + 1]))]
        with opened(tmp_path) as log:
            assert loaded(log) == kept
            assert warnings
            assert log.append("", [4, 5])
        warnings.clear()
        with opened(tmp_path) as log:
            assert log.tenants() == [""]
            assert loaded(log) == [*kept, [4, 5]]
        assert not warnings


def test_damage_of_any_kind_is_no_error_and_its_size_is_told(tmp_path: Path, warnings: list[str]) -> None:
    path = written(tmp_path, [[number] * 20 for number in range(50)], max_tokens=10_000)
    whole = path.read_bytes()
    rng = random.Random(3)
    for _ in range(100):
        begin, end = sorted(rng.sample(range(len(whole)), 2))
        middle = rng.choice([b"", rng.randbytes(rng.randrange(200)), bytes(end - begin), whole[begin:end] * 2])
        path.write_bytes(whole[:begin] + middle + whole[end:])
        with opened(tmp_path, 10_000) as log:
            documents = loaded(log)
        numbers = [document[0] for document in documents]
        assert documents == [[number] * 20 for number in numbers]
        # Those before and behind the damage are all there.
        record, header = 12 + 80, len(whole) - 50 * (12 + 80)
        before, behind = max(begin - header, 0) // record, -(-max(end - header, 0) // record)
        assert numbers[:before] == list(range(before))
        assert numbers[len(numbers) - (50 - behind) :] == list(range(behind, 50))
    path.write_bytes(whole[: header + 10 * record + 50] + whole[header + 11 * record :])
    warnings.clear()
    with opened(tmp_path) as log:
        assert len(loaded(log)) == 49
    assert [f"50 of {len(whole) - 42} bytes are damaged" in message for message in warnings] == [True]


def test_a_log_is_believed_only_under_its_own_name(tmp_path: Path, warnings: list[str]) -> None:
    with opened(tmp_path) as log:
        log.append("mine", [1, 2])
        log.append("theirs", [3, 4])
    mine, theirs = (tmp_path / Label("log", tenant, "", "").file_name for tenant in ("mine", "theirs"))
    shutil.copy(theirs, mine)
    with opened(tmp_path) as log:
        assert log.tenants() == ["theirs"]
        assert loaded(log, "mine") == []
        assert loaded(log, "theirs") == [[3, 4]]
    assert len(warnings) == 2
    for begin, end in ((-20, None), (0, -20)):  # records without a header, a header without records
        mine.write_bytes(theirs.read_bytes()[begin:end])
        with opened(tmp_path) as log:
            assert loaded(log, "mine") == []
        assert mine.read_bytes() == Label("log", "mine", IDENTITY.name, IDENTITY.sha256).header()


def test_states_are_whole_or_not_there(tmp_path: Path, warnings: list[str]) -> None:
    with opened(tmp_path) as log:
        assert log.load_state("calibration") is None
        assert log.save_state("calibration", b"first")
        assert log.save_state("calibration", b"second and longer")
        assert log.save_state("empty", b"")
    (path,) = (path for path in tmp_path.glob("*.state") if b"second" in path.read_bytes())
    whole = path.read_bytes()
    for size in range(len(whole)):
        path.write_bytes(whole[:size])
        with opened(tmp_path) as log:
            assert log.load_state("calibration") is None
            assert log.load_state("empty") == b""
    for position in range(len(whole)):
        warnings.clear()
        path.write_bytes(whole[:position] + bytes([whole[position] ^ 0x10]) + whole[position + 1 :])
        with opened(tmp_path) as log:
            assert log.load_state("calibration") is None
            assert warnings
            if position % 20 == 0:
                assert log.save_state("calibration", b"third")
                assert log.load_state("calibration") == b"third"


FULL_DISK = """
import json, resource, sys
from pathlib import Path
from loguru import logger
from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.types import Fingerprint
messages = []
logger.enable("speculant_graph")
logger.remove()
logger.add(lambda message: messages.append(message.record["message"]))
log = LearnedLog(Path(sys.argv[1]), max_tokens=100_000, identity=Fingerprint("t", "ab" * 32, 9), sync_s=3600)
log.save_state("calibration", b"old")
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, unlimited[1]))
saved = [log.append("", [number] * 30) for number in range(20)]
saved_small = log.append("", [77])
assert not log.is_failing
state = log.save_state("calibration", bytes(2000))
assert log.is_failing
log.compact("")
first = [int(document[0]) for document in log.load("")]
resource.setrlimit(resource.RLIMIT_FSIZE, (10, unlimited[1]))
other = log.append("other", [1])
log.compact("")
resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
again = [log.append("", [99]), log.append("other", [2]), log.save()]
second = [int(document[0]) for document in log.load("")]
others = [int(document[0]) for document in log.load("other")]
old = log.load_state("calibration").decode()
log.close()
print(json.dumps([saved, saved_small, state, first, other, again, second, others, old, messages]))
"""


def test_on_a_full_disk_nothing_is_raised_or_half_written(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    saved, saved_small, state, first, other, again, second, others, old, messages = json.loads(result.stdout)
    count = sum(saved)
    assert 3 < count < 10
    assert saved == [True] * count + [False] * (20 - count)
    assert saved_small
    assert not state
    assert not other
    assert first == [*range(count), 77]
    assert again == [True, True, True]
    assert second == [*first, 99]
    assert others == [2]
    assert old == "old"
    # Twenty failures in two rows, a state, a compaction.
    assert [message.split(": ")[1].split(" fails")[0] for message in messages] == [
        "appending", "saving a state", "appending", "compacting"
    ]  # fmt: skip
    assert all(str(tmp_path) in message and "check space" in message for message in messages)
    assert not list(tmp_path.glob("*.new"))
    with opened(tmp_path) as log:
        assert [document[0] for document in loaded(log)] == second


def test_all_that_is_renamed_is_on_disk_before_and_its_folder_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    events: list[tuple[str, str]] = []
    real_fsync, real_rename = os.fsync, os.replace

    def fsync(descriptor: int) -> None:
        status = os.fstat(descriptor)
        names = [path.name for path in (tmp_path, *tmp_path.iterdir()) if os.path.samestat(path.stat(), status)]
        events.append(("sync", names[0]))
        real_fsync(descriptor)

    def rename(source: Path, target: Path) -> None:
        events.append(("rename", Path(source).name))
        real_rename(source, target)

    with opened(tmp_path, 10) as log:
        monkeypatch.setattr(os, "fsync", fsync)
        monkeypatch.setattr(os, "replace", rename)
        folder = ("sync", tmp_path.name)
        log.append("", [1] * 6)
        assert events == []
        path = log_file(tmp_path)
        log.save()
        assert events == [("sync", path.name), folder]
        events.clear()
        log.save()
        assert events == []
        temporary = path.name + ".new"
        log.compact("")
        assert events == [("sync", temporary), ("rename", temporary), folder]
        events.clear()
        log.save_state("calibration", b"x")
        (state,) = tmp_path.glob("*.state")
        assert events == [("sync", state.name + ".new"), ("rename", state.name + ".new"), folder]
        events.clear()
        log.append("", [2] * 10)
        log.append("", [3] * 10)
        log.save()
        assert events == [
            ("sync", path.name), ("sync", temporary), ("rename", temporary), folder, folder
        ]  # fmt: skip
        log.append("", [4])
        events.clear()
    assert events == [("sync", path.name), folder]


# Kills a child at its n-th call of the system, for every n, and looks at what it left.
EVERY_CALL = """
import os, shutil, signal, sys
from pathlib import Path
from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.types import Fingerprint

folder, origin = Path(sys.argv[1]) / "copy", Path(sys.argv[1]) / "origin"

def opened(path):
    return LearnedLog(path, max_tokens=30, identity=Fingerprint("t", "ab" * 32, 9), sync_s=3600)

def contents(log):
    return [document.tolist() for document in log.load("")], log.load_state("s"), [d.tolist() for d in log.load("b")]

def change(log):
    log.append("", [9] * 4)
    log.compact("")
    log.save_state("s", b"new")
    log.append("b", [5])
    log.save()
    log.forget("b")

def die_at(last):
    count = 0
    def counted(real):
        def call(*arguments, **options):
            nonlocal count
            count += 1
            if count == last:
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*arguments, **options)
        return call
    for name in ("open", "write", "fsync", "replace", "rename", "unlink", "ftruncate"):
        setattr(os, name, counted(getattr(os, name)))

log = opened(origin)
for number in range(5):
    log.append("", [number] * 10)
log.save_state("s", b"old")
log.close()
old, new = [[2] * 10, [3] * 10, [4] * 10], [[2] * 6, [3] * 10, [4] * 10, [9] * 4]
seen = set()
for last in range(1, 100):
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(origin, folder)
    child = os.fork()
    if not child:
        log = opened(folder)
        die_at(last)
        change(log)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    log = opened(folder)
    documents, state, other = contents(log)
    assert documents in (old, new), documents
    assert state in (b"old", b"new"), state
    assert other in ([], [[5]]), other
    assert not list(folder.glob("*.new"))
    assert log.append("", [8]) and log.load("")[-1].tolist() == [8]
    log.close()
    seen.add((documents == new, state, bool(other)))
    if not os.WIFSIGNALED(status):
        break
assert os.WEXITSTATUS(status) == 0 and last > 15, (status, last)
assert (documents == new, state, other) == (True, b"new", []), (documents, state, other)
print(last, sorted(seen))
"""


def test_death_at_every_call_leaves_the_old_or_the_new(tmp_path: Path) -> None:
    result = subprocess.run(
        [sys.executable, "-c", EVERY_CALL, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert "(False, b'old', False)" in result.stdout
    assert "(True, b'new', True)" in result.stdout


KILLED = """
import os, sys
from pathlib import Path
from speculant_graph.draft.learned_log import LearnedLog
from speculant_graph.types import Fingerprint
log = LearnedLog(Path(sys.argv[1]), max_tokens=500, identity=Fingerprint("t", "ab" * 32, 9), sync_s=0.0005)
number = int(sys.argv[2])
while True:
    for tenant in ("", "other"):
        assert log.append(tenant, [number] * (number % 37 + 1))
    os.write(1, number.to_bytes(4, "little"))
    if number % 50 == 0:
        log.compact("")
    number += 1
"""


def test_killed_processes_lose_nothing_that_was_appended(tmp_path: Path) -> None:
    first = 1
    for milliseconds in (5, 30, 80, 150):
        child = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), str(first)], stdout=subprocess.PIPE)
        with child:
            assert child.stdout is not None
            acknowledged = child.stdout.read(4)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(milliseconds / 1000)
            # The pipe holds all that was acknowledged, or the child waits for room in it.
            os.kill(child.pid, signal.SIGKILL)
            acknowledged += child.stdout.read()
        last = int.from_bytes(acknowledged[-4:], "little")
        assert last == first + len(acknowledged) // 4 - 1
        with opened(tmp_path, 500) as log:
            newest_numbers = []
            for tenant in ("", "other"):
                documents = loaded(log, tenant)
                newest_numbers.append(documents[-1][0])
                expected = [[number] * (number % 37 + 1) for number in range(1, newest_numbers[-1] + 1)]
                assert documents == newest(expected[-600:], 500)
            assert last <= newest_numbers[1] <= newest_numbers[0] <= last + 1
            assert not list(tmp_path.glob("*.new"))
            if newest_numbers[1] < newest_numbers[0]:
                log.append("other", [newest_numbers[0]] * (newest_numbers[0] % 37 + 1))
            first = newest_numbers[0] + 1
