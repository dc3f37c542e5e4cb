"""Streams of Things: lazy async streams through composable blocks (laid out, not built)."""
