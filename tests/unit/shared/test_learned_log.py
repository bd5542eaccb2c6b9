"""What was learned, on disk: held against lists in memory; whose it is, and who may have it."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
from itertools import chain
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from speculant_graph.draft import learned_files, learned_records
from speculant_graph.draft.learned import LearnedStore
from speculant_graph.draft.learned_records import Label
from speculant_graph.errors import ConfigError, SpeculantError, TokenizerMismatchError
from speculant_graph.types import Fingerprint
from support.learned import DOCUMENTS, IDENTITY, loaded, log_file, newest, opened, written

STRANGE_TENANTS = ["", "acme", "../../etc/passwd", "a/b\x00c\n", "名前", "\ud800", "🌍" * 1000, ".", "x" * 1000]
TENANTS = st.sampled_from(STRANGE_TENANTS[:2])


class LogAgainstLists(RuleBasedStateMachine):
    """The log does what lists in memory do, whatever is done to it in whatever order."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.next_token_id = 0
        self.documents: dict[str, list[list[int]]] = {}
        self.states: dict[str, bytes] = {}

    @initialize(budget=st.sampled_from([1, 5, 30]))
    def open(self, budget: int) -> None:
        self.budget = budget
        self.log = opened(self.folder, budget)

    @rule(tenant=TENANTS, sizes=st.lists(st.integers(0, 12), min_size=1, max_size=8), as_array=st.booleans())
    def append(self, tenant: str, sizes: list[int], as_array: bool) -> None:
        for size in sizes:
            document = list(range(self.next_token_id, self.next_token_id + size))
            self.next_token_id += size
            assert self.log.append(tenant, np.array(document, np.uint32) if as_array else document)
            if document:
                self.documents.setdefault(tenant, []).append(document)

    @rule(tenant=TENANTS)
    def compact(self, tenant: str) -> None:
        self.log.compact(tenant)

    @rule(tenant=TENANTS)
    def forget(self, tenant: str) -> None:
        self.log.forget(tenant)
        self.documents.pop(tenant, None)

    @rule(tenant=TENANTS)
    def load(self, tenant: str) -> None:
        assert loaded(self.log, tenant) == newest(self.documents.get(tenant, []), self.budget)

    @rule(name=st.sampled_from(["calibration", "../x"]), blob=st.binary(max_size=20))
    def save_state(self, name: str, blob: bytes) -> None:
        assert self.log.save_state(name, blob)
        self.states[name] = blob

    @rule()
    def reopen(self) -> None:
        self.log.close()
        self.log = opened(self.folder, self.budget)

    @rule()
    def save(self) -> None:
        assert self.log.save()
        for path in self.folder.glob("*.log"):  # every token a record of its own, and the header
            assert path.stat().st_size <= 2 * self.budget * 16 + 300

    @precondition(lambda self: any(self.documents.values()))
    @rule(bytes_lost=st.integers(1, 4))
    def tear(self, bytes_lost: int) -> None:
        """A power failure cuts into the newest record of one tenant."""
        tenant = next(tenant for tenant, documents in self.documents.items() if documents)
        self.log.close()
        path = self.folder / Label("log", tenant, "", "").file_name
        os.truncate(path, path.stat().st_size - bytes_lost)
        self.log = opened(self.folder, self.budget)
        left = loaded(self.log, tenant)
        # What was dropped before does not come back, so there may be less than the budget.
        before = list(chain(*self.documents[tenant][:-1]))
        assert before[len(before) - len(list(chain(*left))) :] == list(chain(*left))
        self.documents[tenant] = left

    @invariant()
    def names_are_known(self) -> None:
        assert set(self.log.tenants()) >= self.documents.keys() - {t for t, d in self.documents.items() if not d}
        assert {name: self.log.load_state(name) for name in self.states} == self.states
        assert self.log.load_state("never saved") is None

    def teardown(self) -> None:
        self.log.close()
        log = opened(self.folder, self.budget)
        for tenant, documents in self.documents.items():
            assert loaded(log, tenant) == newest(documents, self.budget)
        log.close()
        shutil.rmtree(self.folder)


TestLogAgainstLists = LogAgainstLists.TestCase
TestLogAgainstLists.settings = settings(max_examples=80, stateful_step_count=20, deadline=None)


def test_tenants_of_any_name_have_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    with opened(folder) as log:
        for number, tenant in enumerate(STRANGE_TENANTS):
            assert log.append(tenant, [1000 + number] * 3)
    assert list(tmp_path.iterdir()) == [folder]
    assert len(list(folder.glob("*.log"))) == len(STRANGE_TENANTS)
    for number, tenant in enumerate(STRANGE_TENANTS):
        needle = np.array([1000 + number], "<u4").tobytes()
        holders = [path.name for path in folder.iterdir() if needle in path.read_bytes()]
        assert holders == [Label("log", tenant, "", "").file_name]
    with opened(folder) as log:
        assert log.tenants() == sorted(STRANGE_TENANTS)
        assert [loaded(log, tenant) for tenant in STRANGE_TENANTS] == [
            [[1000 + number] * 3] for number in range(len(STRANGE_TENANTS))
        ]
        assert log.load("unknown") == []
        assert len(log.tenants()) == len(STRANGE_TENANTS)


def test_forgetting_removes_the_text_from_disk(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        for tenant in ("a", "b"):
            log.append(tenant, [123_456] * 3)
        log.forget("a")
        log.forget("never seen")
        assert log.tenants() == ["b"]
        assert sum(np.array([123_456], "<u4").tobytes() in path.read_bytes() for path in tmp_path.iterdir()) == 1
        log.append("a", [1])
        assert loaded(log, "a") == [[1]]
        assert loaded(log, "b") == [[123_456] * 3]


def test_only_this_user_can_read(tmp_path: Path) -> None:
    previous = os.umask(0)
    try:
        with opened(tmp_path / "new" / "folder") as log:
            log.append("", [1])
            log.compact("")
            log.append("other", [1])
            log.save_state("calibration", b"x")
    finally:
        os.umask(previous)
    folder = tmp_path / "new" / "folder"
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    modes = {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert len(list(folder.iterdir())) == 4
    assert modes == {0o600}


def test_no_document_can_imitate_a_record(tmp_path: Path) -> None:
    imitation = learned_records.packed_record(np.array([5, 6, 7]), Label("log", "", "", IDENTITY.sha256).salt)
    assert len(imitation) % 4 == 0
    with opened(tmp_path) as log:
        assert not log.append("", np.frombuffer(imitation, "<u4"))
        assert not log.append("", [-1])
        assert not log.append("", [1 << 24])
        assert log.append("", [1])
        assert loaded(log) == [[1]]
    assert all(learned_records._MARKER)


def test_open_files_are_few(tmp_path: Path) -> None:
    with opened(tmp_path) as log:
        before = len(os.listdir("/dev/fd"))
        for number in range(3 * learned_files.MAX_OPEN_LOGS):
            assert log.append(str(number), [number])
            assert log.append("often", [number])
            assert list(log._open_logs._logs)[-1] == "often"
            assert len(os.listdir("/dev/fd")) == before + min(number + 2, learned_files.MAX_OPEN_LOGS)
        assert log.save()
        for number in range(3 * learned_files.MAX_OPEN_LOGS):
            assert log.append(str(number), [7])
            assert loaded(log, str(number)) == [[number], [7]]
        assert len(os.listdir("/dev/fd")) == before + learned_files.MAX_OPEN_LOGS
    assert len(os.listdir("/dev/fd")) == before - 1  # the lock


def refusal(folder: Path, identity: Fingerprint = IDENTITY) -> str:
    with pytest.raises(SpeculantError) as caught:
        opened(folder, identity=identity)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_folder_has_one_process(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path\n"
        "from speculant_graph.draft.learned_log import LearnedLog\n"
        "from speculant_graph.types import Fingerprint\n"
        "log = LearnedLog(Path(sys.argv[1]), max_tokens=9, identity=Fingerprint('t', 'ab' * 32, 9))\n"
        "log.append('', [1]); print('open', flush=True); sys.stdin.read()\n"
    )
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        assert child.stdout.readline() == "open\n"
        message = refusal(tmp_path)
        assert str(tmp_path) in message
        assert "name another folder" in message
        child.kill()
    with opened(tmp_path) as log:
        assert loaded(log) == [[1]]
        assert str(tmp_path) in refusal(tmp_path)
    opened(tmp_path).close()


def test_other_tokenizers_are_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    written(tmp_path / "log", DOCUMENTS)
    with opened(tmp_path / "state") as log:
        log.save_state("calibration", b"x")
    other = Fingerprint("other/tokenizer", "cd" * 32, 50_000)
    for folder in (tmp_path / "log", tmp_path / "state"):
        with pytest.raises(TokenizerMismatchError, match=r"some/tokenizer \(abababababab\), not with other/tokenizer"):
            opened(folder, identity=other)
    renamed = Fingerprint("/a/copy", IDENTITY.sha256, 50_000)
    with opened(tmp_path / "log", identity=renamed) as log:
        assert loaded(log) == DOCUMENTS
        assert log.append("", [1])
        assert log.append("new", [1])
    with opened(tmp_path / "log") as log:
        assert loaded(log) == [*DOCUMENTS, [1]]


def test_future_versions_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(learned_records, "VERSION", 2)
        path = written(tmp_path, DOCUMENTS)
    before = path.read_bytes()
    message = refusal(tmp_path)
    assert "format 2" in message
    assert "update speculant-graph" in message
    assert path.read_bytes() == before


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"text")
    assert str(tmp_path / "file") in refusal(tmp_path / "file")
    assert str(tmp_path / "file") in refusal(tmp_path / "file" / "folder")


def test_strange_files_are_left_alone_and_what_killed_processes_left_is_removed(tmp_path: Path) -> None:
    path = written(tmp_path, DOCUMENTS)
    left_over = path.with_name(path.name + ".new")
    strange = [tmp_path / name for name in ("notes.log", "draft.new", "x.state", "notes.log.new")]
    for file in (left_over, *strange):
        file.write_bytes(b"half")
    with opened(tmp_path) as log:
        assert loaded(log) == DOCUMENTS
        log.compact("")
        log.save_state("calibration", b"1")
    assert not left_over.exists()
    assert [file.read_bytes() for file in strange] == [b"half"] * 4


def test_the_budget_may_change(tmp_path: Path) -> None:
    documents = [[number] * 10 for number in range(10)]
    path = written(tmp_path, documents)
    size = path.stat().st_size
    for budget in (10_000, 100, 99, 51):
        with opened(tmp_path, budget) as log:
            assert loaded(log) == newest(documents, budget)
            assert log._num_tokens == {"": 100}
        assert path.stat().st_size == size  # not twice the budget
    with opened(tmp_path, 45) as log:
        assert loaded(log) == newest(documents, 45)
        assert log._num_tokens == {"": 45}
    assert path.stat().st_size < size * 0.6
    with opened(tmp_path, 0) as log:
        assert log.append("", [1, 2, 3])
        assert loaded(log) == []
    with opened(tmp_path, 1) as log:
        assert loaded(log) == []
        assert log.append("", range(5))
        assert loaded(log) == [[4]]


def test_logs_over_twice_the_budget_are_compacted_by_themselves(tmp_path: Path) -> None:
    with opened(tmp_path, 100, sync_s=0.001) as log:
        for number in range(2000):
            log.append("", [number] * 10)
    assert log_file(tmp_path).stat().st_size < 200 * 4 + 20 * 12 + 300
    with opened(tmp_path, 100) as log:
        assert loaded(log) == [[number] * 10 for number in range(1990, 2000)]


def test_what_could_not_be_brought_to_disk_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fsync(_: int) -> None:
        raise OSError(5, "Input/output error")

    with opened(tmp_path) as log:
        log.append("", [1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            assert not log.save()
            assert not log.save()
            assert not log.save_state("calibration", b"x")
            log.compact("")
            with pytest.raises(ConfigError, match="remove it yourself"):
                log.forget("other")
        assert log.save()
        assert loaded(log) == [[1]]
        assert log.load_state("calibration") is None


def test_a_log_that_fails_does_not_hold_up_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inodes: list[int] = []
    real_fsync = os.fsync

    def fsync(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == bad:
            raise OSError(5, "Input/output error")
        inodes.append(os.fstat(descriptor).st_ino)
        real_fsync(descriptor)

    with opened(tmp_path) as log:
        for number in range(5):
            log.append(str(number), [1])
        logs = {path.stat().st_ino for path in tmp_path.glob("*.log")}
        bad = min(logs)
        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", fsync)
            assert not log.save()
            assert {*inodes} >= logs - {bad}
            inodes.clear()
            bad = 0
            assert log.save()
            assert {*inodes} & logs == {min(logs)}


def test_threads_lose_nothing_to_each_other(tmp_path: Path) -> None:
    with opened(tmp_path, 100_000, sync_s=0.001) as log:

        def append(first: int) -> None:
            for number in range(first, first + 300):
                assert log.append("", [number] * 5)
                assert log.append(str(first), [number] * 5)

        threads = [threading.Thread(target=append, args=(first,)) for first in (0, 1000, 2000)]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            log.compact("")
        for thread in threads:
            thread.join()
        numbers = [document[0] for document in loaded(log)]
        for first in (0, 1000, 2000):
            ours = list(range(first, first + 300))
            assert [number for number in numbers if number in ours] == ours
            assert [document[0] for document in loaded(log, str(first))] == ours
        assert len(numbers) == 900


def test_after_closing_appends_are_dropped_and_the_rest_is_an_error(tmp_path: Path) -> None:
    log = opened(tmp_path)
    log.append("", [1])
    log.close()
    log.close()
    size = log_file(tmp_path).stat().st_size
    assert not log.append("", [2])
    for call in (log.save, lambda: log.load(""), lambda: log.forget(""), lambda: log.save_state("x", b"")):
        with pytest.raises(ConfigError, match="closed"):
            call()
    assert log_file(tmp_path).stat().st_size == size


def test_paths_may_be_text_and_budgets_not_negative(tmp_path: Path) -> None:
    with opened(str(tmp_path / "log")) as log:
        assert log.append("", [1, 2])
        assert loaded(log) == [[1, 2]]
    with pytest.raises(ConfigError, match="give 0 or more"):
        opened(tmp_path, -1)
    with pytest.raises(ConfigError, match="give 0 or more"):
        LearnedStore(-1)
