"""The system calls that the code may not make, as a filter for the kernel.

The filter is a program of classic BPF as in the kernel's seccomp_filter.rst, written here to avoid
the dependency on libseccomp. It rejects calls that leave a namespace, need more of the kernel than
code should, hold memory that no process seems to have, or use up resources that all users of the
machine share (contexts of asynchronous I/O, instances of inotify).
"""

from __future__ import annotations

import platform
import struct
from collections.abc import Iterator
from errno import EAFNOSUPPORT, ENOSYS, EPERM

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
