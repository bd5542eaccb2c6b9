"""The one way in which kernels are compiled: without the GIL, and kept on disk for other processes."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import numba
from loguru import logger

from speculant_graph.graph.kernel_cache import SharedCache

Integer = Any
"""A number inside a kernel: an ``int`` to Python, 64 bits to the machine."""

Kernel = TypeVar("Kernel", bound=Callable[..., Any])

_PACKAGE = Path(__file__).parent.parent
_PACKAGES_OF_KERNELS = ("graph", "draft", "rpc/kernels")


def _digest_of_kernels() -> str:
    digest = hashlib.sha256()
    for package in _PACKAGES_OF_KERNELS:
        for source in sorted((_PACKAGE / package).glob("*.py")):
            text = source.read_bytes()
            # Files without kernels change more often; of those only these two hold constants that kernels take.
            if b"graph.compiled" in text or source.name in {"layout.py", "workspace.py"}:
                digest.update(text)
    return digest.hexdigest()[:12]


_DIGEST = _digest_of_kernels()


def compiled(function: Kernel) -> Kernel:
    """Compile a function of arrays and numbers to machine code when it is first called.

    It runs without the GIL and without bounds checks. Kernels of lookups compare every index that comes from a file
    with its bounds; those that write trust arrays that were built here or checked.
    """
    # On disk machine code is found by this name, and made again when the file of its function changes. It holds code
    # and constants of other files, too: without their digest an update would run the old ones on new arrays.
    function.__qualname__ += f"-{_DIGEST}"
    try:
        kernel = numba.njit(function, nogil=True, cache=True)
        kernel._cache = SharedCache(function)
    except RuntimeError as error:  # neither the package's folder nor the user's cache can be written
        logger.debug("kernels are compiled in every process: {}", error)
        kernel = numba.njit(function, nogil=True)
    return kernel  # type: ignore[no-any-return]


def inlined(function: Kernel) -> Kernel:
    """Compile a function that only kernels call, into its callers."""
    return numba.njit(function, inline="always")  # type: ignore[no-any-return]


def embedded(function: Kernel) -> Kernel:
    """Compile a function that only kernels call; its machine code is put into theirs.

    Quicker to compile than :func:`inlined` where the function is long. A plain call would copy every array that it is
    handed, which for a bundle of arrays takes longer than most of these functions do.
    """
    return numba.njit(function, nogil=True, forceinline=True)  # type: ignore[no-any-return]


def cache_of_kernels() -> tuple[Path | None, int]:
    """Return the folder that machine code of look-ups is kept in, and how many kernels of this release are there.

    None, 0 where no folder can be written. Kernels of other packages lie beside their own sources in the same way.
    """
    from speculant_graph.graph import lookup

    caches = (getattr(value, "_cache", None) for value in vars(lookup).values())
    folder = next((path for cache in caches if (path := getattr(cache, "cache_path", None))), None)
    if folder is None:
        return None, 0
    return Path(folder), len(list(Path(folder).glob(f"*{_DIGEST}*.nbi")))
