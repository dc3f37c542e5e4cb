"""The chat command: a conversation with an agent, on a terminal or through a pipe."""
