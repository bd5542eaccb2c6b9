"""How to draft, as protobuf carries it; the rest of a step is read and written in the core."""

from __future__ import annotations

from dataclasses import asdict
from functools import lru_cache
from typing import Any

from google.protobuf.message import DecodeError

from speculant_graph.errors import DraftRequestError, UnservedRequestError
from speculant_graph.rpc.messages import StepOptions
from speculant_graph.rpc.v1 import drafter_pb2 as pb
from speculant_graph.types import CouplingName, MixingName, SiblingsName, SourceName, StrategyName

STRATEGY_NUMBERS: dict[StrategyName, pb.Strategy] = {
    "greedy": pb.STRATEGY_GREEDY,
    "sampling": pb.STRATEGY_SAMPLING,
    "adaptive": pb.STRATEGY_ADAPTIVE,
    "tree": pb.STRATEGY_TREE,
    "nasd": pb.STRATEGY_NASD,
    "specexec": pb.STRATEGY_SPECEXEC,
    "beam": pb.STRATEGY_BEAM,
}
"""Strategies by their number on the wire."""
_MIXING_NUMBERS: dict[MixingName, pb.Mixing] = {"longest": pb.MIXING_LONGEST, "attention": pb.MIXING_ATTENTION}
COUPLING_NUMBERS: dict[CouplingName, pb.Coupling] = {"none": pb.COUPLING_NONE, "gumbel": pb.COUPLING_GUMBEL}
"""Couplings by their number on the wire."""
_SIBLINGS_NUMBERS: dict[SiblingsName, pb.Siblings] = {
    "none": pb.SIBLINGS_UNSPECIFIED,
    "without-replacement": pb.SIBLINGS_WITHOUT_REPLACEMENT,
    "independent": pb.SIBLINGS_INDEPENDENT,
}
_SOURCE_BITS: dict[SourceName, int] = {
    "corpus": pb.SOURCE_BIT_CORPUS,
    "session": pb.SOURCE_BIT_SESSION,
    "learned": pb.SOURCE_BIT_LEARNED,
    "recycled": pb.SOURCE_BIT_RECYCLED,
}
_NUMBERS: dict[str, dict[Any, Any]] = {
    "strategy": STRATEGY_NUMBERS,
    "mixing": _MIXING_NUMBERS,
    "coupling": COUPLING_NUMBERS,
    "siblings": _SIBLINGS_NUMBERS,
}
"""Options that are named here and numbered on the wire."""


@lru_cache(maxsize=256)
def encode_options(options: StepOptions) -> bytes:
    """Return options as a StrategyOptions."""
    wanted = {name: value for name, value in asdict(options).items() if value is not None}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            wanted[name] = numbers[wanted[name]]
    if options.sources is not None:
        wanted["sources"] = sum(_SOURCE_BITS[source] for source in options.sources)
    return pb.StrategyOptions(**wanted).SerializeToString()


@lru_cache(maxsize=256)
def decode_options(payload: bytes) -> StepOptions:
    """Return a StrategyOptions as options.

    Raises:
        UnservedRequestError: it asks for what is not known here, and may not be ignored.
        DraftRequestError: it is none, or a value makes no sense. Bounds are looked at by who drafts.
    """
    try:
        message = pb.StrategyOptions.FromString(payload)
    except DecodeError:
        raise DraftRequestError("the options can't be parsed; send StrategyOptions") from None
    wanted = {field.name: value for field, value in message.ListFields()}
    for name, numbers in _NUMBERS.items():
        if name in wanted:
            names = {number: own for own, number in numbers.items()}
            if wanted[name] not in names:
                raise UnservedRequestError(f"{name} {wanted[name]} is not served; ask for one of {', '.join(numbers)}")
            wanted[name] = names[wanted[name]]
    if message.HasField("sources"):
        wanted["sources"] = frozenset(name for name, bit in _SOURCE_BITS.items() if message.sources & bit)
        if message.sources >= 2 * max(_SOURCE_BITS.values()):
            raise UnservedRequestError(f"sources {message.sources} are not served; ask for those of SourceBit")
    if not 0.0 <= message.min_path_probability <= 1.0:  # written so that NaN fails
        raise DraftRequestError("min_path_probability is no probability; send one from 0 to 1")
    return StepOptions(**wanted)
