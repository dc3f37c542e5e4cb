"""Bubblewrap: runs code in namespaces of its own, without a network and with limits.

See docs/concepts/sandbox-security.md for the attacks that it stops, and those that it does not.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox.bootstrap import TEMPORARY, WORK
from mergepoint.sandbox.job import CodeJob, CodeRun, CollectedFiles, Limits, collect_files
from mergepoint.sandbox.process import Backend, OnOutput, SandboxProcess, follow, start, supervised
from mergepoint.sandbox.resource_usage import new_cgroup
from mergepoint.sandbox.seccomp import system_call_filter

NOBODY = 65534
"""The user that runs the sandbox if we are root: bwrap as root leaves holes in /proc."""

_PYTHONS = (Path("/usr/bin/python3"), Path("/usr/local/bin/python3"))
_NAMESPACES = (
    *("--unshare-all", "--unshare-user", "--disable-userns", "--die-with-parent"),
    *("--new-session", "--cap-drop", "ALL", "--uid", "1000", "--gid", "1000"),
    *("--hostname", "sandbox", "--clearenv"),
)
_ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "HOME": TEMPORARY,
    "TMPDIR": TEMPORARY,
    "LANG": "C.UTF-8",
    "MALLOC_ARENA_MAX": "2",
    "OMP_NUM_THREADS": "2",
    "OPENBLAS_NUM_THREADS": "2",
}
_DEVICES = ("null", "full", "random", "urandom")  # without zero: mapped, it is hidden memory
_HIDDEN = ("cmdline", "key-users", "keys", "sched_debug")  # files that reveal the host
_CHECK = """
import os
facts = dict(line.split(":", 1) for line in open("/proc/self/status"))
assert os.getuid() == 1000 and int(facts["CapEff"], 16) == int(facts["CapBnd"], 16) == 0
assert facts["NoNewPrivs"].strip() == "1" and facts["Seccomp"].strip() == "2"
first = open("/proc/1/environ", "rb").read()
assert not first, first[:20]
assert dict(line.split(":", 1) for line in open("/proc/1/status"))["Seccomp"].strip() == "2"
try:
    open("/proc/sys/kernel/core_pattern", "r+")
except OSError:
    print("confined")
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bubblewrap:
    """Runs code with `bwrap`, a system program that creates namespaces without being root.

    Args:
        python: The interpreter; by default one of the system.
        readable: Absolute paths that the code may read, for another interpreter. It may always
            read /usr.
        cgroup: Whether to count CPU time in a cgroup of the run, if one can be created;
            `CodeRun.cpu_counted` shows the method that was used.
    """

    python: Path | None = None
    readable: Sequence[Path] = field(default=())
    cgroup: bool = True

    @property
    def name(self) -> str:
        """Return the name that each run records."""
        return "bubblewrap"

    def probe(self) -> None:
        """Run a self-test. Raises SandboxMissing if the code is not confined."""
        job = CodeJob(code=_CHECK, limits=Limits(wall=10, cpu=5))
        run = follow(job, self._backend(job), tell=lambda _: None)
        if run.output != "confined\n" or not run.ok:
            raise SandboxMissing(f"its sandbox is not tight: {run.stopped or run.output[-500:]}")

    async def run(self, job: CodeJob, *, on_output: OnOutput | None = None) -> CodeRun:
        """Run a job.

        Raises SandboxMissing if bwrap cannot run it, OSError and ValueError for its files.
        """
        return await supervised(job, self._backend(job), on_output=on_output)

    def _backend(self, job: CodeJob) -> Backend:
        def collect(started: SandboxProcess) -> CollectedFiles:
            _, work, _ = started.folders
            limits = job.limits
            given = set(job.files)
            return collect_files(work, given, most=limits.files, count=limits.file_count)

        return Backend(self.name, self._start, collect)

    def _start(self, job: CodeJob) -> SandboxProcess:
        if sys.platform != "linux":
            raise SandboxMissing(f"bubblewrap needs Linux, and this is {sys.platform}")
        bwrap, filter_ = shutil.which("bwrap"), system_call_filter()
        if bwrap is None:
            raise SandboxMissing("bwrap is not installed")
        if filter_ is None:
            raise SandboxMissing(f"it has no list of system calls for {platform.machine()}")
        with contextlib.ExitStack() as opened:
            rules = opened.enter_context(tempfile.TemporaryFile())
            rules.write(filter_)
            rules.seek(0)
            hear, tell = os.pipe()
            for end in (hear, tell):
                opened.callback(os.close, end)
            given = _file_mounts(job, opened)
            descriptors = ("--seccomp", str(rules.fileno()), "--info-fd", str(tell))
            begin = (*_as_nobody(), bwrap, *_NAMESPACES, *descriptors, *self._mounts(job, given))
            python = str(self._interpreter())
            return start(
                job,
                lambda rest: [*begin, "--chdir", WORK, "--", python, *rest],
                confined=True,
                keep=(rules.fileno(), tell, *(int(what) for _, how, what in given if how == _COPY)),
                info=hear,
                group=new_cgroup() if self.cgroup else None,
                env={},  # bwrap's own stays readable in /proc/1/environ despite --clearenv
                cwd="/",
            )

    def _mounts(self, job: CodeJob, given: Sequence[tuple[str, str, str]]) -> Iterator[str]:
        for name, value in _ENVIRONMENT.items():
            yield from ("--setenv", name, value)
        yield from _system_mounts(self.readable)
        yield from _kernel_mounts()
        # Writable folders take memory, up to their size.
        for folder in (WORK, TEMPORARY):
            size = str(job.limits.files)
            yield from ("--size", size, "--perms", "0700", "--tmpfs", folder)
        for name, how, what in given:
            yield from (how, what, f"{WORK}/{name}")
        # Last, because every mount before it creates its mount point below the root.
        yield from ("--remount-ro", "/")

    def _interpreter(self) -> Path:
        for python in (self.python,) if self.python else _PYTHONS:
            if python.exists():
                return python
        tried = ", ".join(map(str, (self.python,) if self.python else _PYTHONS))
        raise SandboxMissing(f"there is no interpreter that it could see: {tried}")


def _as_nobody() -> tuple[str, ...]:
    """Return the prefix of the command that switches to nobody, if we are root.

    A program does it, since Python would have to copy this process to do so.
    """
    if os.geteuid() != 0:
        return ()
    setpriv = shutil.which("setpriv")
    if setpriv is None:
        raise SandboxMissing("setpriv (of util-linux) is not installed, and bwrap must not be root")
    return (setpriv, f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--")


def _system_mounts(readable: Sequence[Path]) -> Iterator[str]:
    yield from ("--ro-bind", "/usr", "/usr")
    for link in ("/bin", "/lib", "/lib32", "/lib64", "/sbin"):
        if Path(link).is_symlink():
            yield from ("--symlink", str(Path(link).readlink()), link)
        elif Path(link).is_dir():
            yield from ("--ro-bind", link, link)
    for name in ("/etc/alternatives", "/etc/ld.so.cache"):
        if Path(name).exists():
            yield from ("--ro-bind", name, name)
    for path in readable:
        yield from ("--ro-bind", str(path), str(path))


def _kernel_mounts() -> Iterator[str]:
    yield from ("--proc", "/proc")
    for name in ("/proc/sys", "/proc/pressure"):
        if Path(name).exists():
            yield from ("--ro-bind", name, name)
    for name in _HIDDEN:
        if Path("/proc", name).exists():
            yield from ("--ro-bind", "/dev/null", f"/proc/{name}")
    for name in _DEVICES:
        yield from ("--dev-bind", f"/dev/{name}", f"/dev/{name}")
    yield from ("--symlink", "/proc/self/fd", "/dev/fd")
    # Shared memory is part of the temporary folder, whose size is limited.
    yield from ("--symlink", TEMPORARY, "/dev/shm")  # noqa: S108  (of a namespace)


_COPY, _BIND = "--ro-bind-data", "--ro-bind"


def _file_mounts(job: CodeJob, opened: contextlib.ExitStack) -> list[tuple[str, str, str]]:
    """Return name, mode and source of each file for the code.

    A file that only root can read is copied, since the mounting process is not root.
    """
    given, room = [], job.limits.files
    for name, path in job.files.items():
        real = path.resolve(strict=True)
        file = opened.enter_context(real.open("rb"))
        size = os.fstat(file.fileno()).st_size
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise ValueError(f"file {name!r}: {real} is not a plain file")
        if os.geteuid() != 0 or _is_world_readable(real):
            given.append((name, _BIND, str(real)))
            continue
        room -= size
        if room < 0:
            raise ValueError(
                f"file {name!r}: {real} can be read by root only, and is too large for a copy "
                f"({size} bytes; all copies may have {job.limits.files}): make it readable"
            )
        given.append((name, _COPY, str(file.fileno())))
    return given


def _is_world_readable(path: Path) -> bool:
    enter = all(folder.stat().st_mode & stat.S_IXOTH for folder in path.parents)
    return enter and bool(path.stat().st_mode & stat.S_IROTH)
