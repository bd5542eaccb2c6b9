"""Drafts for the engines that people already run: vLLM and llama.cpp; an example for SGLang is in ``examples``.

What all of them need is here once (``factory``, ``engine_sessions``, ``rows``); an adapter brings the rows of an engine
to it and its drafts back, and is the only file that imports the engine.
"""
