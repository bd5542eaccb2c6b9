"""The OpenAI-compatible API over HTTP: :func:`create_app` makes the application, :class:`HttpServer` serves it."""

from speculant_verifier.http.app import METRICS_TYPE, create_app
from speculant_verifier.http.server import HttpServer

__all__ = ["METRICS_TYPE", "HttpServer", "create_app"]
