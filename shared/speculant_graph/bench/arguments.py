"""What settings of several benches have in common: lists with commas, and a look at the command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import AfterValidator, BeforeValidator

from speculant_graph.errors import ConfigError


def _split(value: object) -> object:
    return [item.strip() for item in value.split(",")] if isinstance(value, str) else value


def _each_once(values: list[object]) -> list[object]:
    return list(dict.fromkeys(values))


COMMAS = BeforeValidator(_split)
"""Annotation of a list that a command line writes with commas: ``8,16,32``."""
EACH_ONCE = AfterValidator(_each_once)
"""Annotation of a list whose repeated values are dropped."""

_LISTS = ("--traces", "--corpus")


def checked_arguments(arguments: Sequence[str], unheeded: Mapping[str, str]) -> list[str]:
    """Return a command line with ``--graph`` spelled out; by itself it is the name of the section with the tokenizer.

    Args:
        arguments: what was typed.
        unheeded: flags that exist, as all of a section's do, but that the bench sets itself -> what to do instead.

    Raises:
        ConfigError: such a flag is there, or a list is given twice, of which the parser would keep the second.
    """
    names = [argument.partition("=")[0] for argument in arguments]
    for flag, advice in unheeded.items():
        is_short = not flag.startswith("--")  # then its value may stick to it: -k3
        if flag in names or (is_short and any(name.startswith(flag) for name in names)):
            raise ConfigError(f"{flag} is set by this bench itself; {advice}")
    for flag in _LISTS:
        if names.count(flag) > 1:
            raise ConfigError(f"{flag} is there twice; name all of its files behind one {flag}")
    return [
        argument.replace("--graph", "--graph-path", 1) if name == "--graph" else argument
        for argument, name in zip(arguments, names, strict=True)
    ]
