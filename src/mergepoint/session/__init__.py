"""Sessions: conversation turns apart from working artifacts (the room is laid out, not built)."""
