"""What every server here has: addresses, TLS, known clients, and the checks that all calls go through."""
