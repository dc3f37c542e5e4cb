"""The command `mergepoint`. One command a file; what they share stands beside them."""

from __future__ import annotations

from mergepoint.apps.cli.app import main

__all__ = ["main"]
