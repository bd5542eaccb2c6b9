"""Learned text on disk: damaged files, full disks and killed processes."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest

from speculant_graph.errors import TokenizerMismatchError
from speculant_graph.types import Fingerprint
from support.learned import TOKENIZER, ids, learning, loaded, newest, opened, path_of

TEXTS = [[1, 2, 3], [70_000], [999_999, 0, 5, 6], [7, 7], [8] * 9]


@pytest.mark.parametrize("kind", ["byte", "cut", "zeros", "noise"])
def test_damage_is_no_error_and_learning_goes_on(tmp_path: Path, warnings: list[str], kind: str) -> None:
    with opened(tmp_path / "whole") as files:
        for text in TEXTS:
            files.append("", ids(text))
            files.append("other", ids(text))
        files.save_state("", "rows", bytes(9000))
    whole = path_of(tmp_path / "whole").read_bytes()
    generator = random.Random(kind)
    outcomes = set()
    for turn in range(60):
        folder = tmp_path / str(turn)
        shutil.copytree(tmp_path / "whole", folder)
        begin, end = sorted(generator.sample(range(len(whole)), 2))
        damaged = {
            "byte": whole[:begin] + bytes([whole[begin] ^ 1 << turn % 8]) + whole[begin + 1 :],
            "cut": whole[: begin if turn else 0],
            "zeros": whole[:begin] + bytes(end - begin) + whole[end:],
            "noise": whole[:begin] + generator.randbytes(end - begin) + whole[end:],
        }[kind]
        path_of(folder).write_bytes(damaged)
        warnings.clear()
        with opened(folder) as files:
            kept = loaded(files)
            assert all(-1 <= token_id < TOKENIZER.vocabulary_size for text in kept for token_id in text)
            files.load_state("", "rows")
            files.append("", ids([4, 5]))
            assert loaded(files)[-1] == [4, 5]
            assert loaded(files, "other") == TEXTS
            assert not files.is_failing
        with opened(folder) as files:
            assert loaded(files)[-1] == [4, 5]
        aside = path_of(folder).with_suffix(".damaged")
        assert aside.exists() == bool(warnings)
        assert all(str(aside) in message for message in warnings)
        outcomes.add(aside.exists())
        with opened(folder) as files:
            files.forget("")
        assert not aside.exists(), "it holds the tenant's text, too"
        shutil.rmtree(folder)
    assert kind == "byte" or True in outcomes


def test_damage_of_what_all_share_costs_no_text(tmp_path: Path, warnings: list[str]) -> None:
    with opened(tmp_path) as files:
        files.append("", ids([1, 2]))
    (tmp_path / "shared.sqlite").write_bytes(b"no database" * 1000)
    with opened(tmp_path) as files:
        assert loaded(files) == [[1, 2]]
    assert "shared.damaged may be removed" in " ".join(warnings)
    with pytest.raises(TokenizerMismatchError):
        opened(tmp_path, tokenizer=Fingerprint("other", "cd" * 32, 9))


FULL_DISK = """
import json, resource, signal
from loguru import logger
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
messages = []
logger.enable("speculant_graph")
logger.remove()
logger.add(lambda message: messages.append(message.record["message"]))
unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)

def limited(num_bytes):
    files.save()
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, unlimited[1]))

files.save_state(None, "s", b"old")
files.append("", np.array([1]))
limited(30_000)
for number in range(20):
    files.append("", np.full(1000, number))
    files.save_state(None, "s", bytes(60_000))
first = len(files.load("")), files.is_failing
limited(unlimited[0])
files.append("", np.array([99]))
files.save_state(None, "s2", b"new")
files.save()
state = files.load_state(None, "s").decode()
print(json.dumps([first, files.load("")[-1].tolist(), state, files.is_failing, messages]))
files.close()
"""


def test_on_a_full_disk_nothing_is_raised_or_half_written(tmp_path: Path) -> None:
    with learning(tmp_path, FULL_DISK) as process:
        shown, _ = process.communicate()
    (num_texts, was_failing), last, state, is_failing, messages = json.loads(shown)
    assert num_texts >= 1
    assert was_failing
    assert (last, state, is_failing) == ([99], "old", False)
    assert 1 <= len(messages) <= 20, "not one for each of forty failures"
    assert all(str(tmp_path) in message and "check space" in message for message in messages)
    with opened(tmp_path) as files:
        assert loaded(files)[-1] == [99]


KILLED = """
number = int(sys.argv[2])
while True:
    for tenant in ("", "other"):
        files.append(tenant, np.full(number % 37 + 1, number))
    files.save_state(None, "s", b"%d" % number)
    if number % 3 == 0:
        files.save()
        print(number, flush=True)
    number += 1
"""


def test_killed_processes_lose_nothing_that_was_saved(tmp_path: Path) -> None:
    first = 1
    for milliseconds in (1, 30, 80, 150, 400):
        with learning(tmp_path, KILLED, str(first)) as process:
            assert process.stdout is not None
            acknowledged = process.stdout.readline()
            time.sleep(milliseconds / 1000)
            os.kill(process.pid, signal.SIGKILL)
            acknowledged += process.stdout.read()
        saved = int(acknowledged[: acknowledged.rindex("\n")].splitlines()[-1])
        with opened(tmp_path, 500) as files:
            last = []
            for tenant in ("", "other"):
                texts = loaded(files, tenant)
                last.append(texts[-1][0])
                assert texts == newest([[number] * (number % 37 + 1) for number in range(1, last[-1] + 1)][-600:], 500)
            assert saved <= last[1] <= last[0] <= last[1] + 1
            assert int(files.load_state(None, "s") or b"0") >= saved
            if last[1] < last[0]:  # killed between the two appends
                files.append("other", ids([last[0]] * (last[0] % 37 + 1)))
            first = last[0] + 1
