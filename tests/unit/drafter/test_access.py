"""The access file: how clients authenticate, and what each may use."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculant_graph.errors import AccessError, ConfigError, UnauthenticatedError
from speculant_graph.rpc.status import from_status, to_status
from speculant_graph.serving.access import ANONYMOUS, AccessPolicy, Principal


def digest(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


FILE = f"""
[[clients]]
name = "search"
token_sha256 = "{digest("one").upper()}"
tenants = ["search", "search-test"]
graphs = ["docs"]

[[clients]]
name = "writer"
certificate_name = "writer.internal"

[[clients]]
name = "careful"
token_sha256 = "{digest("two")}"
certificate_name = "careful.internal"

[[clients]]
name = "operator"
token_sha256 = "{digest("three")}"
tenants = "*"
admin = true
"""


def written(folder: Path, text: str) -> Path:
    path = folder / "access.toml"
    path.write_text(text, encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def policy(tmp_path: Path) -> AccessPolicy:
    return AccessPolicy.load(written(tmp_path, FILE))


def test_without_a_file_everybody_may_do_everything() -> None:
    policy = AccessPolicy.load(None)
    assert policy.is_open
    principal = policy.authenticate(None, ())
    assert principal is policy.authenticate("Bearer anything", ("x",)) is ANONYMOUS
    assert principal.require_tenant("") == ""
    assert principal.require_tenant("any") == "any"
    assert principal.may_use_graph("any")
    principal.require_admin()


def test_the_graphs_that_a_file_names_are_known(policy: AccessPolicy) -> None:
    assert policy.named_graphs() == {"docs"}
    assert AccessPolicy.load(None).named_graphs() == set()


def test_clients_are_found_by_token_and_by_certificate(policy: AccessPolicy) -> None:
    assert not policy.is_open
    assert policy.authenticate("Bearer one", ()).name == "search"
    assert policy.authenticate("bearer  one ", ("writer.internal",)).name == "search"
    assert policy.authenticate(None, ("other", "writer.internal")).name == "writer"
    assert policy.authenticate("Bearer two", ("careful.internal",)).name == "careful"


@pytest.mark.parametrize(
    ("header", "names"),
    [
        (None, ()),
        (None, ("stranger",)),
        ("Bearer two", ()),  # its entry also requires a certificate
        ("Bearer two", ("writer.internal",)),
        (None, ("careful.internal",)),
        ("Bearer wrong", ("writer.internal",)),  # a valid certificate does not excuse a wrong token
        ("Bearer " + digest("one"), ()),  # the digest in the file is not a token
        ("Bearer ", ()),
        ("Bearer", ()),
        ("Basic one", ()),
        ("one", ()),
        ("", ("writer.internal",)),
        ("Bearer \ud800\u00e9", ()),
    ],
)
def test_others_are_not_known(policy: AccessPolicy, header: str | None, names: tuple[str, ...]) -> None:
    with pytest.raises(UnauthenticatedError) as caught:
        policy.authenticate(header, names)
    code, message = to_status(caught.value)
    assert code.name == "UNAUTHENTICATED"
    assert "\n" not in message
    assert isinstance(from_status(code, message), UnauthenticatedError)


@given(st.sets(st.text(max_size=3), min_size=1, max_size=3), st.text(max_size=3))
def test_no_tenant_but_the_own_ones(tenants: set[str], asked: str) -> None:
    principal = Principal.model_construct(name="x", tenants=frozenset(tenants))
    try:
        meant = principal.require_tenant(asked)
    except AccessError:
        assert asked not in tenants
        assert "*" not in tenants
    else:
        assert meant == asked or (asked == "" and {meant} == tenants)
        assert meant in tenants or "*" in tenants


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", r"clients: is missing; give it"),
        ("[[clients]]\nname = 'a'\nx = 1\ncertificate_name = 'c'", r"clients\.1\.x: there is no such setting"),
        ("[[clients]]\nname = 'a'", r"clients\.1: 'a' has neither token_sha256 nor certificate_name; add one"),
        ("[[clients]]\nname = 'a'\ntoken_sha256 = 'hush'", r"clients\.1\.token_sha256: must be the 64 hex"),
        ("\udcff", r"is not TOML: "),
        *(
            (
                f"[[clients]]\nname = 'a'\n{key} = '{value}'\n[[clients]]\nname = 'b'\n{key} = '{value}'",
                rf"clients: 'a' and 'b' have the same {key}; give each its own",
            )
            for key, value in (("token_sha256", digest("hush")), ("certificate_name", "c"))
        ),
    ],
)
def test_mistakes_in_the_file_are_named(tmp_path: Path, text: str, complaint: str) -> None:
    path = tmp_path / "access.toml"
    path.write_bytes(text.encode(errors="surrogateescape"))
    path.chmod(0o600)
    # Promised behaviour: each mistake in the file has its own message.
    with pytest.raises(ConfigError, match=complaint) as caught:
        AccessPolicy.load(path)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hush" not in str(caught.value)


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_file_that_others_can_change_is_refused(tmp_path: Path, mode: int) -> None:
    path = written(tmp_path, FILE)
    path.chmod(mode)
    with pytest.raises(ConfigError):
        AccessPolicy.load(path)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files away")
def test_a_file_of_another_user_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, FILE)
    os.chown(path, 12_345, -1)
    with pytest.raises(ConfigError):
        AccessPolicy.load(path)
