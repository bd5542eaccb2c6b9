"""Rejected tokens as records: which ones, what they say, and files that outlive disks and processes."""

from __future__ import annotations

import dataclasses
import json
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from loguru import logger

from speculant_graph.errors import ConfigError
from speculant_graph.types import Draft, Proposal
from speculant_verifier.disagreements import Disagreement, DisagreementRecorder, read_disagreements
from speculant_verifier.disagreements import recorder as module
from speculant_verifier.disagreements.rejections import Origin, TargetView, disagreements_of, view_of
from speculant_verifier.rules.follow import follow

ORIGIN = Origin("request", 7, "follow", 0.5, 1e9)


def disagreement(number: int = 0, request_id: str = "r", num_context: int = 3) -> Disagreement:
    return Disagreement(
        request_id=request_id,
        session_id=2**63,
        position=number,
        context=tuple(range(num_context)),
        drafted=1,
        chosen=2,
        drafted_probability=0.25,
        chosen_probability=0.5,
        top_token_ids=(2, 1),
        top_probabilities=(0.5, 0.25),
        path_probability=None,
        q=0.125,
        strategy="tree",
        rule="follow",
        acceptance_rate=0.75,
        time_s=1e9 + 0.5,
    )


@pytest.fixture
def warnings():
    found: list[str] = []
    logger.enable("speculant_verifier")
    sink = logger.add(found.append, level="WARNING", format="{message}")
    yield found
    logger.remove(sink)
    logger.disable("speculant_verifier")


class Chosen:
    """A target that chooses what it is told to, and notes where it is looked at."""

    def __init__(self, choices):
        self.choices = choices
        self.looked: list[tuple[int, tuple[int, ...]]] = []

    def choice_after(self, node):
        return self.choices[node]

    def after(self, node):
        raise NotImplementedError

    def look(self, node, token_ids):
        self.looked.append((node, tuple(token_ids)))
        return TargetView((node,), (1.0,), tuple(token / 1_000 for token in token_ids))


def found(draft, choices, known=(50, 51), context_tokens=64, cut=None):
    target = Chosen(choices)
    verdict = follow(draft, target, lambda: 0.0)
    if cut is not None:
        verdict = dataclasses.replace(verdict, path=verdict.path[:cut], token_ids=verdict.token_ids[:cut])
    records = disagreements_of(known, draft, verdict, target.look, ORIGIN, context_tokens=context_tokens)
    return records, target.looked


def test_the_first_token_that_differs_is_recorded_and_none_behind_it():
    proposals = [Proposal(np.array([3, token], np.uint32), np.array([0.25, 0.75], np.float32)) for token in (5, 6, 8)]
    draft = Draft((5, 6, 8), (0, 1, 2), (0.9, 0.5, 0.25), proposals, strategy="adaptive")
    (record,), looked = found(draft, [5, 7, 8, 9])
    assert looked == [(1, (7, 6))], "the target is looked at where a token was rejected"
    assert record == Disagreement(
        request_id="request", session_id=7, position=3, context=(50, 51, 5), drafted=6, chosen=7,
        drafted_probability=0.006, chosen_probability=0.007, top_token_ids=(1,), top_probabilities=(1.0,),
        path_probability=0.5, q=0.75, strategy="adaptive", rule="follow", acceptance_rate=0.5, time_s=1e9,
    )  # fmt: skip


def test_nothing_is_looked_at_where_all_is_accepted():
    assert found(Draft((5, 6), (0, 1)), [5, 6, 7]) == ([], [])
    assert found(Draft(), [5]) == ([], [])


def test_rejected_siblings_of_the_path_are_recorded_and_subtrees_of_theirs_are_not():
    #             0: a=1    1: b=2     2: below b=3   3: below b=4    4: below a=9
    draft = Draft((1, 2, 3, 4, 9), (0, 0, 2, 2, 1))
    records, looked = found(draft, [2, 99, 4, 99, 5, 99])
    assert [(record.position, record.context, record.drafted, record.chosen) for record in records] == [
        (2, (50, 51), 1, 2),
        (3, (50, 51, 2), 3, 4),
    ]
    assert looked == [(0, (2, 1)), (2, (4, 3))]
    assert [record.path_probability for record in records] == [None, None]
    assert [record.q for record in records] == [None, None]


def test_what_was_cut_off_behind_an_end_token_is_not_judged():
    draft = Draft((1, 2, 3), (0, 1, 2))
    assert len(found(draft, [1, 2, 9, 9])[0]) == 1
    assert found(draft, [1, 2, 9, 9], cut=1)[0] == []
    assert found(draft, [1, 2, 9, 9], cut=2)[0] == []


@st.composite
def cases(draw):
    size = draw(st.integers(0, 12))
    parents = tuple(draw(st.integers(0, index)) for index in range(size))
    token_ids = tuple(draw(st.integers(0, 4)) for _ in range(size))
    choices = draw(st.lists(st.integers(0, 4), min_size=size + 1, max_size=size + 1))
    return Draft(token_ids, parents), choices, draw(st.integers(0, 6)), draw(st.integers(0, 9))


@given(cases())
def test_records_are_those_of_the_obvious_search(case):
    draft, choices, num_known, context_tokens = case
    known = list(range(100, 100 + num_known))
    verdict = follow(draft, Chosen(choices), lambda: 0.0)
    expected = []
    for node in range(len(draft)):
        parent = draft.parents[node]
        if parent and parent - 1 not in verdict.path:
            continue
        depth = verdict.path.index(parent - 1) + 1 if parent else 0
        if draft.token_ids[node] != verdict.token_ids[depth]:
            before = known + list(verdict.token_ids[:depth])
            tail = tuple(before[len(before) - min(context_tokens, len(before)) :])
            expected.append((len(before), tail, draft.token_ids[node], verdict.token_ids[depth]))
    records, looked = found(draft, choices, known, context_tokens)
    assert [(each.position, each.context, each.drafted, each.chosen) for each in records] == sorted(
        expected, key=lambda each: each[0]
    )
    assert len(looked) == len({position for position, *_ in expected})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_view_has_the_probabilities_of_raw_logits(dtype):
    logits = torch.randn(1_000, generator=torch.Generator().manual_seed(1)).mul(3).to(dtype).requires_grad_()
    exact = torch.softmax(logits.detach().double(), -1)
    view = view_of(logits, [7, 999, 7], 5)
    assert view.top_token_ids == tuple(exact.topk(5).indices.tolist())
    assert view.top_probabilities == pytest.approx(exact.topk(5).values.tolist(), rel=1e-4)
    assert view.probabilities == pytest.approx(exact[[7, 999, 7]].tolist(), rel=1e-4)
    assert len(view_of(logits[:3], [0], 16).top_token_ids) == 3


def test_records_come_back_as_they_went(tmp_path):
    records = [disagreement(number) for number in range(5)]
    with DisagreementRecorder(tmp_path / "new" / "folder", max_bytes=100_000) as recorder:
        for record in records:
            recorder.record(record)
        assert not any(path.is_file() for path in tmp_path.rglob("*")) or recorder.statistics.written
        recorder.flush()
        assert list(read_disagreements(tmp_path / "new" / "folder")) == records
        recorder.record(records[0])
    assert list(read_disagreements(tmp_path / "new" / "folder")) == [*records, records[0]]
    assert dataclasses.astuple(recorder.statistics) == (6, 6, 0)
    recorder.close()
    recorder.record(records[0])
    assert dataclasses.astuple(recorder.statistics) == (7, 6, 1)
    (path,) = (tmp_path / "new" / "folder").iterdir()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    line = json.loads(path.read_bytes().splitlines()[0])
    assert line["schema_version"] == 1
    assert line["context"] == [0, 1, 2]
    assert set(line) == {each.name for each in dataclasses.fields(Disagreement)}


def test_the_thread_writes_without_being_asked(tmp_path):
    with DisagreementRecorder(tmp_path, max_bytes=100_000, flush_s=0.01) as recorder:
        recorder.record(disagreement())
        wait_for(lambda: recorder.statistics.written == 1)
        assert len(list(read_disagreements(tmp_path))) == 1


def wait_for(condition, timeout_s=60.0):
    give_up = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < give_up
        time.sleep(0.01)


def test_torn_damaged_and_newer_lines_are_left_out(tmp_path, warnings):
    with DisagreementRecorder(tmp_path, max_bytes=100_000) as recorder:
        for number in range(4):
            recorder.record(disagreement(number))
    (path,) = tmp_path.iterdir()
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(lines)[:-20])
    assert [each.position for each in read_disagreements(tmp_path)] == [0, 1, 2]
    assert not warnings, "a torn end is usual"
    newer = lines[1].replace(b'"schema_version":1', b'"schema_version":2')
    assert newer != lines[1]
    path.write_bytes(b"".join([lines[0], newer, b"\xff\xfe{\n", b"\n", lines[3]]))
    assert [each.position for each in read_disagreements(tmp_path)] == [0, 3]
    assert len(warnings) == 1
    assert "3 lines" in warnings[0]
    assert list(read_disagreements(tmp_path / "none")) == []


def size_of(folder):
    return sum(path.stat().st_size for path in folder.glob("*.jsonl"))


def test_files_never_take_more_than_the_limit_and_the_newest_stay(tmp_path):
    limit = 20_000
    (tmp_path / "other.jsonl").write_bytes(b"x" * 100_000)
    folder_size = 100_000
    with DisagreementRecorder(tmp_path, max_bytes=limit) as recorder:
        for number in range(400):
            recorder.record(disagreement(number))
            if number % 7 == 0:
                recorder.flush()
                assert size_of(tmp_path) - folder_size <= limit
    positions = [each.position for each in read_disagreements(tmp_path)]
    assert positions == list(range(400 - len(positions), 400))
    assert size_of(tmp_path) - folder_size > limit * 0.7
    assert dataclasses.astuple(recorder.statistics) == (400, 400, 0)


def test_a_record_over_the_limit_is_lost_alone(tmp_path, warnings):
    with DisagreementRecorder(tmp_path, max_bytes=10_000) as recorder:
        for number, num_context in enumerate((3, 9_000, 1_000, 3)):
            recorder.record(disagreement(number, num_context=num_context))
    assert [each.position for each in read_disagreements(tmp_path)] == [0, 2, 3]
    assert dataclasses.astuple(recorder.statistics) == (4, 3, 1)
    assert len(warnings) == 1


def test_two_recorders_share_a_folder_and_its_limit(tmp_path):
    limit = 30_000
    with DisagreementRecorder(tmp_path, max_bytes=limit) as one, DisagreementRecorder(tmp_path, max_bytes=limit) as two:
        two.record(disagreement(0, "two"))
        two.flush()
        for number in range(300):
            one.record(disagreement(number, "one"))
            one.flush()
            assert size_of(tmp_path) <= limit
        # The oldest file was deleted while it was in use: what comes next is not lost.
        assert not any(each.request_id == "two" for each in read_disagreements(tmp_path))
        two.record(disagreement(1, "two"))
        two.flush()
        assert [each.position for each in read_disagreements(tmp_path) if each.request_id == "two"] == [1]
    assert one.statistics.lost == two.statistics.lost == 0


def test_a_folder_that_goes_away_comes_back(tmp_path):
    folder = tmp_path / "folder"
    with DisagreementRecorder(folder, max_bytes=100_000) as recorder:
        recorder.record(disagreement(0))
        recorder.flush()
        shutil.rmtree(folder)
        recorder.record(disagreement(1))
        recorder.flush()
        assert [each.position for each in read_disagreements(folder)] == [1]


def test_a_folder_that_can_not_be_written_costs_records_and_one_warning(tmp_path, warnings):
    folder = tmp_path / "folder"
    with DisagreementRecorder(folder, max_bytes=100_000, flush_s=60) as recorder:
        folder.rmdir()
        folder.write_bytes(b"a file in its place")
        for number in range(3):
            recorder.record(disagreement(number))
            recorder.flush()
        assert dataclasses.astuple(recorder.statistics) == (3, 0, 3)
        assert len(warnings) == 1
        assert str(folder) in warnings[0]
        folder.unlink()
        recorder.record(disagreement(3))
    assert [each.position for each in read_disagreements(folder)] == [3]
    with pytest.raises(ConfigError, match="name another folder"):
        DisagreementRecorder(next(folder.iterdir()), max_bytes=100_000)


def test_what_the_disk_does_not_keep_up_with_is_lost_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "MAX_WAITING", 10)
    with DisagreementRecorder(tmp_path, max_bytes=100_000, flush_s=60) as recorder:
        for number in range(15):
            recorder.record(disagreement(number))
        assert dataclasses.astuple(recorder.statistics) == (15, 0, 5)
    assert [each.position for each in read_disagreements(tmp_path)] == list(range(10))


def test_many_threads_record_at_once(tmp_path):
    with DisagreementRecorder(tmp_path, max_bytes=10_000_000, flush_s=0.001) as recorder:

        def work(name):
            for number in range(300):
                recorder.record(disagreement(number, name))

        threads = [threading.Thread(target=work, args=(str(each),)) for each in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    records = list(read_disagreements(tmp_path))
    for name in map(str, range(4)):
        assert [each.position for each in records if each.request_id == name] == list(range(300))


@pytest.mark.faults
def test_killed_processes_leave_whole_lines(tmp_path):
    program = (
        "import dataclasses, json, sys, time\n"
        "from speculant_verifier.disagreements import Disagreement, DisagreementRecorder\n"
        "base = Disagreement(**json.loads(sys.argv[3]))\n"
        "recorder = DisagreementRecorder(sys.argv[1], max_bytes=100_000_000, flush_s=0.001)\n"
        "print('go', flush=True)\n"
        "number = 0\n"
        "while True:\n"
        "    recorder.record(dataclasses.replace(base, position=number, request_id=sys.argv[2]))\n"
        "    number += 1\n"
        "    if number % 5 == 0: time.sleep(0.001)\n"
    )
    folder = tmp_path / "folder"
    fields = json.dumps(dataclasses.asdict(disagreement()))
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(folder), name, fields], stdout=subprocess.PIPE)
        for name in ("one", "two")
    ]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == b"go\n"
        wait_for(lambda: {each.request_id for each in read_disagreements(folder)} == {"one", "two"})
        wait_for(lambda: size_of(folder) > 200_000)
    finally:
        for process in processes:
            process.send_signal(signal.SIGKILL)
            process.communicate()
    files = list(folder.glob("*.jsonl"))
    lines = [line for path in files for line in path.read_bytes().splitlines(keepends=True)]
    torn = [line for line in lines if not line.endswith(b"\n")]
    assert len(torn) <= 2
    records = list(read_disagreements(folder))
    assert len(records) == len(lines) - len(torn)
    for name in ("one", "two"):
        positions = [each.position for each in records if each.request_id == name]
        assert positions == list(range(len(positions)))
        assert positions


def test_a_full_disk_tears_no_line(tmp_path, warnings):
    with DisagreementRecorder(tmp_path, max_bytes=1_000_000, flush_s=60) as recorder:
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (3_000, limits[1]))
        try:
            for number in range(40):
                recorder.record(disagreement(number))
                recorder.flush()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lost = recorder.statistics.lost
        assert 0 < lost < 40
        assert len(warnings) == 1
        recorder.record(disagreement(99))
    written = recorder.statistics.written
    assert recorder.statistics.lost == lost
    assert written == 41 - lost
    assert [each.position for each in read_disagreements(tmp_path)] == [*range(written - 1), 99]
    (path,) = tmp_path.iterdir()
    assert len(path.read_bytes().splitlines()) == written
