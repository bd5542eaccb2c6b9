"""What every server here has: addresses, TLS, clients that are known, and a gate that all calls go through."""
