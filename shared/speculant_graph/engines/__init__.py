"""Adapters that draft for existing engines: vLLM and llama.cpp; an example for SGLang is in ``examples``.

All adapters share ``factory``, ``engine_sessions`` and ``rows``. An adapter passes the rows of the engine's batch to
the shared modules, and returns the drafts to the engine. Only the adapter modules import the engine.
"""
