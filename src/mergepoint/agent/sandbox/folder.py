"""Folder: a work folder on this machine's disk, for what brings none of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from mergepoint.agent.code_job import CodeJob
from mergepoint.agent.sandbox.made_files import Made, made_files


@contextmanager
def work_folder(job: CodeJob) -> Iterator[Path]:
    """Give a new folder with copies of a job's files, which is removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mergepoint-", ignore_cleanup_errors=True) as made:
        folder = Path(made).resolve()
        for name, path in job.files.items():
            into = folder / name
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, into)
        yield folder


def made_in(folder: Path, job: CodeJob) -> Made:
    """Give what a job's code left in its folder."""
    opened = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        limits = job.limits
        return made_files(opened, set(job.files), most=limits.files, count=limits.file_count)
    finally:
        os.close(opened)
