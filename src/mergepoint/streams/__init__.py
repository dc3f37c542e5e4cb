"""Streams of Things: lazy async streams through blocks that are composed by name."""
