"""Build backend: scikit-build-core, plus a compiler (the package ziglang) if the machine has none.

pyproject.toml names this file as the build backend. All build hooks that this file does not define are
scikit-build-core's own.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from scikit_build_core import build as _build
from scikit_build_core.build import *  # noqa: F403 - all other hooks

_COMPILER_PACKAGE = "ziglang>=0.14"


def _has_compiler() -> bool:
    names = [os.environ.get("CXX", ""), "c++", "g++", "clang++"]
    return any(shutil.which(name.split()[0]) for name in names if name)


def get_requires_for_build_wheel(config_settings: Any = None) -> list[str]:
    """Return the packages that a build on this machine requires; a compiler is added if the machine has none."""
    return [
        *_build.get_requires_for_build_wheel(config_settings),
        *([] if _has_compiler() else [_COMPILER_PACKAGE]),
    ]


get_requires_for_build_editable = get_requires_for_build_wheel


def _choose_compiler() -> None:
    if not _has_compiler():
        os.environ.setdefault("CMAKE_TOOLCHAIN_FILE", str(Path(__file__).with_name("zig.cmake")))


def build_wheel(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build a wheel with the machine's compiler, or with zig if there is none."""
    _choose_compiler()
    return _build.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory: str, config_settings: Any = None, metadata_directory: str | None = None) -> str:
    """Build an editable wheel with the machine's compiler, or with zig if there is none."""
    _choose_compiler()
    return _build.build_editable(wheel_directory, config_settings, metadata_directory)
