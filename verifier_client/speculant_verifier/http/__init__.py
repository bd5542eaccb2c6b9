"""The OpenAI-compatible API over HTTP: :func:`~speculant_verifier.http.app.create_app` makes the application."""
