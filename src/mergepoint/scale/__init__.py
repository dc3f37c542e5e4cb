"""Many inputs and many machines (the room is laid out, not built)."""
