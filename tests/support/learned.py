"""Files of learned text for tests, and their expected contents."""

from __future__ import annotations

import hashlib
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import numpy as np
import pytest

from speculant_graph.config import FoldConfig
from speculant_graph.draft.learning import fold_process
from speculant_graph.draft.learning.fold_process import Fold
from speculant_graph.draft.learning.fold_worker import MAX_ORDER, fold
from speculant_graph.draft.learning.layers import find_layers, folder_of
from speculant_graph.draft.learning.learned_files import NO_FOLDS, LearnedFiles, name_of
from speculant_graph.errors import SpeculantError
from speculant_graph.graph.ngrams import Ngram, NgramGraph
from speculant_graph.types import Fingerprint
from support.graphs import counts_of
from support.oracle import OracleGraph

TOKENIZER = Fingerprint("some/tokenizer", "ab" * 32, 1_000_000)


class OpenFiles(LearnedFiles):
    """Files of learned text as a context manager, closed at its end."""

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(
    folder: Path,
    max_tokens: int = 1000,
    tokenizer: Fingerprint = TOKENIZER,
    fold: FoldConfig = NO_FOLDS,
    on_fold: Callable[[float, bool], None] = lambda _seconds, _is_done: None,
) -> OpenFiles:
    return OpenFiles(folder, tokenizer, max_tokens, fold, on_fold=on_fold)


def loaded(files: LearnedFiles, tenant: str = "") -> list[list[int]]:
    return [text.tolist() for text in files.load(tenant)]


def newest(texts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return the newest text within a budget, the slow way: drop one token at a time from the front."""
    kept = [list(text) for text in texts if text]
    while sum(map(len, kept)) > max_tokens:
        kept[0].pop(0)
        if not kept[0]:
            kept.pop(0)
    return kept


def path_of(folder: Path, tenant: str = "") -> Path:
    """Return the database of a tenant."""
    return folder / f"{hashlib.sha256(tenant.encode('utf-8', 'surrogatepass')).hexdigest()}.sqlite"


def ids(token_ids: list[int]) -> np.ndarray:
    return np.array(token_ids, np.int64)


LEARN = """
import sys
from pathlib import Path
import numpy as np
from speculant_graph.draft.learning.learned_files import LearnedFiles
from speculant_graph.types import Fingerprint
files = LearnedFiles(Path(sys.argv[1]), Fingerprint("t", "ab" * 32, 1_000_000), 500)
"""


def learning(folder: Path, code: str, *arguments: str) -> subprocess.Popen[str]:
    """Start a process that opens a folder and runs ``code``."""
    return subprocess.Popen(
        [sys.executable, "-c", LEARN + code, str(folder), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


SMALL = Fingerprint("t", "ab" * 32, 3_000)
"""Tokenizer fingerprint for the texts of :func:`text_of`."""
_FIRST_NUMBER = 100
FOLD = FoldConfig(enabled=True, young_tokens=100, max_tokens=0)
"""Settings that fold after a few of these texts, and keep all of them."""


def text_of(number: int) -> list[int]:
    """Return the text of a number, equal in every process; its first token occurs in no other text."""
    chance = random.Random(number)
    return [_FIRST_NUMBER + number, *chance.choices(range(12), k=chance.randrange(1, 60))]


def counted(texts: Iterable[Sequence[int]]) -> Counter[Ngram]:
    """Return every n-gram of some texts with its count, the slow way."""
    return OracleGraph(list(texts), MAX_ORDER).ngram_counts


def held(folder: Path, tenant: str = "", max_tokens: int = 1 << 40, tokenizer: Fingerprint = SMALL) -> Counter[Ngram]:
    """Return the count of every n-gram that a folder holds for a tenant, in rows and in graph files.

    Opening the folder runs the same recovery as after a crash.
    """
    with opened(folder, max_tokens, tokenizer) as files:
        young = counted(loaded(files, tenant))
    found = find_layers(folder_of(folder, name_of(tenant)))
    assert not found.covered
    assert not found.damaged
    for layer in found.layers:
        young += counts_of(NgramGraph.load(layer.path, complete=True))
    return young


def filled(folder: Path, count: int, tenant: str = "", first: int = 1) -> Counter[Ngram]:
    """Learn some texts without folding; return their n-gram counts."""
    with opened(folder, 1 << 40, SMALL) as files:
        for number in range(first, first + count):
            files.append(tenant, ids(text_of(number)))
    return counted(map(text_of, range(first, first + count)))


def fold_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fold synchronously in the test's process, which is much faster than a process for each of hundreds of folds."""

    def run(given: Fold, on_end: Callable[[Fold, int, float], None]) -> None:
        try:
            fold(given.job)
        except SpeculantError:
            on_end(given, fold_process.DAMAGED if given.job.damaged.exists() else 1, 0.0)
            return
        on_end(given, 0, 0.0)

    monkeypatch.setattr(fold_process, "run", run)


def settled(files: LearnedFiles, timeout_s: float = 60.0) -> None:
    """Wait until no fold of a folder is running or due."""
    deadline_s = time.monotonic() + timeout_s
    while files._submit(lambda: files._folding.is_busy).result():
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
