"""Files of learned text for tests, and what they should hold."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np

from speculant_graph.draft.learning.learned_files import LearnedFiles
from speculant_graph.types import Fingerprint

TOKENIZER = Fingerprint("some/tokenizer", "ab" * 32, 1_000_000)


class OpenFiles(LearnedFiles):
    """Files that are closed at the end of a block."""

    def __enter__(self) -> OpenFiles:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def opened(folder: Path, max_tokens: int = 1000, tokenizer: Fingerprint = TOKENIZER) -> OpenFiles:
    return OpenFiles(folder, tokenizer, max_tokens)


def loaded(files: LearnedFiles, tenant: str = "") -> list[list[int]]:
    return [text.tolist() for text in files.load(tenant)]


def newest(texts: list[list[int]], max_tokens: int) -> list[list[int]]:
    """Return what is within a budget, the slow way: drop one token at a time from the front."""
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
    """Start a process that has a folder."""
    return subprocess.Popen(
        [sys.executable, "-c", LEARN + code, str(folder), *arguments],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
