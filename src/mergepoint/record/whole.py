"""Whole: a file that is written whole or not at all."""

from __future__ import annotations

import os
import threading
from pathlib import Path


def write_whole(path: Path, data: bytes, *, flush: bool = True) -> Path:
    """Write a file beside its place, flush it, and let it take the place at once; give the path.

    What can be worked out again need not be flushed. Raises OSError, and leaves what was there,
    where it cannot be written.
    """
    part = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}.part")
    try:
        with part.open("wb") as file:
            file.write(data)
            if flush:
                file.flush()
                os.fsync(file.fileno())
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if flush:
        flush_folder(path.parent)
    return path


def flush_folder(folder: Path) -> None:
    """Flush a folder, so that the names in it outlive a loss of power."""
    file = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(file)
    finally:
        os.close(file)
