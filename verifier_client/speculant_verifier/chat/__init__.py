"""``speculant chat``: a conversation in the terminal, with a model here or with a server."""
