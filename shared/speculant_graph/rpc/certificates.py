"""What is wrong with a certificate's file: gRPC takes any bytes, and later reports only that it can't connect."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from contextlib import contextmanager

from speculant_graph.errors import ConfigError


@contextmanager
def explained(what: str, otherwise: str) -> Iterator[None]:
    """Raise ConfigError where the block can't read files or use them.

    Args:
        what: the setting and its file.
        otherwise: what they are if they can be read, and what to do.
    """
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{what} {otherwise}") from error
    except OSError as error:
        reason = error.strerror or "it can't be read"
        raise ConfigError(f"{what}: {reason}; check the path and its permissions") from error
