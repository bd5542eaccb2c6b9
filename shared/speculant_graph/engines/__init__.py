"""Drafts for the engines that people already run: vLLM, llama.cpp, SGLang.

What all of them need is here once (``opening``, ``sessions``, ``price``); an adapter brings
the rows of an engine to it and its drafts back, and is the only file that imports the engine.
"""
