"""HTTP addresses that users name, and requests to them: a key and a conversation go nowhere else."""

from __future__ import annotations

from http.client import HTTPResponse
from urllib.parse import urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from speculant_graph.errors import ConfigError
from speculant_graph.rpc.addresses import is_loopback


def checked_url(url: str, api_key: str) -> str:
    """Return where an API begins, without a slash at its end.

    Args:
        url: as a user wrote it, such as ``http://127.0.0.1:8000/v1``.
        api_key: what requests will carry, else empty.

    Raises:
        ConfigError: it is no address, the key can't be sent, or it would travel readable for all.
    """
    try:
        parts = urlsplit(url)
        is_good = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_good = False
    if not is_good or not url.isascii() or any(character.isspace() for character in url):
        raise ConfigError(f"{url!r} is no address of an API; write --url http://127.0.0.1:8000/v1")
    if api_key and (not api_key.isascii() or not api_key.isprintable() or " " in api_key):
        raise ConfigError("the API key must be visible ASCII characters without spaces; check SPECULANT_API_KEY")
    if api_key and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
        raise ConfigError("the API key would travel unencrypted; use https, or an address of this machine")
    return url.rstrip("/")


def open_url(request: Request, timeout_s: float) -> HTTPResponse:
    """Send a request; to this machine past all proxies, which would see what is in it and look on their own machine.

    Args:
        request: to an address that :func:`checked_url` has seen.
        timeout_s: patience with a server that does not answer.

    Raises:
        urllib.error.URLError: there is no answer, or one that refuses.
    """
    is_own = is_loopback(urlsplit(request.full_url).hostname or "")
    opener = build_opener(ProxyHandler({})) if is_own else build_opener()
    answer: HTTPResponse = opener.open(request, timeout=timeout_s)
    return answer
