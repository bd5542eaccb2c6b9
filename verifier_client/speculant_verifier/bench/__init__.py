"""Benches of the verifier: the cost of passes, and decoding against plain decoding and transformers."""
