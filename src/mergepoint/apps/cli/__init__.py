"""The command `mergepoint`: one module per command, and the modules that they share."""

from __future__ import annotations

from mergepoint.apps.cli.app import main

__all__ = ["main"]
