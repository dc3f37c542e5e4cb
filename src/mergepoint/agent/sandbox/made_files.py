"""Made files: what the code left in its work folder, taken out of it with care."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Set
from dataclasses import dataclass, field

from mergepoint.agent.code_run import MadeFile
from mergepoint.report.lettering import shown

DEEPEST = 16
"""Folders in folders are followed so far."""
_TOLD = 20

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC


@dataclass(frozen=True, slots=True)
class Made:
    """The files, and of those that were not taken the names with the reason."""

    files: tuple[MadeFile, ...] = ()
    left_out: tuple[str, ...] = ()


def made_files(folder: int, given: Set[str], *, most: int, count: int) -> Made:
    """Give the files below a folder (a descriptor), but those that the code was given.

    Links are not followed and nothing but plain files is read: `most` bytes of them all together
    and `count` files.
    """
    found = _Found(given, most, count)
    found.look(folder, "", DEEPEST)
    return found.made


@dataclass(slots=True)
class _Found:
    given: Set[str]
    most: int
    count: int
    files: list[MadeFile] = field(default_factory=list)
    told: list[str] = field(default_factory=list)
    silent: int = 0

    @property
    def made(self) -> Made:
        more = (f"{self.silent} more",) if self.silent else ()
        return Made(tuple(self.files), (*self.told, *more))

    def look(self, folder: int, above: str, depth: int) -> None:
        for entry in _entries(folder):
            name = f"{above}{entry}"
            if name in self.given:
                continue
            reason = self._take(folder, entry, name, depth)
            if reason and len(self.told) < _TOLD:
                self.told.append(f"{shown(name)[:200]}: {reason}")
            elif reason:
                self.silent += 1

    def _take(self, folder: int, entry: str, name: str, depth: int) -> str | None:
        try:
            kind = os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode
            if stat.S_ISDIR(kind):
                return self._enter(folder, entry, name, depth)
            if not stat.S_ISREG(kind):
                return "a symbolic link" if stat.S_ISLNK(kind) else "not a plain file"
            if shown(name) != name:
                return "a name with characters that cannot be seen"
            return self._read(os.open(entry, _FILE, dir_fd=folder), name)
        except OSError as error:
            return error.strerror or type(error).__name__

    def _enter(self, folder: int, entry: str, name: str, depth: int) -> str | None:
        if depth == 0:
            return f"more than {DEEPEST} folders deep"
        inner = os.open(entry, _FOLDER, dir_fd=folder)
        try:
            self.look(inner, f"{name}/", depth - 1)
        finally:
            os.close(inner)
        return None

    def _read(self, file: int, name: str) -> str | None:
        with open(file, "rb") as opened:
            size = os.fstat(file).st_size
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return "not a plain file"
            if len(self.files) >= self.count:
                return f"more than {self.count} files"
            if size > self.most:
                return f"{size} bytes, more than may be left"
            data = opened.read(size + 1)
        if len(data) > size:
            return "it grew"
        self.most -= len(data)
        self.files.append(MadeFile(name, len(data), data))
        return None


def _entries(folder: int) -> Iterator[str]:
    yield from sorted(os.listdir(folder))
