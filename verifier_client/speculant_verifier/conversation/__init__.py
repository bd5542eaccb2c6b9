"""Conversations: converts messages to token ids, and an answer's tokens to thoughts, content and calls."""
