"""Bubblewrap: runs code in its own namespaces, without a network, behind a system call filter.

See docs/concepts/sandbox-security.md for the attacks that it stops, and those that it does not.
"""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import stat
import struct
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from errno import EAFNOSUPPORT, ENOSYS, EPERM
from pathlib import Path
from typing import TYPE_CHECKING

from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox.bootstrap import TEMPORARY, WORK
from mergepoint.sandbox.job import CodeJob, CodeRun, Limits
from mergepoint.sandbox.process import Backend, OnOutput, SandboxProcess, follow, start, supervised
from mergepoint.sandbox.resource_usage import new_cgroup
from mergepoint.sandbox.workdir import CollectedFiles, collect_files

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


REFUSED: dict[str, tuple[int, int | None]] = {
    "acct": (163, 89),
    "add_key": (248, 217),
    "adjtimex": (159, 171),
    "bpf": (321, 280),
    "chroot": (161, 51),
    "clock_adjtime": (305, 266),
    "clock_settime": (227, 112),
    "delete_module": (176, 106),
    "fanotify_init": (300, 262),
    "finit_module": (313, 273),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "init_module": (175, 105),
    "inotify_init": (253, None),
    "inotify_init1": (294, 26),
    "io_cancel": (210, 3),
    "io_destroy": (207, 1),
    "io_getevents": (208, 4),
    "io_pgetevents": (333, 292),
    "io_setup": (206, 0),
    "io_submit": (209, 2),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioperm": (173, None),
    "iopl": (172, None),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "lookup_dcookie": (212, 18),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "modify_ldt": (154, None),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mq_open": (240, 180),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "name_to_handle_at": (303, 264),
    "nfsservctl": (180, 42),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "perf_event_open": (298, 241),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "process_madvise": (440, 440),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "reboot": (169, 142),
    "remap_file_pages": (216, 234),
    "request_key": (249, 218),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "setdomainname": (171, 162),
    "sethostname": (170, 161),
    "setns": (308, 268),
    "settimeofday": (164, 170),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmdt": (67, 197),
    "shmget": (29, 194),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "syslog": (103, 116),
    "umount2": (166, 39),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "uselib": (134, None),
    "ustat": (136, None),
    "vhangup": (153, 58),
    "vmsplice": (278, 75),
    "sysfs": (139, None),
    "_sysctl": (156, None),
}
"""The names of rejected calls, with their numbers on x86_64 and aarch64."""

_CLONE, _CLONE3 = (56, 220), (435, 435)
_AF_UNIX = 1  # the value on Linux; Windows lacks the name
_IOCTL, _MMAP, _SOCKET, _SOCKETPAIR = (16, 29), (9, 222), (41, 198), (53, 199)
_FCNTL, _SETSOCKOPT = (72, 25), (54, 208)
_LATEST = 450  # newer calls are rejected as by a kernel without them
_X32 = 0x40000000  # a second set of numbers on x86_64

_MACHINES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}

_NEW_NAMESPACE = 0x7E020000  # CLONE_NEW*: user, pid, net, ipc, uts, mount, cgroup
_TO_TERMINALS = (0x5412, 0x541C)  # TIOCSTI, TIOCLINUX
_LARGER_BUFFERS = (7, 32)  # SO_SNDBUF, SO_SNDBUFFORCE
_LARGER_PIPE = (1031,)  # F_SETPIPE_SZ
_SHARED, _ANONYMOUS, _HUGE = 0x01, 0x20, 0x40000

_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _ERROR, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_NUMBER, _MACHINE = 0, 4  # their offsets in struct seccomp_data

_Line = tuple[int, int, int, int]


def system_call_filter() -> bytes | None:
    """Return the filter for this machine's processor, or None if its numbers are not known."""
    if platform.machine() not in _MACHINES:
        return None
    column, machine = _MACHINES[platform.machine()]
    return b"".join(struct.pack("=HBBI", *line) for line in _lines(column, machine))


def _lines(column: int, machine: int) -> Iterator[_Line]:
    # Numbers mean other calls on another architecture: a program for that is killed.
    yield (_LOAD, 0, 0, _MACHINE)
    yield (_EQUAL, 1, 0, machine)
    yield (_RETURN, 0, 0, _KILL)
    yield (_LOAD, 0, 0, _NUMBER)
    yield from _if(_AT_LEAST, _X32, error=ENOSYS)
    yield from _if(_AT_LEAST, _LATEST + 1, error=ENOSYS)
    yield from _if(_EQUAL, _CLONE3[column], error=ENOSYS)  # a filter cannot read its flags
    for numbers in REFUSED.values():
        number = numbers[column]
        if number is not None:
            yield from _if(_EQUAL, number, error=EPERM)
    yield from _when(_CLONE[column], 0, *_if(_ANY_BIT, _NEW_NAMESPACE, error=EPERM))
    for call in (_SOCKET, _SOCKETPAIR):
        unix = ((_EQUAL, 1, 0, _AF_UNIX), (_RETURN, 0, 0, _ERROR | EAFNOSUPPORT))
        yield from _when(call[column], 0, *unix)
    for call, argument, values in (
        (_IOCTL, 1, _TO_TERMINALS),
        (_SETSOCKOPT, 2, _LARGER_BUFFERS),
        (_FCNTL, 1, _LARGER_PIPE),
    ):
        refused = (line for value in values for line in _if(_EQUAL, value, error=EPERM))
        yield from _when(call[column], argument, *refused)
    # Shared anonymous memory can outlive its mapping, so that no process counts it.
    unseen = (
        *_if(_ANY_BIT, _HUGE, error=EPERM),
        (_AND, 0, 0, _SHARED | _ANONYMOUS),
        *_if(_EQUAL, _SHARED | _ANONYMOUS, error=EPERM),
    )
    yield from _when(_MMAP[column], 3, *unseen)
    yield (_RETURN, 0, 0, _ALLOW)


def _if(test: int, value: int, *, error: int) -> tuple[_Line, _Line]:
    return (test, 0, 1, value), (_RETURN, 0, 0, _ERROR | error)


def _when(number: int, argument: int, *lines: _Line) -> Iterator[_Line]:
    """Yield a check of the lower half of an argument of one call; calls that pass are allowed."""
    yield (_EQUAL, 0, len(lines) + 2, number)
    yield (_LOAD, 0, 0, 16 + 8 * argument)
    yield from lines
    yield (_RETURN, 0, 0, _ALLOW)


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
        readable: Absolute paths that the code may read, for another interpreter. It may always read
        /usr.
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
        yield from _environment_options()
        yield from _system_mounts(self.readable)
        yield from _kernel_mounts()
        yield from _folder_mounts(job.limits)
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


def _environment_options() -> Iterator[str]:
    for name, value in _ENVIRONMENT.items():
        yield from ("--setenv", name, value)


def _system_mounts(readable: Sequence[Path]) -> Iterator[str]:
    """Yield the mounts of readable parts of the system."""
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
    """Yield the mounts of /proc and /dev."""
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


def _folder_mounts(limits: Limits) -> Iterator[str]:
    """Yield the mounts of writable folders. Each takes memory, up to its size."""
    for folder in (WORK, TEMPORARY):
        yield from ("--size", str(limits.files), "--perms", "0700", "--tmpfs", folder)


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
