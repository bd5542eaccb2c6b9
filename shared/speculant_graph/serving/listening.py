"""Binds a server's addresses without taking them from another server, and sets up TLS."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
import ssl
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc
from loguru import logger

from speculant_graph.config import AccessConfig
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import is_loopback
from speculant_graph.rpc.channel import explained

_REASONS = {
    errno.EADDRINUSE: "another program listens there; stop it or choose another port",
    errno.EADDRNOTAVAIL: "it is not an address of this machine; choose 0.0.0.0, for all its addresses, or one of them",
    errno.EACCES: "this user lacks permission; choose a port above 1023",
}
_BACKLOG = 1_024
_PROBE_S = 1.0
_NAME_PROPERTIES = ("x509_common_name", "peer_dns")


def bind_tcp(address: str, option: str) -> socket.socket:
    """Return a socket that listens on a TCP address.

    Args:
        address: ``host:port``; with port 0, a free port is chosen.
        option: the setting's name.

    Raises:
        ConfigError: the address can't be used; the message has the reason.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, int(port)), family=family, backlog=_BACKLOG)
    except (socket.gaierror, UnicodeError) as error:
        raise failure_of(address, "no host has this name; choose another", option) from error
    except OSError as error:
        reason = _REASONS.get(error.errno or 0, f"{error.strerror or 'it does not work'}; choose another")
        raise failure_of(address, reason, option) from error


def failure_of(address: str, reason: str, option: str) -> ConfigError:
    """Return the error for an address that can't be used."""
    return ConfigError(f"can't listen on {address}: {reason} with {{field}}", field=option)


def lock_socket(path: Path, option: str) -> int:
    """Lock a socket's path for this process, and remove the socket file of a killed server.

    Without the lock, gRPC would replace any socket file, and would thus take the address from a running server.

    Returns:
        File descriptor of the lock file, which is never removed.

    Raises:
        ConfigError: another server uses the path, or the file at the path is not a socket.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    taken = ConfigError(
        f"another server answers on unix://{path}", fix="stop it, or choose another path with {field}", field=option
    )
    lock = os.open(path.with_name(path.name + ".lock"), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if os.path.lexists(path):
            if not stat.S_ISSOCK(path.lstat().st_mode):
                raise ConfigError(
                    f"{path} exists and is not a socket", fix="choose another path with {field}", field=option
                )
            with socket.socket(socket.AF_UNIX) as probe:  # finds a program that takes no such lock
                probe.settimeout(_PROBE_S)
                if probe.connect_ex(str(path)) != errno.ECONNREFUSED:
                    raise taken
            path.unlink()
    except BlockingIOError:
        os.close(lock)
        raise taken from None
    except BaseException:
        os.close(lock)
        raise
    return lock


def tls_context(config: AccessConfig) -> ssl.SSLContext | None:
    """Return the TLS context for HTTP servers; None if no certificate is set.

    Like gRPC, the context requires client certificates if ``tls_client_ca`` is set.

    Raises:
        ConfigError: a file is missing, is not PEM, or does not match the others; the message names the setting.
    """
    certificate, key, authorities = config.tls_certificate, config.tls_key, config.tls_client_ca
    if certificate is None or key is None:
        if (certificate, key, authorities) != (None, None, None):
            raise ConfigError(
                "{field} and access.tls_key belong together, and access.tls_client_ca needs both",
                fix="set the missing ones",
                field="access.tls_certificate",
            )
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    no_certificate = "holds no valid certificate", "name a PEM file"
    with explained("access.tls_certificate", f"'{certificate}'", *no_certificate):
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(certificate)
    no_key = "is not the unencrypted private key (PEM) of access.tls_certificate"
    with explained("access.tls_key", f"'{key}'", no_key, "name it"):
        context.load_cert_chain(certificate, key, password=lambda: b"")  # otherwise OpenSSL prompts on the terminal
    if authorities is not None:
        with explained("access.tls_client_ca", f"'{authorities}'", *no_certificate):
            context.load_verify_locations(authorities)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def server_credentials(config: AccessConfig) -> grpc.ServerCredentials | None:
    """Return the credentials for gRPC's TCP addresses; None if no certificate is set.

    If ``tls_client_ca`` is set, clients need a certificate from an authority in this file to connect.

    Raises:
        ConfigError: see :func:`tls_context`. gRPC itself would fail only when a client connects, and would not report
            the failure.
    """
    if tls_context(config) is None or config.tls_certificate is None or config.tls_key is None:
        return None
    pair = (config.tls_key.read_bytes(), config.tls_certificate.read_bytes())
    authorities = None if config.tls_client_ca is None else config.tls_client_ca.read_bytes()
    return grpc.ssl_server_credentials(
        [pair], root_certificates=authorities, require_client_auth=authorities is not None
    )


def warn_of_exposure(config: AccessConfig, addresses: Iterable[str]) -> None:
    """Warn of addresses that are open to every client, and of addresses at which keys travel unencrypted.

    There is no warning for loopback addresses and Unix sockets. An exposed address is not an error, because the network
    or a proxy may protect the server.
    """
    is_open = config.file is None and config.tls_client_ca is None
    if not is_open and (config.file is None or config.tls_certificate is not None):
        return
    for address in addresses:
        if address.startswith("unix:") or is_loopback(address.rpartition(":")[0]):
            continue
        if is_open:
            logger.warning(
                "{} is open to everyone who reaches it; set access.file, or listen on 127.0.0.1 or a Unix socket",
                address,
            )  # fmt: skip
        else:
            logger.warning(
                "others can read keys on their way to {}; set access.tls_certificate and access.tls_key, "
                "or let a proxy encrypt", address,
            )  # fmt: skip


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the common name and the DNS names of the client's certificate.

    Without ``tls_client_ca``, the list is empty, because only this setting makes clients prove that they own a
    certificate.

    Args:
        auth_context: the value of ``ServicerContext.auth_context()``.
    """
    return [
        name.decode(errors="replace")
        for property_name in _NAME_PROPERTIES
        for name in auth_context.get(property_name, ())
    ]
