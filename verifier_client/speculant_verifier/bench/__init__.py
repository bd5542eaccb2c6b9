"""Benchmarks of the verifier: cost of forward passes, and speed versus plain decoding and transformers."""
