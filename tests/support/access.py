"""Access files of clients with keys and certificates."""

from __future__ import annotations

import hashlib
import ssl
from pathlib import Path

import trustme

from speculant_graph.serving.access import AccessPolicy


def entry(name: str, key: str = "", more: str = "", certificate: str = "") -> str:
    """Return a client's entry of an access file; ``more`` has further lines."""
    lines = ["[[clients]]", f'name = "{name}"']
    if key:
        lines.append(f'token_sha256 = "{hashlib.sha256(key.encode()).hexdigest()}"')
    if certificate:
        lines.append(f'certificate_name = "{certificate}"')
    return "\n".join([*lines, more, ""])


def access_file(path: Path, *clients: str) -> Path:
    """Write an access file; an existing one is replaced atomically."""
    new = path.with_suffix(".new")
    new.write_text("".join(clients), encoding="utf-8")
    new.chmod(0o600)
    return new.replace(path)


def policy(path: Path, *clients: str) -> AccessPolicy:
    """Return the policy of an access file with these entries."""
    return AccessPolicy.load(access_file(path, *clients))


class Certificates:
    """Certificate files of an authority, of a server and of a client ``search.internal``."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self.authority = trustme.CA()
        self.ca = folder / "ca.pem"
        self.authority.cert_pem.write_to_path(str(self.ca))
        self.server = self._pair(folder, "server", self.authority.issue_cert("localhost", "127.0.0.1"))
        client = self.authority.issue_cert("search.internal", "other.internal", common_name="search")
        self.client = self._pair(folder, "client", client)

    @staticmethod
    def _pair(folder: Path, name: str, certificate: trustme.LeafCert) -> dict[str, Path]:
        paths = {"tls_certificate": folder / f"{name}.pem", "tls_key": folder / f"{name}.key"}
        certificate.cert_chain_pems[0].write_to_path(str(paths["tls_certificate"]))
        certificate.private_key_pem.write_to_path(str(paths["tls_key"]))
        return paths

    def context(self, name: str = "") -> ssl.SSLContext:
        """Return the TLS context of a client with this certificate name; without a name, it has no certificate."""
        context = ssl.create_default_context()
        self.authority.configure_trust(context)
        if name:
            self.authority.issue_cert(name, common_name=name).configure_cert(context)
        return context
