"""llama.cpp: drafts for a ``Llama`` of llama-cpp-python, and lookup caches for ``llama-server``."""

from speculant_graph.engines.llama_cpp.drafts import SpeculantDraft, gguf_fingerprint

__all__ = ["SpeculantDraft", "gguf_fingerprint"]
