"""Seeing: drawings and views of what a call saw, on tree and record only."""
