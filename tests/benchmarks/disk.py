"""Disk: where contenders keep what outlives the process, and how much they wrote there."""

from __future__ import annotations

import itertools
import shutil
import tempfile
from pathlib import Path
from weakref import finalize


class Disk:
    """A folder for one contender's runs; `clear` removes what earlier ones left."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="mergepoint-benchmark-"))
        self._numbers = itertools.count(1)
        self._last = self._folder
        finalize(self, shutil.rmtree, self._folder, ignore_errors=True)

    def fresh(self) -> tuple[str, Path]:
        """Return the id of the next run, and an empty folder for it."""
        run = f"run_{next(self._numbers)}"
        self._last = self._folder / run
        self._last.mkdir()
        return run, self._last

    def clear(self) -> None:
        """Remove what earlier runs left."""
        for old in self._folder.iterdir():
            shutil.rmtree(old)

    def written(self) -> int:
        """Return the bytes that the last run left."""
        return sum(file.stat().st_size for file in self._last.iterdir())
