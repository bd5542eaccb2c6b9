"""The OpenAI-compatible API over HTTP: :func:`create_app` makes the application, :class:`HttpServer` serves it."""

from speculant_graph.serving.http import HttpServer
from speculant_verifier.http.app import API, create_app, refuse

__all__ = ["API", "HttpServer", "create_app", "refuse"]
