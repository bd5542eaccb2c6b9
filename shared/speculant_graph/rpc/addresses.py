"""Converts addresses of servers from users' form to gRPC's; does not read settings."""

from __future__ import annotations

import os
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import quote

from speculant_graph.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 105
"""Length limit of the path of a Unix socket on Linux."""

_UNIX_PREFIX = "unix://"
_DNS_PREFIX = "dns:///"
_HOST_AND_PORT = re.compile(r"(?:\[[^/\[\]]+\]|[^:/\[\]]+):([0-9]{1,5})")
"""Brackets separate the port of an IPv6 address from its last group."""
MAX_PORT = 65_535
"""Highest port of TCP."""


def split_addresses(addresses: str) -> tuple[str, ...]:
    """Return the addresses of a client's comma-separated list, ``dns:///name:port`` among them as it is.

    Raises:
        ConfigError: one is malformed, or occurs twice.
    """
    found = [address.strip() for address in addresses.split(",")]
    for address in found:
        if socket_path(plain_address(address)) is not None and is_name(address):
            raise _malformed(address)
    if len(set(found)) < len(found):
        what = f"an {{field}} occurs twice in {addresses!r}"
        raise ConfigError(what, fix="name every server once", field="address")
    return tuple(found)


def is_name(address: str) -> bool:
    """Return whether an address stands for all addresses of a name: ``dns:///name:port``."""
    return address.startswith(_DNS_PREFIX)


def plain_address(address: str) -> str:
    """Return an address as a single one, of which gRPC looks up the name itself."""
    return address.removeprefix(_DNS_PREFIX)


def lookup(address: str) -> tuple[str, ...]:
    """Return every address that one of a client's list stands for; it may ask the network.

    Of a name with addresses of both IP versions, those of the version that the system prefers are taken: a machine that
    has both counts once.

    Args:
        address: an item of :func:`split_addresses`.

    Returns:
        ``host:port`` of each address of ``dns:///name:port``, none if the name is not known now; others themselves.
    """
    if not is_name(address):
        return (address,)
    host, _, port = plain_address(address).rpartition(":")
    try:
        found = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return ()
    hosts = sorted({str(entry[4][0]) for entry in found if entry[0] == found[0][0]})
    return tuple(f"[{each}]:{port}" if ":" in each else f"{each}:{port}" for each in hosts)


def lasting_name(address: str) -> str:
    """Return ``name:port`` of an address whose host has a name, as a pod's outlasts its number; it may block.

    Args:
        address: ``host:port`` of a number; any other is returned as it is, and so is one without a name.
    """
    host, _, port = address.rpartition(":")
    if _literal(host) is None:
        return address
    try:
        name, _ = socket.getnameinfo((host.strip("[]"), int(port)), socket.NI_NAMEREQD | socket.NI_NUMERICSERV)
    except (OSError, UnicodeError):
        return address
    return f"{name}:{port}"


def reachable_addresses(addresses: str) -> dict[str, str]:
    """Look up the addresses of a client's comma-separated list.

    Returns:
        Every address, and the host name that its certificate is for, if the address does not show it. A name that is
        not known stands for itself, so that whoever connects to it tells why that fails.

    Raises:
        ConfigError: one is malformed, or one is there twice.
    """
    return {
        each: host_name(address)
        for address in split_addresses(addresses)
        for each in lookup(address) or (plain_address(address),)
    }


def host_name(address: str) -> str:
    """Return the name of ``dns:///name:port``; empty for other addresses, which show it."""
    return plain_address(address).rpartition(":")[0] if is_name(address) else ""


def step_socket_path(path: Path) -> Path:
    """Return the path of the socket for steps without gRPC, for a server on this socket."""
    return path.with_name(path.name + ".steps")


def socket_path(address: str) -> Path | None:
    """Return the path of a ``unix:///path`` address, or None for ``host:port``.

    Raises:
        ConfigError: it is neither, or the path is too long for a socket.
    """
    if address.startswith(_UNIX_PREFIX + "/"):
        path = Path(address.removeprefix(_UNIX_PREFIX))
        num_bytes = len(str(path).encode())
        if num_bytes > MAX_SOCKET_PATH_BYTES:
            raise ConfigError(
                f"the socket path {path} has {num_bytes} bytes",
                fix=f"choose a path of at most {MAX_SOCKET_PATH_BYTES}",
                field="address",
            )
        return path
    parts = _HOST_AND_PORT.fullmatch(address)
    if parts is None or int(parts[1]) > MAX_PORT:
        raise _malformed(address)
    return None


def _malformed(address: str) -> ConfigError:
    return ConfigError(
        f"{address!r} is not an {{field}}",
        fix="write host:port, [::1]:port or unix:///path/to.sock",
        field="address",
    )


def require_addresses(addresses: str, option: str) -> None:
    """Refuse addresses that a server can't listen on, before slow work begins.

    Args:
        addresses: separated by commas; empty for none.
        option: the setting's name.

    Raises:
        ConfigError: one is malformed.
    """
    for address in filter(None, map(str.strip, addresses.split(","))):
        try:
            socket_path(address)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error.message}", fix=error.fix, field=option) from error


def require_port(address: str, option: str) -> None:
    """Refuse an address on which HTTP can't be served.

    Args:
        address: ``host:port``; empty for none.
        option: the setting's name.

    Raises:
        ConfigError: it has another form.
    """
    try:
        path = socket_path(address) if address else None
    except ConfigError as error:
        raise ConfigError(f"{option}: {error.message}", fix=error.fix, field=option) from error
    if path is not None:
        raise ConfigError(f"{{field}}: {address} is a Unix socket", fix="write host:port", field=option)


def grpc_target(address: str) -> str:
    """Return ``address`` in gRPC's form, for clients and servers.

    Raises:
        ConfigError: it is neither ``unix:///path`` nor ``host:port``.
    """
    path = socket_path(address)
    return address if path is None else _UNIX_PREFIX + quote(str(path))


def is_loopback(host: str) -> bool:
    """Return whether a host name or address is loopback."""
    found = _literal(host)
    return host.lower() == "localhost" if found is None else found.is_loopback


def stays_local(address: str) -> bool:
    """Return whether a connection to ``address`` stays on this machine, so that it must not use a proxy.

    Args:
        address: ``unix:///path`` or ``host:port``.

    Raises:
        ConfigError: it has neither of the two forms.
    """
    return socket_path(address) is not None or host_stays_local(address.rpartition(":")[0])


def host_stays_local(host: str) -> bool:
    """Return the same for a host: a name, or an address with or without brackets.

    A name is resolved only if an environment variable names a proxy. It is local if all of its addresses are.
    """
    if (found := _literal(host)) is not None:
        return found.is_loopback or found.is_unspecified
    if is_loopback(host):
        return True
    if not any(name.lower().endswith("_proxy") for name in os.environ):
        return False
    try:
        addresses = {str(entry[4][0]) for entry in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)}
    except (OSError, UnicodeError):  # a proxy may resolve it
        return False
    return all(map(is_loopback, addresses))


def _literal(host: str) -> IPv4Address | IPv6Address | None:
    """Return the address in a host's text, IPv4-mapped IPv6 as IPv4; None if it is a name."""
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
