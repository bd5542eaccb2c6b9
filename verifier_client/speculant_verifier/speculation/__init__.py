"""What makes speculation pay: what the target has said before, and how much to draft."""
