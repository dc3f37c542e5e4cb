"""Machine: what the figures were made on."""

from __future__ import annotations

import os
import platform
from importlib.metadata import version

PACKAGES = ("mergepoint", "langgraph", "langchain-core", "pydantic")


def machine() -> dict[str, str]:
    """Return cores, memory, Python and the versions of what is measured."""
    told = {
        "cores": str(os.cpu_count()),
        "memory": _memory(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": f"{platform.python_implementation()} {platform.python_version()}",
    }
    return told | {package: version(package) for package in PACKAGES}


def _memory() -> str:
    try:
        size = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return "unknown"
    return f"{size / 2**30:.0f} GiB"
