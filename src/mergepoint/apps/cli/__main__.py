"""Make `python -m mergepoint.apps.cli` the same as `mergepoint`."""

from __future__ import annotations

from mergepoint.apps.cli.app import main

if __name__ == "__main__":
    main()
