"""Conversations: converts messages to token ids, and an answer's tokens to reasoning, content and tool calls."""
