"""Run the campaigns: `python -m tests.crash calls|gates|recipe [--kills 200] ...`."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("LANGGRAPH_STRICT_MSGPACK", "true")
    from tests.crash.command import main

    sys.exit(main())
