"""The OpenAI-compatible API over HTTP: :func:`create_app` makes the application, :class:`HttpServer` serves it."""

from speculant_graph.serving.http import HttpServer
from speculant_verifier.http.app import create_app

__all__ = ["HttpServer", "create_app"]
