"""Whether the explorer is served at all, and to whom."""

from __future__ import annotations

import ipaddress
import ssl

from speculant_drafter.http_server import HttpRequest
from speculant_graph.config import ServerConfig
from speculant_graph.errors import AccessError, ConfigError, UnauthenticatedError
from speculant_graph.rpc.addresses import is_loopback
from speculant_graph.serving.access import AccessPolicy, Principal


def is_open(config: ServerConfig) -> bool:
    """Say whether the explorer is served.

    Raises:
        ConfigError: it is wanted where there is no HTTP, or where keys would travel in the clear.
    """
    if config.explorer == "off":
        return False
    host = _host(config.metrics_listen)
    if config.explorer == "auto":
        # In the clear nobody can show the certificate that gRPC asks clients for.
        return is_loopback(host) and config.tls_client_ca is None
    if not config.metrics_listen:
        raise ConfigError("server.explorer is on, but there is no HTTP; set server.metrics_listen to host:port")
    if config.access_file is not None and config.tls_certificate is None and not is_loopback(host):
        raise ConfigError(
            f"server.explorer would take keys in the clear on {config.metrics_listen}; set server.tls_certificate and "
            "server.tls_key, or listen on 127.0.0.1"
        )
    return True


def tls_context(config: ServerConfig) -> ssl.SSLContext | None:
    """Return what encrypts HTTP: the certificate of gRPC, where the explorer is turned on; None for plain HTTP.

    :func:`~speculant_graph.serving.credentials.server_credentials` has looked at the files before.
    """
    if config.explorer != "on" or config.tls_certificate is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(config.tls_certificate, config.tls_key)
    if config.tls_client_ca is not None:
        # Not required, as probes have none; the explorer asks for it itself.
        context.verify_mode = ssl.CERT_OPTIONAL
        context.load_verify_locations(config.tls_client_ca)
    return context


class Door:
    """Lets requests for data in."""

    def __init__(self, config: ServerConfig) -> None:
        """Take the settings that say who may come in."""
        self._listen_host = _host(config.metrics_listen)
        self._needs_certificate = config.tls_client_ca is not None

    def principal_of(self, request: HttpRequest, policy: AccessPolicy) -> Principal:
        """Return who asks.

        Raises:
            UnauthenticatedError: the access file does not know the client.
            AccessError: a foreign page may be behind the request.
        """
        if policy.is_open:
            self._require_own_name(request.headers.get("host", ""))
        names = request.certificate_names
        if self._needs_certificate and names is None:
            raise UnauthenticatedError("show a certificate of an authority in server.tls_client_ca")
        return policy.authenticate(request.headers.get("authorization"), names or ())

    def _require_own_name(self, host_header: str) -> None:
        """Refuse names that anybody could have given to this address.

        A page elsewhere may have its own name lead here after it was loaded (DNS rebinding); the browser would then
        let it read our answers. With keys this is harmless, as such a page has none.
        """
        name = _host(host_header if ":" in host_header.rpartition("]")[2] else f"{host_header}:80").lower()
        if _is_address(name) or name in ("localhost", self._listen_host.lower()):
            return
        raise AccessError(
            "without an access file the explorer answers to localhost, to addresses and to the name in "
            "server.metrics_listen; open it by one of these"
        )


def _host(address: str) -> str:
    return address.rpartition(":")[0].strip("[]")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True
