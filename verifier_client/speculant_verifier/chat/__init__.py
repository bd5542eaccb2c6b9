"""``speculant chat``: a conversation in the terminal."""
