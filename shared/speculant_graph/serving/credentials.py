"""TLS of a server: its certificate, and the names in those of its clients."""

from __future__ import annotations

import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path

import grpc
from loguru import logger

from speculant_graph.config import EndpointConfig
from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import is_loopback

_NAME_PROPERTIES = ("x509_common_name", "peer_dns")


def server_credentials(config: EndpointConfig) -> grpc.ServerCredentials | None:
    """Return what TCP addresses are served with, or None if no certificate is set.

    With ``tls_client_ca`` only clients whose certificate is of one of its authorities can connect.

    Raises:
        ConfigError: a file is missing, is no PEM, or does not fit the others; the message names the setting.
    """
    certificate_path, key_path, section = config.tls_certificate, config.tls_key, config.section
    if certificate_path is None or key_path is None:
        for name, path, other in (
            ("tls_certificate", certificate_path, "tls_key"),
            ("tls_key", key_path, "tls_certificate"),
        ):
            if path is not None:
                raise ConfigError(f"{section}.{name} needs {section}.{other}; set both or neither")
        if config.tls_client_ca is not None:
            raise ConfigError(
                f"{section}.tls_client_ca needs {section}.tls_certificate and {section}.tls_key; set all three"
            )
        return None
    certificate = _read_certificates(certificate_path, f"{section}.tls_certificate")
    key = _read(key_path, f"{section}.tls_key")
    try:
        # gRPC would notice when a client connects, and say why to nobody.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(
            certificate_path, key_path, password=lambda: b""
        )  # without it OpenSSL asks the terminal
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(
            f"{section}.tls_key: '{key_path}' is not the unencrypted private key (PEM) of {section}.tls_certificate; "
            "name it"
        ) from error
    authorities = None
    if config.tls_client_ca is not None:
        authorities = _read_certificates(config.tls_client_ca, f"{section}.tls_client_ca")
    return grpc.ssl_server_credentials(
        [(key, certificate)], root_certificates=authorities, require_client_auth=authorities is not None
    )


def warn_of_exposure(config: EndpointConfig, addresses: Iterable[str]) -> None:
    """Warn of addresses that are open to everyone, and of those where keys travel in the clear.

    Addresses that are this machine's own are neither. It is no more than a warning, as the network or a proxy before
    the server may be what protects it.
    """
    is_open = config.access_file is None and config.tls_client_ca is None
    if not is_open and (config.access_file is None or config.tls_certificate is not None):
        return
    for address in addresses:
        if address.startswith("unix:") or is_loopback(address.rpartition(":")[0]):
            continue
        if is_open:
            logger.warning(
                "{} is open to everyone who reaches it; set {}.access_file, or listen on 127.0.0.1 or a Unix socket",
                address, config.section,
            )  # fmt: skip
        else:
            logger.warning(
                "keys can be read by others on their way to {}; set {}.tls_certificate and .tls_key, or let a proxy "
                "encrypt", address, config.section,
            )  # fmt: skip


def certificate_names(auth_context: Mapping[str, Iterable[bytes]]) -> list[str]:
    """Return the common name and the DNS names of the client's certificate.

    There are none without ``tls_client_ca``, which alone makes clients prove that the certificate is theirs.

    Args:
        auth_context: what ``ServicerContext.auth_context()`` returned.
    """
    return [
        name.decode(errors="replace")
        for property_name in _NAME_PROPERTIES
        for name in auth_context.get(property_name, ())
    ]


def _read(path: Path, setting: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        reason = error.strerror or "it can't be read"
        raise ConfigError(f"{setting}: '{path}': {reason}; check the path and its permissions") from error


def _read_certificates(path: Path, setting: str) -> bytes:
    content = _read(path, setting)
    try:
        text = content.decode("ascii", errors="ignore")  # comments beside the PEM blocks may be in any language
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata=text)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"{setting}: '{path}' holds no valid certificate; name a PEM file") from error
    return content
