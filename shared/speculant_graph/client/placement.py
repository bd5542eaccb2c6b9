"""Which sidecar a tenant's sequences draft from: rendezvous hashing, so that clients agree without asking one another.

D. Thaler and C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def placed_at(key: str, addresses: Collection[str]) -> str:
    """Return the address of the highest rank.

    Every address has an even share of keys. When one goes, only its keys move, evenly to the others, and come back with
    it.

    Args:
        key: a tenant's name, or what stands for one.
        addresses: at least one, in any order.
    """
    return max(addresses, key=lambda address: _rank(key, address))


def _rank(key: str, address: str) -> tuple[int, str]:
    """Return 64 bits that are the same in every process, and what decides between equal ones."""
    text = f"{address} {key}".encode("utf-8", "surrogatepass")  # an address has no space
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"), address
