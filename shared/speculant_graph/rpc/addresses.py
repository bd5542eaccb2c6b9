"""Converts server addresses from the users' notation to gRPC's notation, without reading settings."""

from __future__ import annotations

import os
import re
import socket
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import quote

from speculant_graph.errors import ConfigError

MAX_SOCKET_PATH_BYTES = 105
"""Maximum length of a Unix socket's path on Linux, in bytes."""

_UNIX_PREFIX = "unix://"
_DNS_PREFIX = "dns:///"
_HOST_AND_PORT = re.compile(r"(?:\[[^/\[\]]+\]|[^:/\[\]]+):([0-9]{1,5})")
"""Form of ``host:port``; an IPv6 address is in brackets, which separate its last group from the port."""
MAX_PORT = 65_535
"""Highest TCP port."""


def split_addresses(addresses: str) -> tuple[str, ...]:
    """Split a client's comma-separated list into addresses, without resolving ``dns:///name:port``.

    Raises:
        ConfigError: an address is malformed, or occurs twice.
    """
    found = [address.strip() for address in addresses.split(",")]
    if len(found) > 1 and "" in found:
        raise ConfigError(f"{{field}}: {addresses!r} has an empty item", fix="remove a comma", field="address")
    for address in found:
        if socket_path(plain_address(address)) is not None and is_name(address):
            raise _malformed(address)
    if len(set(found)) < len(found):
        what = f"an {{field}} occurs twice in {addresses!r}"
        raise ConfigError(what, fix="name every server once", field="address")
    return tuple(found)


def is_name(address: str) -> bool:
    """Return whether an address is ``dns:///name:port``, which stands for all addresses of the name."""
    return address.startswith(_DNS_PREFIX)


def plain_address(address: str) -> str:
    """Return an address without the prefix ``dns:///``, for gRPC, which looks up the name by itself."""
    return address.removeprefix(_DNS_PREFIX)


def lookup(address: str) -> tuple[str, ...]:
    """Return every address that an item of a client's list stands for. A lookup may use the network.

    If a name has IPv4 and IPv6 addresses, only the version that the system prefers is used. A machine with addresses of
    both versions thus counts once.

    Args:
        address: an item of :func:`split_addresses`.

    Returns:
        For ``dns:///name:port``, one ``host:port`` per address of the name; empty if the name can't be looked up now.
        An address of any other form is returned unchanged.
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
    """Return ``name:port`` for an IP address and port, because a pod's name outlasts its IP address. May block.

    Args:
        address: ``host:port``. The address is returned unchanged if the host is not an IP address, or has no name.
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
        A dict of all addresses, each with the host name that the server's certificate contains. The host name is empty
        if the address itself contains it. A name that can't be looked up counts as an address, so that connecting to it
        fails with the reason.

    Raises:
        ConfigError: an address is malformed, or occurs twice.
    """
    return {
        each: host_name(address)
        for address in split_addresses(addresses)
        for each in lookup(address) or (plain_address(address),)
    }


def host_name(address: str) -> str:
    """Return the host name in ``dns:///name:port``; empty for any other address, which contains its host."""
    return plain_address(address).rpartition(":")[0] if is_name(address) else ""


def step_socket_path(path: Path) -> Path:
    """Return the path of the step socket, which bypasses gRPC, from the path of the server's gRPC socket."""
    return path.with_name(path.name + ".steps")


def socket_path(address: str) -> Path | None:
    """Return the path of a ``unix:///path`` address, or None for ``host:port``.

    Raises:
        ConfigError: the address is neither ``unix:///path`` nor ``host:port``, or the path is too long for a socket.
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
        fix="write dns:///name:port"
        if address.startswith("dns:")
        else "write host:port, [::1]:port or unix:///path/to.sock",
        field="address",
    )


def require_addresses(addresses: str, option: str) -> None:
    """Raise an error for malformed listening addresses, before slow work begins.

    Args:
        addresses: the addresses, separated by commas; empty for none.
        option: the setting's name.

    Raises:
        ConfigError: an address is malformed.
    """
    for address in filter(None, map(str.strip, addresses.split(","))):
        try:
            socket_path(address)
        except ConfigError as error:
            raise ConfigError(f"{option}: {error.message}", fix=error.fix, field=option) from error


def require_port(address: str, option: str) -> None:
    """Raise an error for an address on which HTTP can't be served.

    Args:
        address: ``host:port``, or an empty string for no address.
        option: the setting's name.

    Raises:
        ConfigError: the address is not ``host:port``.
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
        ConfigError: the address is neither ``unix:///path`` nor ``host:port``.
    """
    path = socket_path(address)
    return address if path is None else _UNIX_PREFIX + quote(str(path))


def is_loopback(host: str) -> bool:
    """Return whether a host name or IP address is a loopback address."""
    found = _literal(host)
    return host.lower() == "localhost" if found is None else found.is_loopback


def stays_local(address: str) -> bool:
    """Return whether a connection to ``address`` stays on this machine, so that it must not use a proxy.

    Args:
        address: ``unix:///path`` or ``host:port``.

    Raises:
        ConfigError: the address is neither ``unix:///path`` nor ``host:port``.
    """
    return socket_path(address) is not None or host_stays_local(address.rpartition(":")[0])


def host_stays_local(host: str) -> bool:
    """Return whether a connection to a host (a name, or an address with or without brackets) stays on this machine.

    A host name is resolved only if an environment variable names a proxy. A host name is local if all of its addresses
    are loopback addresses.
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
    """Return a host's IP address, converted to IPv4 if it is IPv4-mapped; None if the host is a name."""
    try:
        found = ip_address(host.strip("[]"))
    except ValueError:
        return None
    return getattr(found, "ipv4_mapped", None) or found
