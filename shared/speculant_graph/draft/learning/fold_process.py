"""Runs folds, which turn learned text into graph files, one process at a time, and reports when each ends."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from speculant_graph.draft.learning.layers import HIDDEN, Layer
from speculant_graph.types import Fingerprint

DAMAGED = 3
"""Exit status of a fold's process that found a damaged older graph file; the file ``damaged`` contains its path."""
_MODULE = "speculant_graph.draft.learning.fold_worker"
_NOT_STARTED = 127  # as shells report it
_ONE_AT_A_TIME = threading.Lock()  # a sidecar has a store for every graph


@dataclass(frozen=True, slots=True)
class FoldJob:
    """The work of one fold, which the fold's process receives as JSON."""

    folder: str
    """The fold's folder. The folder contains the text in the file ``tokens`` and, after the fold, the graph in the file
    ``graph``."""
    num_documents: int
    """Number of documents in the text; separators divide the documents."""
    tokenizer: Fingerprint
    """Tokenizer of the text."""
    older: tuple[str, ...] = ()
    """Graph files of the older text to merge, oldest first."""

    def to_json(self) -> str:
        """Return the job as JSON."""
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> FoldJob:
        """Create the job that a JSON text describes."""
        fields = json.loads(text)
        return cls(
            fields["folder"], fields["num_documents"], Fingerprint(**fields["tokenizer"]), tuple(fields["older"])
        )

    @property
    def tokens(self) -> Path:
        """File with the text to fold, as little-endian 32-bit token ids."""
        return Path(self.folder) / "tokens"

    @property
    def graph(self) -> Path:
        """Graph file that the fold writes."""
        return Path(self.folder) / "graph"

    @property
    def damaged(self) -> Path:
        """File that contains the path of a damaged older graph file."""
        return Path(self.folder) / "damaged"


@dataclass(slots=True)
class Fold:
    """A running fold."""

    name: str
    """Name under which the tenant's files are stored."""
    job: FoldJob
    """The job that the fold's process runs."""
    first: int
    """Lowest id of the rows to fold."""
    last: int
    """Highest id of the rows to fold."""
    num_tokens: int
    """Number of tokens in the rows to fold."""
    older: tuple[Layer, ...]
    """The older graph files that the fold merges."""
    process: subprocess.Popen[bytes] | None = None
    is_cancelled: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)
    """Lock that guards ``process`` and ``is_cancelled``."""

    @property
    def folder(self) -> Path:
        """The fold's folder."""
        return Path(self.job.folder)


def hidden_folder(folder: Path) -> Path:
    """Make a folder for a fold; only this user can access it."""
    return Path(tempfile.mkdtemp(prefix=HIDDEN, dir=folder))


def open_private(path: str, flags: int) -> int:
    """Open a file, as an ``opener`` for :func:`open`; only this user can access a new file, whatever the umask."""
    return os.open(path, flags, 0o600)


def run(fold: Fold, on_end: Callable[[Fold, int, float], None]) -> None:
    """Start the process of a fold as soon as this process runs no other fold.

    Args:
        fold: the fold.
        on_end: called in a thread with the fold, the exit status and the duration in seconds. This callback is never
            called after :func:`cancel`.
    """
    threading.Thread(target=_run, args=(fold, on_end), name="fold", daemon=True).start()


def cancel(fold: Fold) -> None:
    """Kill the process of a fold, and wait until it has ended."""
    with fold.lock:
        fold.is_cancelled = True
        if fold.process is not None:
            fold.process.kill()
            fold.process.wait()


def complaint(fold: Fold, status: int) -> str:
    """Return why a fold failed, in one line."""
    if status < 0:  # writing to a mapped file on a full disk also ends in a signal
        name = signal.strsignal(-status) or "unknown"
        return f"signal {-status} ({name}) ended its process: the disk may be full, or memory short"
    try:
        lines = _messages(fold).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else f"its process ended with status {status}"


def _messages(fold: Fold) -> Path:
    return fold.folder / "messages"


def _run(fold: Fold, on_end: Callable[[Fold, int, float], None]) -> None:
    with _ONE_AT_A_TIME:
        started_s = time.monotonic()
        try:
            with fold.lock:
                if fold.is_cancelled:
                    return
                fold.process = process = _started(fold)
            status = process.wait()
        except (OSError, TypeError, ValueError):  # an embedded interpreter does not know its executable
            status = _NOT_STARTED
        finally:
            if fold.process is not None and fold.process.stdin is not None:
                fold.process.stdin.close()
        seconds = time.monotonic() - started_s
    if not fold.is_cancelled:
        on_end(fold, status, seconds)


def _started(fold: Fold) -> subprocess.Popen[bytes]:
    # The pipe to its standard input closes when this process ends; the child then ends, too.
    with open(_messages(fold), "wb", opener=open_private) as messages:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", _MODULE, fold.job.to_json()],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=messages,
            start_new_session=True,  # Ctrl-C reaches only the parent, which ends it
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
