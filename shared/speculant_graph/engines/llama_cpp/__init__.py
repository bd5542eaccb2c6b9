"""llama.cpp: drafts for a ``Llama`` of llama-cpp-python, and a table of a graph for ``llama-server``."""

from speculant_graph.engines.llama_cpp.drafts import SpeculantDraft, gguf_fingerprint

__all__ = ["SpeculantDraft", "gguf_fingerprint"]
