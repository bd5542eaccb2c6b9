"""Reads the access file, a TOML file that lists the clients of a server with their tenants and graphs.

The access file has only digests of tokens, so a person who reads the file can't use the tokens. Without an access file,
every client that can connect may do everything. This module does not depend on gRPC.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import secrets
import stat
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from speculant_graph.errors import AccessError, ConfigError, UnauthenticatedError
from speculant_graph.validation_messages import humanise

REQUEST_ID_KEY = "x-request-id"
"""Metadata key and HTTP header of a call's id, which the client may choose."""
_SANE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ALL = "*"
"""Name that stands for all tenants or all graphs."""

_HEX_DIGITS = frozenset("0123456789abcdef")
_UNKNOWN_CLIENT = "the server does not know this client; send the token or the certificate that its access file names"


def _digest(text: str) -> str:
    digest = text.lower()
    if len(digest) != 64 or not _HEX_DIGITS.issuperset(digest):
        raise ValueError("must be the 64 hexadecimal digits that sha256sum prints")
    return digest


def _list_of_all(names: object) -> object:
    return [ALL] if names == ALL else names


_Text = Annotated[str, Field(min_length=1)]
_Names = Annotated[frozenset[_Text], BeforeValidator(_list_of_all), Field(min_length=1, strict=False)]


class Principal(BaseModel):
    """A client in the access file, with its permissions."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    name: _Text
    token_sha256: Annotated[str, AfterValidator(_digest)] | None = None
    certificate_name: _Text | None = None
    tenants: _Names = Field(default_factory=lambda known: frozenset({known["name"]}))
    """The client's tenants; "*" means all."""
    graphs: _Names = frozenset({ALL})
    """Graphs that the client may draft from; "*" means all."""
    admin: bool = False
    """Whether the client may use the admin service."""

    @model_validator(mode="after")
    def _can_be_recognised(self) -> Self:
        if self.token_sha256 is None and self.certificate_name is None:
            raise ValueError(f"'{self.name}' has neither token_sha256 nor certificate_name; add one")
        return self

    def require_tenant(self, tenant: str) -> str:
        """Return the tenant of a request: the named tenant, or the client's only tenant.

        Raises:
            AccessError: the request names another client's tenant, or names no tenant although the client has several.
        """
        if self.owns_tenant(tenant):
            return tenant
        if tenant:
            raise AccessError(
                "this tenant is not the client's", fix="name a tenant that the access file gives it", field="tenant"
            )
        if len(self.tenants) > 1:
            raise AccessError("the client has several tenants", fix="name one of them", field="tenant")
        (only,) = self.tenants
        return only

    def require_graph(self, name: str) -> str:
        """Return the graph of a request: the named graph, the client's only graph, or "" if the client may use all.

        If a graph's name joins several layers by '+', the client must have access to all of them.

        Raises:
            AccessError: the request names a graph that is not the client's, or names no graph although the client has
                several.
        """
        if name and not all(map(self.may_use_graph, name.split("+"))):
            raise AccessError("this client has no graph of this name", fix="name one of its graphs", field="graph")
        if name or ALL in self.graphs:
            return name
        if len(self.graphs) > 1:
            raise AccessError("the client has several graphs", fix="name one of them", field="graph")
        (only,) = self.graphs
        return only

    def owns_tenant(self, tenant: str) -> bool:
        """Return whether a tenant belongs to the client."""
        return ALL in self.tenants or tenant in self.tenants

    def may_use_graph(self, name: str) -> bool:
        """Return whether the client may draft from a graph."""
        return ALL in self.graphs or name in self.graphs

    def require_admin(self) -> None:
        """Raise an error if the client is not an administrator.

        Raises:
            AccessError: the client is not an administrator.
        """
        if not self.admin:
            raise AccessError("the client is not an administrator; set admin = true for it in the access file")


ANONYMOUS = Principal.model_construct(name="", tenants=frozenset({ALL}), graphs=frozenset({ALL}), admin=True)
"""The client that stands for every caller if the server has no access file."""


class _AccessFile(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    clients: Annotated[list[Principal], Field(min_length=1)]

    @field_validator("clients")
    @classmethod
    def _are_distinct(cls, clients: list[Principal]) -> list[Principal]:
        for key in ("name", "token_sha256", "certificate_name"):
            counts = Counter(getattr(each, key) for each in clients)
            names = [each.name for each in clients if getattr(each, key) is not None and counts[getattr(each, key)] > 1]
            if names:
                raise ValueError(f"{' and '.join(map(repr, names))} have the same {key}; give each its own")
        return clients


class AccessPolicy:
    """Identifies the client that makes a call to the server."""

    def __init__(self, clients: Sequence[Principal] | None = None) -> None:
        """Make a policy from known clients; usually, :meth:`load` makes the policy from a file.

        Args:
            clients: the known clients; None admits every client.
        """
        self._clients = clients

    @classmethod
    def load(cls, path: Path | None) -> AccessPolicy:
        """Read an access file; without a file, the policy admits every client.

        Args:
            path: the setting ``access.file``.

        Raises:
            ConfigError: the file can't be read, is wrong, or can be changed by other users.
        """
        if path is None:
            return cls()
        try:
            return cls(_AccessFile.model_validate(_read(path)).clients)
        except ValidationError as error:
            raise ConfigError(f"access file '{path}': {_explain(error)}") from None  # the cause may contain a token

    def named_graphs(self) -> frozenset[str]:
        """Return the names of all graphs that the access file names."""
        return frozenset[str]().union(*(client.graphs for client in self._clients or ())) - {ALL}

    @property
    def is_open(self) -> bool:
        """Whether every client may do everything, because there is no access file."""
        return self._clients is None

    def authenticate(self, authorization_header: str | None, certificate_names: Sequence[str]) -> Principal:
        """Return the client that makes a call.

        A token takes precedence over the certificate: a client with a wrong token is rejected even if its certificate
        is valid. A client whose entry has both a token and a certificate must present both.

        Args:
            authorization_header: value of the metadata ``authorization``: "Bearer" and the token.
            certificate_names: names in the client's verified certificate.

        Raises:
            UnauthenticatedError: the caller is not a client in the file.
        """
        if self._clients is None:
            return ANONYMOUS
        if authorization_header is None:
            for client in self._clients:
                if client.token_sha256 is None and client.certificate_name in certificate_names:
                    return client
            raise UnauthenticatedError(_UNKNOWN_CLIENT)
        digest = hashlib.sha256(_bearer_token(authorization_header).encode(errors="replace")).hexdigest()
        found = None
        for client in self._clients:  # checks all clients, so that the time does not reveal a position
            if hmac.compare_digest(client.token_sha256 or "", digest):
                found = client
        if found is None or found.certificate_name not in (None, *certificate_names):
            raise UnauthenticatedError(_UNKNOWN_CLIENT)
        return found


def request_id_of(metadata: Iterable[tuple[str, str | bytes]] | None) -> str:
    """Return the call's id: the id that the client sent if it is valid, else a random id.

    Args:
        metadata: the call's metadata, or a request's headers.
    """
    for key, value in metadata or ():
        if key == REQUEST_ID_KEY and isinstance(value, str) and _SANE_ID.fullmatch(value):
            return value
    return secrets.token_hex(8)


def _bearer_token(header: str) -> str:
    scheme, _, token = header.strip().partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise UnauthenticatedError("the metadata 'authorization' must be the word Bearer, a space and the token")
    return token.strip()


def _read(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            content = file.read()
        parsed = tomllib.loads(content.decode())
    except OSError as error:
        reason = error.strerror or "it can't be read"
        raise ConfigError(
            f"access file '{path}': {reason}; check the setting access.file and the file's permissions"
        ) from error
    except ValueError as error:  # invalid UTF-8 or TOML
        raise ConfigError(f"access file '{path}' is not TOML: {error}; correct it there") from error
    if stat.S_IMODE(status.st_mode) & (stat.S_IWGRP | stat.S_IWOTH):
        raise ConfigError(f"access file '{path}' can be changed by other users; run: chmod go-w '{path}'")
    if status.st_uid not in (0, os.geteuid()):
        raise ConfigError(f"access file '{path}' belongs to another user; make it yours or root's with chown")
    return parsed


def _explain(error: ValidationError) -> str:
    """Return pydantic's error message and the location of the error, without the wrong value; positions start at 1."""
    errors = error.errors(include_input=False, include_url=False, include_context=False)
    # A misspelt key comes first, because it is the cause of a missing key.
    first = min(errors, key=lambda each: each["type"] != "extra_forbidden")
    where = ".".join(str(part + 1 if isinstance(part, int) else part) for part in first["loc"])
    return f"{where}: {humanise(first)}"
