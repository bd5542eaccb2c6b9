"""The demo's text: the standard library of the running Python interpreter.

Every machine with Python has this text, so nothing is downloaded and no third-party text is committed. This module
depends on neither tokenizer nor model.
"""

from __future__ import annotations

import random
import re
import sysconfig
from collections.abc import Iterable
from pathlib import Path

_BEGINNING = re.compile(r"^ *(?:async )?def .*\n.*\n", re.MULTILINE)

# Generated tables and vendored tools: megabytes of digits, not used for training.
_SKIPPED_FOLDERS = frozenset(
    {"site-packages", "dist-packages", "test", "tests", "idlelib", "lib2to3", "encodings",
     "pydoc_data", "__pycache__", "turtledemo", "tkinter", "distutils", "ensurepip"}
)  # fmt: skip

TRAINING_MODULES = (
    "asyncio", "concurrent", "http", "json", "logging", "queue.py", "selectors.py", "socket.py",
    "socketserver.py", "subprocess.py", "threading.py",
)  # fmt: skip
"""Training text of the demo model: packages and modules of the standard library that deal with processes and
servers."""

UNKNOWN_MODULES = ("http", "json", "logging", "socket.py", "socketserver.py")
"""Modules of the training text on which the demo's draft model was not trained. The draft model can learn these modules
from the target's output."""

_TIMES_KNOWN = 8

PROMPTS = (
    "class EchoProtocol(asyncio.Protocol):\n    def connection_made(self, transport):",
    'class MemoryHandler(logging.Handler):\n    """\n    A handler class which writes logging records',
    "    def do_GET(self):",
    "    async def join(self):",
    "class Semaphore:\n    def __init__(self, value=1):",
    "def loads(s, *, cls=None):",
)
"""The demo's prompts: starts of code in the style of the training text."""

VALIDATION_MODULES = ("asyncio/runners.py", "http/cookies.py", "logging/config.py")
"""Files of the training packages that are held out for validation; the model card states the loss on them."""


def standard_library_folder() -> Path:
    """Return the folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def standard_library_files(root: Path | None = None) -> list[Path]:
    """Return the standard library's source files, sorted, without tests, generated tables and installed packages."""
    root = root or standard_library_folder()
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not _SKIPPED_FOLDERS.intersection(path.relative_to(root).parts[:-1])
    ]


def training_files(root: Path | None = None) -> tuple[list[Path], list[Path]]:
    """Return the training files and the validation files of the demo model, which are disjoint."""
    root = root or standard_library_folder()
    training, validation = [], []
    for path in standard_library_files(root):
        name = path.relative_to(root).as_posix()
        if name in VALIDATION_MODULES:
            validation.append(path)
        elif name in TRAINING_MODULES or name.split("/")[0] in TRAINING_MODULES:
            training.append(path)
    return training, validation


def draft_files(root: Path | None = None) -> tuple[list[Path], list[Path]]:
    """Return the training files of the demo's draft model, and the files known only to the demo model.

    The draft model is trained on all other files of the standard library, so it learns Python in general. Files on
    which the demo model was trained, too, are repeated, because the draft model must draft similar text.
    """
    root = root or standard_library_folder()

    def is_unknown(path: Path) -> bool:
        return path.relative_to(root).parts[0] in UNKNOWN_MODULES

    learned = training_files(root)[0]
    known = [path for path in learned if not is_unknown(path)]
    general = [path for path in standard_library_files(root) if not is_unknown(path)]
    return general + known * _TIMES_KNOWN, [path for path in learned if is_unknown(path)]


def beginnings(count: int, root: Path | None = None) -> list[str]:
    """Return the first two lines of ``count`` functions from the demo model's training text.

    The selection is deterministic and has no duplicates. If the training text has fewer functions, the selection is
    shorter.
    """
    unlike = beginnings_of(training_files(root)[0])
    return random.Random(0).sample(unlike, min(count, len(unlike)))


def beginnings_of(files: Iterable[Path]) -> list[str]:
    """Return the first two lines of every function in the given files, without duplicates."""
    found = (
        match.group()
        for path in files
        for match in _BEGINNING.finditer(path.read_text(encoding="utf-8", errors="replace"))
    )
    return list(dict.fromkeys(found))
