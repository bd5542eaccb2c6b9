"""Which replica a session belongs to: rendezvous hashing, the same on every machine and in every release.

Without a common table all clients spread sessions evenly, and when a replica goes only its own sessions move.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable


def key_of(tenant: str, conversation: str) -> int:
    """Return what stands for the id of every session of a tenant's conversation, so that they meet: 64 bits."""
    return int.from_bytes(hashlib.blake2b(f"{tenant}\0{conversation}".encode(), digest_size=8).digest(), "little")


def score(wire_id: int, address: str) -> int:
    """Return how much a session wants to be at an address: 64 bits, independent between addresses."""
    key = wire_id.to_bytes(8, "little") + address.encode()
    return int.from_bytes(hashlib.blake2b(key, digest_size=8).digest(), "little")


def preferred(wire_id: int, addresses: Iterable[str]) -> str:
    """Return the address that a session wants most; ties go to the first in the alphabet."""
    return max(sorted(addresses), key=lambda address: score(wire_id, address))
