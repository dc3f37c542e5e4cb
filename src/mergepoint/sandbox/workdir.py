"""The working folder: files for the code, and the files that it leaves."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections.abc import Iterator, Set
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from mergepoint.core.text import shown
from mergepoint.sandbox.job import CodeJob, MadeFile

DEEPEST = 16
"""The maximum depth of folders."""
_MAX_REASONS = 20


def _flags(*names: str) -> int:
    """Return flags for reading; Windows has few of them, and O_BINARY instead."""
    flags = os.O_RDONLY
    for name in ("O_BINARY", "O_CLOEXEC", "O_NOFOLLOW", *names):
        flags |= getattr(os, name, 0)
    return flags


_FOLDER = _flags("O_DIRECTORY")
# O_NONBLOCK, because opening a FIFO would otherwise wait for a writer.
_FILE = _flags("O_NONBLOCK")


@dataclass(frozen=True, slots=True)
class CollectedFiles:
    """The collected files, and the names of skipped ones with the reason."""

    files: tuple[MadeFile, ...] = ()
    left_out: tuple[str, ...] = ()


def collect_files(folder: int | Path, given: Set[str], *, most: int, count: int) -> CollectedFiles:
    """Return the files below a folder, except those that the code was given.

    The folder is a descriptor, so that it cannot be replaced; or a path on systems without files
    below descriptors, such as Windows. Links are not followed, and only plain files are read:
    `most` bytes and `count` files in all.
    """
    found = _FileCollector(given, most, count)
    found.look(folder, "", DEEPEST)
    return found.made


@dataclass(slots=True)
class _FileCollector:
    given: Set[str]
    most: int
    count: int
    files: list[MadeFile] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    unlisted: int = 0

    @property
    def made(self) -> CollectedFiles:
        more = (f"{self.unlisted} more",) if self.unlisted else ()
        return CollectedFiles(tuple(self.files), (*self.reasons, *more))

    def look(self, folder: int | Path, above: str, depth: int) -> None:
        for entry in sorted(os.listdir(folder)):  # noqa: PTH208  (it may be a descriptor)
            name = f"{above}{entry}"
            if name in self.given:
                continue
            reason = self._take(folder, entry, name, depth)
            if reason and len(self.reasons) < _MAX_REASONS:
                self.reasons.append(f"{shown(name)[:200]}: {reason}")
            elif reason:
                self.unlisted += 1

    def _take(self, folder: int | Path, entry: str, name: str, depth: int) -> str | None:
        try:
            kind = _mode_of(folder, entry)
            if stat.S_ISDIR(kind):
                return self._enter(folder, entry, name, depth)
            if not stat.S_ISREG(kind):
                return "a symbolic link" if stat.S_ISLNK(kind) else "not a plain file"
            if shown(name) != name:
                return "a name with characters that cannot be seen"
            return self._read(_open_file(folder, entry), name)
        except OSError as error:
            return error.strerror or type(error).__name__

    def _enter(self, folder: int | Path, entry: str, name: str, depth: int) -> str | None:
        if depth == 0:
            return f"more than {DEEPEST} folders deep"
        if isinstance(folder, Path):
            self.look(folder / entry, f"{name}/", depth - 1)
            return None
        inner = os.open(entry, _FOLDER, dir_fd=folder)
        try:
            self.look(inner, f"{name}/", depth - 1)
        finally:
            os.close(inner)
        return None

    def _read(self, file: int, name: str) -> str | None:
        with open(file, "rb") as opened:
            # Checked again: an unconfined process may have replaced the file meanwhile.
            size = os.fstat(file).st_size
            if not stat.S_ISREG(os.fstat(file).st_mode):
                return "not a plain file"
            if len(self.files) >= self.count:
                return f"more than {self.count} files"
            if size > self.most:
                return f"{size} bytes, more than may be left"
            # One byte more shows whether the file has grown.
            data = opened.read(size + 1)
        if len(data) > size:
            return "it grew"
        self.most -= len(data)
        self.files.append(MadeFile(name, len(data), data))
        return None


def _mode_of(folder: int | Path, entry: str) -> int:
    if isinstance(folder, Path):
        return (folder / entry).lstat().st_mode
    return os.stat(entry, dir_fd=folder, follow_symlinks=False).st_mode


def _open_file(folder: int | Path, entry: str) -> int:
    if isinstance(folder, Path):
        return os.open(folder / entry, _FILE)
    return os.open(entry, _FILE, dir_fd=folder)


@contextmanager
def work_folder(job: CodeJob) -> Iterator[Path]:
    """Yield a new folder with copies of a job's files, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="mergepoint-", ignore_cleanup_errors=True) as made:
        folder = Path(made).resolve()
        for name, path in job.files.items():
            into = folder / name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into)
        yield folder


def collect_outputs(folder: Path, job: CodeJob) -> CollectedFiles:
    """Return the files that a job's code left in its folder."""
    given, limits = set(job.files), job.limits
    if os.open not in os.supports_dir_fd:
        return collect_files(folder, given, most=limits.files, count=limits.file_count)
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return collect_files(opened, given, most=limits.files, count=limits.file_count)
    finally:
        os.close(opened)
