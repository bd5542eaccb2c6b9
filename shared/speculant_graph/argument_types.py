"""Checks the types of a constructor's arguments; the error names the argument with the wrong type."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from speculant_graph.errors import ConfigError

PATH = (str, os.PathLike)
"""Types that a file name may have."""


def require_types(values: Mapping[str, object], expected: Mapping[str, type | tuple[type, ...]]) -> None:
    """Raise an error for arguments of an unexpected type; None is accepted and stands for the default.

    Args:
        values: the arguments by name; arguments that ``expected`` does not name are ignored.
        expected: the class of each argument to check.

    Raises:
        ConfigError: an argument is of another type; the error names the argument and the expected type.
    """
    for name, kind in expected.items():
        value = values[name]
        if value is not None and not isinstance(value, kind):
            wanted = "path" if kind == PATH else kind.__name__ if isinstance(kind, type) else kind[0].__name__
            raise ConfigError(
                f"{name} must be a {wanted}, not of type {type(value).__name__}", fix=f"give a {wanted}", field=name
            )


def require_paths(name: str, value: Any) -> list[str | Path]:
    """Return an argument's paths as a list; the argument is one path or several, and None means no paths.

    Args:
        name: name of the argument.
        value: the argument.

    Raises:
        ConfigError: the argument, or one of its items, is not a file's name.
    """
    paths = list(value) if isinstance(value, list | tuple) else [] if value is None else [value]
    for each in paths:
        require_types({name: 0 if each is None else each}, {name: PATH})
    return paths


def require_methods(name: str, value: object, methods: tuple[str, ...]) -> None:
    """Raise an error for an argument that lacks methods; None is accepted and stands for the default.

    Args:
        name: name of the argument.
        value: the argument.
        methods: the names of the methods that the argument must have.

    Raises:
        ConfigError: a method is missing, or the argument is a class.
    """
    missing = [method for method in methods if not callable(getattr(value, method, None))]
    if value is None or not (missing or isinstance(value, type)):
        return
    problem = f"has no method {', '.join(missing)}" if missing else "is a class"
    raise ConfigError(f"{name} {problem}", fix=f"give an object with {', '.join(methods)}", field=name)
