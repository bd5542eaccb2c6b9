"""OpenAI's Responses API: its requests become chats, and chats' answers become its items and events."""
