"""Makes gRPC channels to drafters, with message limits, reconnecting, encryption and credentials."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import grpc

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import grpc_target, is_loopback, socket_path, stays_local

if TYPE_CHECKING:
    from speculant_graph.config import ClientConfig

MAX_MESSAGE_BYTES = 1 << 20
"""Largest message that a client accepts or sends, in bytes; also the server's default."""


_NO_PROXY = (
    ("grpc.enable_http_proxy", 0),
    # GRPC_ADDRESS_HTTP_PROXY ignores that switch; it uses this list of addresses to proxy instead of its own
    # variable's.
    ("grpc.address_http_proxy_enabled_addresses", ""),
)


def message_limits(max_message_bytes: int) -> list[tuple[str, int]]:
    """Return the options that limit the message size of a channel or a server."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """A drafter's address with everything that a channel needs; made once, so that mistakes show early."""

    address: str
    """The drafter's address as configured, for connecting and for messages."""
    options: tuple[tuple[str, str | int], ...]
    """Options of the channel."""
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    """TLS credentials of the channel; with None, the channel is not encrypted."""
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Metadata to send with every call."""

    @classmethod
    def of(cls, address: str, config: ClientConfig | None = None, host_name: str = "") -> Endpoint:
        """Return the endpoint of one address.

        Args:
            address: ``unix:///path`` or ``host:port``.
            config: settings for encryption and credentials, none by default; the addresses in these settings are
                ignored. A connection to a Unix socket is never encrypted.
            host_name: host name in the drafter's certificate; if empty, the host in the address is used.

        Raises:
            ConfigError: the address is malformed, a certificate can't be used, or the token would travel unencrypted.
        """
        if config is None:
            from speculant_graph.config import ClientConfig  # takes longer to import than the rest of a client

            config = ClientConfig()
        is_tcp = socket_path(address) is None
        is_encrypted = is_tcp and (config.tls_ca is not None or config.tls_certificate is not None)
        # With gRPC's default backoff of a second and more, a restarted drafter would stay unused that long.
        options: tuple[tuple[str, str | int], ...] = (
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
            # If a name has several addresses, clients choose different ones, and switch if theirs is gone.
            ("grpc.service_config", '{"loadBalancingConfig": [{"pick_first": {"shuffleAddressList": true}}]}'),
            # Two clients in one process must not share a connection, nor its flow control.
            ("grpc.use_local_subchannel_pool", 1),
            *message_limits(MAX_MESSAGE_BYTES),
        )
        if host_name and is_encrypted:
            options += (("grpc.ssl_target_name_override", host_name),)
        return cls(
            address,
            options,
            _credentials(config) if is_encrypted else None,
            _metadata(
                config,
                may_be_read=is_tcp and not is_encrypted and not is_loopback(address.rpartition(":")[0]),
                address=address,
            ),
        )

    def connect(self) -> grpc.Channel:
        """Return a channel. The channel connects on first use, and reconnects by itself."""
        return open_channel(self.address, self.options, self.credentials)


def open_channel(
    address: str,
    options: Iterable[tuple[str, str | int]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.Channel:
    """Return a channel; all channels of this project are made here.

    Loopback addresses and Unix sockets never use a proxy. Other addresses use the proxy in ``grpc_proxy``,
    ``https_proxy`` or ``http_proxy``, as gRPC documents. Hosts in ``no_grpc_proxy`` or ``no_proxy`` are exempt from the
    proxy.

    Args:
        address: ``unix:///path`` or ``host:port``.
        options: options of the channel.
        credentials: TLS credentials; with None, the channel is not encrypted.

    Raises:
        ConfigError: the address is neither ``unix:///path`` nor ``host:port``.
    """
    target = grpc_target(address)
    given = [*options, *(_NO_PROXY if stays_local(address) else ())]
    if credentials is None:
        return grpc.insecure_channel(target, options=given)
    return grpc.secure_channel(target, credentials, options=given)


def connect_channel(address: str, config: ClientConfig | None = None) -> grpc.Channel:
    """Return a channel to one drafter; see :meth:`Endpoint.of` for arguments and errors."""
    return Endpoint.of(address, config).connect()


@contextmanager
def explained(field: str, file: str, fault: str, fix: str) -> Iterator[None]:
    """Raise ConfigError if the code in the ``with`` block can't read or use certificate files.

    gRPC itself accepts any bytes, and later reports only that it can't connect.

    Args:
        field: name of the setting.
        file: the setting's file, as shown in the message.
        fault: the problem to report if the file can be read but not used.
        fix: the fix to report with the problem.
    """
    try:
        yield
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{{field}}: {file} {fault}", fix=fix, field=field) from error
    except OSError as error:
        reason = error.strerror or "it can't be read"
        fix = "check the path and its permissions"
        raise ConfigError(f"{{field}}: {file}: {reason}", fix=fix, field=field) from error


def _credentials(config: ClientConfig) -> grpc.ChannelCredentials:
    ca, certificate, key = config.tls_ca, config.tls_certificate, config.tls_key
    if (certificate is None) != (key is None):
        raise ConfigError(
            "{field} and client.tls_key belong together", fix="set both or neither", field="client.tls_certificate"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if ca is not None:
        with explained("client.tls_ca", f"'{ca}'", "holds no usable certificate", "give a PEM file"):
            context.load_verify_locations(ca)
    if certificate is not None:
        pair = f"'{certificate}' and client.tls_key: '{key}'"
        fix = "give PEM files of a certificate and its key without a passphrase"
        with explained("client.tls_certificate", pair, "are not a pair", fix):
            context.load_cert_chain(certificate, key, password="")
    files = (None if path is None else path.read_bytes() for path in (ca, key, certificate))
    return grpc.ssl_channel_credentials(*files)


def _metadata(config: ClientConfig, *, may_be_read: bool, address: str) -> tuple[tuple[str, str], ...]:
    if config.token is None:
        return ()
    token = config.token.get_secret_value()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ConfigError(
            "{field} must be visible ASCII characters without spaces",
            fix="check its source",
            field="client.token",
        )
    if may_be_read:
        raise ConfigError(
            f"{{field}} would travel to {address} unencrypted",
            fix="set client.tls_ca, or use a Unix socket or a loopback address",
            field="client.token",
        )
    return (("authorization", f"Bearer {token}"),)
