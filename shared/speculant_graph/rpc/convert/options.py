"""How to draft, as protobuf carries it; the rest of a step is read and written in the core."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any, get_args

from google.protobuf.message import DecodeError

from speculant_graph.errors import DraftRequestError, UnservedRequestError
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import CouplingName, DraftOptions, SiblingsName, SourceName, StrategyName


def _numbers(names: Any, enum: Any, prefix: str) -> dict[Any, int]:
    """Return the numbers on the wire of those names of a Literal that travel."""
    numbers = dict(enum.items())
    fields = {name: prefix + name.upper().replace("-", "_") for name in get_args(names)}
    return {name: numbers[field] for name, field in fields.items() if field in numbers}


_NUMBERS: dict[str, dict[Any, int]] = {
    "strategy": _numbers(StrategyName, pb.Strategy, "STRATEGY_"),
    "coupling": _numbers(CouplingName, pb.Coupling, "COUPLING_"),
    "siblings": {"none": pb.SIBLINGS_UNSPECIFIED} | _numbers(SiblingsName, pb.Siblings, "SIBLINGS_"),
}
"""Options that are named here and numbered on the wire."""
_SOURCE_BITS = _numbers(SourceName, pb.SourceBit, "SOURCE_BIT_")


@lru_cache(maxsize=256)
def encode_options(options: DraftOptions) -> bytes:
    """Return options as a StrategyOptions."""
    wanted = {name: value for name, value in asdict(options).items() if value is not None}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            wanted[name] = numbers[wanted[name]]
    if options.sources is not None:
        wanted["sources"] = sum(_SOURCE_BITS[source] for source in options.sources)
    return pb.StrategyOptions(**wanted).SerializeToString()


@lru_cache(maxsize=256)
def decode_options(payload: bytes) -> DraftOptions:
    """Return a StrategyOptions as options.

    Raises:
        UnservedRequestError: it asks for what is not known here, and may not be ignored.
        DraftRequestError: it is none, or a value makes no sense. Bounds are checked by the drafter.
    """
    try:
        message = pb.StrategyOptions.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the options can't be parsed; send StrategyOptions") from None
    wanted = {field.name: value for field, value in message.ListFields()}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            names = {value: own for own, value in numbers.items()}
            if wanted[name] not in names:
                raise UnservedRequestError(f"{name} {wanted[name]} is not served; ask for one of {', '.join(numbers)}")
            wanted[name] = names[wanted[name]]
    if message.HasField("sources"):
        wanted["sources"] = frozenset(name for name, bit in _SOURCE_BITS.items() if message.sources & bit)
        if message.sources >= 2 * max(_SOURCE_BITS.values()):
            raise UnservedRequestError(f"sources {message.sources} are not served; ask for those of SourceBit")
    if not 0.0 <= message.min_path_probability <= 1.0:  # written so that NaN fails
        raise DraftRequestError("min_path_probability is no probability; send one from 0 to 1")
    return DraftOptions(**wanted)
