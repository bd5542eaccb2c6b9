"""What the core requests; the clients round it do it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from speculant_graph.client.sessions import Opening


@dataclass(frozen=True, slots=True)
class Send:
    """Send bytes on the stream of a replica, after those sent before; begin the stream if there is none."""

    replica: int
    payload: bytes


@dataclass(frozen=True, slots=True)
class DropStream:
    """Cancel the stream of a replica, if there is one. What still comes from it is ignored."""

    replica: int


@dataclass(frozen=True, slots=True)
class OpenSession:
    """Call OpenSession, and note its outcome."""

    opening: Opening


@dataclass(frozen=True, slots=True)
class CloseSession:
    """Call CloseSession, without waiting for the outcome."""

    replica: int
    wire_id: int
    tenant: str


@dataclass(frozen=True, slots=True)
class StartProbing:
    """Begin to probe the replicas that are down, if that is not done already."""


@dataclass(frozen=True, slots=True)
class Report:
    """Write a line to the log."""

    level: Literal["INFO", "WARNING"]
    text: str


Action = Send | DropStream | OpenSession | CloseSession | StartProbing | Report
