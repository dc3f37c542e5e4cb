"""The working agent: plan, approve, code, run, answer (the room is laid out, not built)."""
