"""Code that all servers share: addresses, TLS, known clients, and the checks of all calls."""
