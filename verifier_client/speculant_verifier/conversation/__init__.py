"""Conversations: from messages to token ids, and from an answer's tokens to thoughts, content and calls."""
