"""The rules of the offline model: how it reads a conversation, and what it writes."""
