"""Learned text on disk, compared with lists in memory, and exclusive use of its folder."""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import tempfile
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from speculant_graph.draft.learning.learned_files import MAX_OPEN_DATABASES
from speculant_graph.errors import SpeculantError, TokenizerMismatchError
from speculant_graph.types import Fingerprint
from support.learned import TOKENIZER, ids, learning, loaded, newest, opened, path_of

STRANGE_TENANTS = ["", "acme", "../../etc/passwd", "a/b\x00c\n", "名前", "\ud800", "🌍" * 1000, ".", "shared"]
TENANTS = st.sampled_from(STRANGE_TENANTS[:2])


class FilesAgainstLists(RuleBasedStateMachine):
    """The files behave like lists in memory, after any operations."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp())
        self.next_token_id = 0
        self.texts: dict[str, list[list[int]]] = {}
        self.states: dict[tuple[str | None, str], bytes] = {}

    @initialize(budget=st.sampled_from([0, 1, 5, 30]))
    def open(self, budget: int) -> None:
        self.budget = budget
        self.files = opened(self.folder, budget)

    @rule(tenant=TENANTS, sizes=st.lists(st.integers(0, 12), min_size=1, max_size=8))
    def append(self, tenant: str, sizes: list[int]) -> None:
        for size in sizes:
            text = list(range(self.next_token_id, self.next_token_id + size))
            self.next_token_id += size
            self.files.append(tenant, ids(text))
            self.texts.setdefault(tenant, []).append(text)

    @rule(tenant=TENANTS)
    def forget(self, tenant: str) -> None:
        had_files = bool(list(self.folder.glob(f"{path_of(self.folder, tenant).stem}*")))
        assert self.files.forget(tenant) is had_files
        self.texts.pop(tenant, None)
        self.states = {key: content for key, content in self.states.items() if key[0] != tenant}
        assert not list(self.folder.glob(f"{path_of(self.folder, tenant).stem}*"))

    @rule(tenant=st.none() | TENANTS, name=st.sampled_from(["rows", "'); --"]), content=st.binary(max_size=20))
    def save_state(self, tenant: str | None, name: str, content: bytes) -> None:
        self.files.save_state(tenant, name, content)
        self.states[tenant, name] = content

    @rule(budget=st.none() | st.sampled_from([0, 3, 100]))
    def reopen(self, budget: int | None) -> None:
        self.files.close()
        if budget is not None:  # dropped texts do not return with a larger budget
            self.texts = {tenant: newest(texts, 2 * self.budget) for tenant, texts in self.texts.items()}
        self.files = opened(self.folder, self.budget)

    @rule()
    def save(self) -> None:
        self.files.save()
        assert not self.files.is_failing
        for path in self.folder.glob("*.sqlite"):  # complete without the write-ahead log
            with closing(sqlite3.connect(f"file:{path}?immutable=1", uri=True)) as database:
                ((num_bytes,),) = database.execute("SELECT coalesce(sum(length(token_ids)), 0) FROM texts")
                assert num_bytes <= 2 * 4 * self.budget

    @invariant()
    def holds_what_lists_hold(self) -> None:
        for tenant in STRANGE_TENANTS[:3]:
            assert loaded(self.files, tenant) == newest(self.texts.get(tenant, []), self.budget)
        for tenant, name in [(None, "never saved"), ("", "rows"), *self.states]:
            assert self.files.load_state(tenant, name) == self.states.get((tenant, name))

    def teardown(self) -> None:
        self.files.close()
        shutil.rmtree(self.folder)


TestFilesAgainstLists = FilesAgainstLists.TestCase
TestFilesAgainstLists.settings = settings(max_examples=40, stateful_step_count=20, deadline=None)


def test_tenants_of_any_name_have_files_of_their_own(tmp_path: Path) -> None:
    folder = tmp_path / "inside"
    with opened(folder) as files:
        for number, tenant in enumerate(STRANGE_TENANTS):
            files.append(tenant, ids([1000 + number] * 3))
    assert list(tmp_path.iterdir()) == [folder]
    for number, tenant in enumerate(STRANGE_TENANTS):
        needle = np.array([1000 + number] * 3, "<u4").tobytes()
        assert [path for path in folder.iterdir() if needle in path.read_bytes()] == [path_of(folder, tenant)]
    num_files = len(list(folder.iterdir()))
    with opened(folder) as files:
        assert [loaded(files, tenant) for tenant in STRANGE_TENANTS] == [
            [[1000 + number] * 3] for number in range(len(STRANGE_TENANTS))
        ]
        assert loaded(files, "unknown") == []
    assert len(list(folder.iterdir())) == num_files, "nothing is made for a tenant that is unknown"


def test_only_this_user_can_read(tmp_path: Path) -> None:
    previous = os.umask(0)
    folder = tmp_path / "new" / "folder"
    try:
        with opened(folder) as files:
            files.append("", ids([1]))
            assert loaded(files) == [[1]]
            assert path_of(folder).with_name(path_of(folder).name + "-wal").exists()
            assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o600}
    finally:
        os.umask(previous)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_open_files_are_few(tmp_path: Path) -> None:
    with opened(tmp_path) as files:
        before = len(os.listdir("/dev/fd"))
        for number in range(2 * MAX_OPEN_DATABASES):
            files.append(str(number), ids([number]))
            assert loaded(files, str(number // 2))
        assert len(os.listdir("/dev/fd")) <= before + 4 * MAX_OPEN_DATABASES
        assert [loaded(files, str(number)) for number in range(40)] == [[[number]] for number in range(40)]
    assert len(os.listdir("/dev/fd")) < before


def refusal(folder: Path, tokenizer: Fingerprint = TOKENIZER) -> str:
    with pytest.raises(SpeculantError) as caught:
        opened(folder, tokenizer=tokenizer)
    assert len(str(caught.value).splitlines()) == 1
    return str(caught.value)


def test_a_folder_has_one_process(tmp_path: Path) -> None:
    with learning(tmp_path, "files.append('', np.array([1])); files.save(); print('open', flush=True); input()") as one:
        assert one.stdout is not None
        assert one.stdout.readline() == "open\n"
        message = refusal(tmp_path)
        assert str(tmp_path) in message
        assert "in use by another process" in message
        one.kill()
    with opened(tmp_path) as files:
        assert loaded(files) == [[1]]
        assert "name another folder" in refusal(tmp_path)
    opened(tmp_path).close()


def test_other_tokenizers_are_refused_and_the_folder_is_free_again(tmp_path: Path) -> None:
    opened(tmp_path).close()
    other = Fingerprint("other/tokenizer", "cd" * 32, 50_000)
    with pytest.raises(TokenizerMismatchError) as caught:
        opened(tmp_path, tokenizer=other)
    assert all(name in str(caught.value) for name in ("some/tokenizer", "other/tokenizer"))
    opened(tmp_path, tokenizer=Fingerprint("/a/copy", TOKENIZER.sha256, 50_000)).close()


def test_a_folder_of_several_graphs_is_refused(tmp_path: Path) -> None:
    opened(tmp_path / "graph").close()
    assert "one level below" in refusal(tmp_path)
    assert not (tmp_path / "shared.sqlite").exists()


def test_other_formats_are_refused_and_left_alone(tmp_path: Path) -> None:
    opened(tmp_path).close()
    with closing(sqlite3.connect(tmp_path / "shared.sqlite")) as database:
        database.execute("PRAGMA user_version = 2")
    before = (tmp_path / "shared.sqlite").read_bytes()
    assert "format 2 of learned text but this release reads 1; update" in refusal(tmp_path)
    assert (tmp_path / "shared.sqlite").read_bytes() == before
