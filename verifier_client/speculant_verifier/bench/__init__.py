"""Benchmarks of the verifier: the cost of passes, and speed compared with plain decoding and transformers."""
