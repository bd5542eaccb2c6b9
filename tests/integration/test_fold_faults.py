"""Owners of learned text and their fold processes are killed repeatedly, at random times."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

import pytest

from speculant_graph.draft.learning.layers import HIDDEN, find_layers, folder_of
from speculant_graph.draft.learning.learned_files import name_of
from speculant_graph.types import Fingerprint
from support.learned import counted, held, learning, text_of

TURNS, NUMBERS_A_TURN = 40, 1_000
TOKENIZER = Fingerprint("t", "ab" * 32, 100 + (TURNS + 1) * NUMBERS_A_TURN)
LEARN_AND_FOLD = """
import time
sys.path.insert(0, sys.argv[3])
from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning import folding
from support.learned import text_of
files.close()
folding.RETRY_S = 0.0
tokenizer = Fingerprint("t", "ab" * 32, int(sys.argv[4]))
files = LearnedFiles(Path(sys.argv[1]), tokenizer, 500, FoldConfig(enabled=True, young_tokens=400, max_tokens=0))
number = int(sys.argv[2])
while True:
    files.append("", np.array(text_of(number)))
    if number % 3 == 0:
        files.save()
        print(number, flush=True)
    number += 1
    time.sleep(0.004)
"""


def children(pid: int) -> list[int]:
    found = []
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):
            found += [int(each) for each in path.read_text(encoding="utf-8").split()]
    return found


@pytest.mark.faults
def test_owners_and_folds_that_are_killed_lose_nothing_and_count_nothing_twice(tmp_path: Path) -> None:
    chance = random.Random(4)
    acknowledged, folds_killed = {}, 0
    for turn in range(1, TURNS + 1):
        first = turn * NUMBERS_A_TURN
        support = str(Path(__file__).parents[1])
        given = (str(first), support, str(TOKENIZER.vocabulary_size))
        with learning(tmp_path, LEARN_AND_FOLD, *given) as owner:
            assert owner.stdout is not None
            told = owner.stdout.readline()
            time.sleep(chance.uniform(0.0, 1.2))
            for child in children(owner.pid) if turn % 2 else ():
                with suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                    folds_killed += 1
                time.sleep(chance.uniform(0.0, 0.8))
            os.kill(owner.pid, signal.SIGKILL)
            told += owner.stdout.read()
        assert told, "it has ended by itself"
        acknowledged[first] = int(told[: told.rindex("\n")].splitlines()[-1])
    held_now = held(tmp_path, tokenizer=TOKENIZER)
    expected = []
    for first, least in acknowledged.items():
        number = first
        while held_now[text_of(number)[0],]:
            expected.append(number)
            number += 1
        assert number > least
        assert number < first + NUMBERS_A_TURN
    assert held_now == counted(map(text_of, expected))
    assert folds_killed >= 3
    folder = folder_of(tmp_path, name_of(""))
    layers = find_layers(folder).layers
    assert sum(layer.num_tokens for layer in layers) > 0.1 * sum(len(text_of(number)) for number in expected)
    assert len(layers) < 12
    assert not list(folder.glob(f"{HIDDEN}*"))
