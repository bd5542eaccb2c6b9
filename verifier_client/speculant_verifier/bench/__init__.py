"""Benches of the verifier: what passes cost, and decoding against plain decoding and transformers' own speculation."""
