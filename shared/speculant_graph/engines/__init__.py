"""Drafts for existing engines: vLLM and llama.cpp; an example for SGLang is in ``examples``.

All adapters share ``factory``, ``engine_sessions`` and ``rows``. An adapter passes the rows of an engine to this code
and returns its drafts. Only the adapter imports the engine.
"""
