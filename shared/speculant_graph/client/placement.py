"""Placement of tenants on sidecars by rendezvous hashing, so that clients agree without communication.

D. Thaler and C. Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection


def placed_at(key: str, addresses: Collection[str]) -> str:
    """Return the address with the highest rank for a key.

    Every address gets an equal share of keys. If an address disappears, only its keys move, and they spread evenly over
    the other addresses. The moved keys return to the address when it reappears.

    Args:
        key: the name of a tenant, or the random key of a client.
        addresses: at least one, in any order.
    """
    return max(addresses, key=lambda address: _rank(key, address))


def _rank(key: str, address: str) -> tuple[int, str]:
    """Return a key's rank for an address: a 64-bit hash, equal in all processes, and the address to break ties."""
    text = f"{address} {key}".encode("utf-8", "surrogatepass")  # an address has no space
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big"), address
