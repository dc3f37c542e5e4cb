"""Searches that are asked what to try next and told what came of it, one way a file."""
