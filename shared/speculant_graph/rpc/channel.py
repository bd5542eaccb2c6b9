"""How a channel to a drafter behaves: limits, reconnecting, encryption, credentials."""

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
"""Largest message a client takes or sends; the server's default as well."""


_NO_PROXY = (
    ("grpc.enable_http_proxy", 0),
    # GRPC_ADDRESS_HTTP_PROXY ignores that switch; it proxies what is in this list, instead of that of its own variable.
    ("grpc.address_http_proxy_enabled_addresses", ""),
)


def message_limits(max_message_bytes: int) -> list[tuple[str, int]]:
    """Return the options of a channel or a server that limit its messages."""
    return [
        ("grpc.max_send_message_length", max_message_bytes),
        ("grpc.max_receive_message_length", max_message_bytes),
    ]


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One drafter's address with all that a channel to it needs; made once, so that mistakes show early."""

    address: str
    """As it was configured, for messages to people."""
    options: tuple[tuple[str, str | int], ...]
    """Of the channel."""
    credentials: grpc.ChannelCredentials | None = field(default=None, repr=False)
    """None: not encrypted."""
    metadata: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """To be sent with every call."""

    @classmethod
    def of(cls, address: str, config: ClientConfig | None = None, host_name: str = "") -> Endpoint:
        """Return the endpoint of one address.

        Args:
            address: ``unix:///path`` or ``host:port``.
            config: encryption and credentials, none by default; its own addresses are not looked at. A Unix socket is
                never encrypted.
            host_name: whose certificate the drafter shows; empty: that of the address's own host.

        Raises:
            ConfigError: the address has neither of the two forms, a certificate can't be used, or the token would
                travel readable for all.
        """
        if config is None:
            from speculant_graph.config import ClientConfig  # takes longer to load than all the rest of a client

            config = ClientConfig()
        is_tcp = socket_path(address) is None
        is_encrypted = is_tcp and (config.tls_ca is not None or config.tls_certificate is not None)
        # gRPC's default backoff of a second and more would leave a restarted drafter unused for that long.
        options: tuple[tuple[str, str | int], ...] = (
            ("grpc.initial_reconnect_backoff_ms", 50),
            ("grpc.min_reconnect_backoff_ms", 50),
            ("grpc.max_reconnect_backoff_ms", 200),
            # Of the addresses that a name stands for, clients take different ones, and another one when theirs is gone.
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
        """Return a channel. It connects on first use and reconnects by itself."""
        return open_channel(self.address, self.options, self.credentials)


def open_channel(
    address: str,
    options: Iterable[tuple[str, str | int]] = (),
    credentials: grpc.ChannelCredentials | None = None,
) -> grpc.Channel:
    """Return a channel; all channels of this project are made here.

    Loopback addresses and Unix sockets never use a proxy. Others use one as gRPC documents it, by ``grpc_proxy``,
    ``https_proxy`` or ``http_proxy``, but for hosts in ``no_grpc_proxy`` or ``no_proxy``.

    Args:
        address: ``unix:///path`` or ``host:port``.
        options: of the channel.
        credentials: None does not encrypt.

    Raises:
        ConfigError: the address has neither of the two forms.
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
    """Raise ConfigError where the block can't read files of certificates or use them.

    gRPC takes any bytes, and later reports only that it can't connect.

    Args:
        field: the setting.
        file: its file, as it is shown.
        fault: what is wrong with it if it can be read.
        fix: what to do then.
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
        with explained("client.tls_certificate", pair, "are no pair", fix):
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
            fix="check what it is read from",
            field="client.token",
        )
    if may_be_read:
        raise ConfigError(
            f"{{field}} would travel to {address} unencrypted",
            fix="set client.tls_ca, or use a Unix socket or a loopback address",
            field="client.token",
        )
    return (("authorization", f"Bearer {token}"),)
