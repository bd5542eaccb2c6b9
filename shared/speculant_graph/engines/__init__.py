"""Drafts for existing engines: vLLM and llama.cpp; an example for SGLang is in ``examples``.

All adapters share ``factory``, ``engine_sessions`` and ``rows``. An adapter passes the engine's rows to these modules
and returns the drafts. Only the adapter imports the engine.
"""
