"""The session commands: sessions seen, exported, checked and repaired."""
