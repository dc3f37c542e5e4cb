"""Attacks: what code of a model could try, each as it is written.

`@CANARY@`, `@FOLDER@` and `@PORT@` stand for a secret, a folder of the machine that holds it in
`secret.txt`, and a port of the machine on which somebody answers.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from mergepoint.sandbox.job import MIB, Limits, Stop

SMALL = Limits(
    wall=10, cpu=3, memory=64 * MIB, processes=16, output=20_000, files=4 * MIB, file_count=100
)
"""Limits under which an attack is tried first."""

FILLS = "what it fills or uses up is the machine's, in a namespace as well"


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """An attack, what it does where nothing stops it, and how it is stopped.

    `code` prints REACHED when it has what it wants. `before` and `after` are put around it in a
    throw-away namespace only, `root` makes it root there; `unsafe` says why it is not tried there
    at all. `told` is a pattern of what it prints in the sandbox, `stopped` the limit that ends it.
    """

    name: str
    code: str
    before: str = ""
    after: str = ""
    root: bool = False
    files: dict[str, str] = field(default_factory=dict)
    unsafe: str | None = None
    told: str = ""
    stopped: Stop | None = None
    limits: Limits = SMALL


_CALLS = """
import ctypes, os, platform
libc = ctypes.CDLL(None, use_errno=True)
def checked(got):
    if got == -1:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return got
"""
_HERE = "import os\nos.chdir('/dev/shm')\n"
_ANSWERING = """
import socket, threading
def answer(kind, address):
    server = socket.socket(*kind)
    server.bind(address)
    if kind[1] == socket.SOCK_STREAM:
        server.listen()
        def tell():
            server.accept()[0].sendall(b"@CANARY@")
        threading.Thread(target=tell, daemon=True).start()
    else:
        def reply():
            data, sender = server.recvfrom(4096)
            server.sendto(respond(data), sender)
        threading.Thread(target=reply, daemon=True).start()
def respond(data):
    return b"@CANARY@"
"""
_DNS = (
    _ANSWERING
    + """
def respond(query):
    name = query[12:query.index(0, 12) + 5]
    head = query[:2] + bytes([0x81, 0x80, 0, 1, 0, 1, 0, 0, 0, 0])
    if name[-3:-2] != bytes([1]):
        return head[:7] + bytes([0]) + head[8:] + name
    return head + name + bytes([0xC0, 12, 0, 1, 0, 1, 0, 0, 0, 9, 0, 4, 127, 0, 0, 9])
server = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
server.bind(("127.0.0.1", 53))
def serve():
    while True:
        data, sender = server.recvfrom(4096)
        server.sendto(respond(data), sender)
threading.Thread(target=serve, daemon=True).start()
"""
)
_DAEMON = """
import os, socket, sys, time
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        held = socket.socket(socket.AF_UNIX)
        held.bind("\\0daemon of @CANARY@")
        held.listen()
        os.set_inheritable(held.fileno(), True)
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(60) # @CANARY@"])
    os._exit(0)
os.wait()
time.sleep(0.3)
print("left alone")
"""

SEEN: tuple[Attack, ...] = (
    Attack(
        name="environment",
        code="""
import os
seen = " ".join(os.environ.values()).encode()
for process in os.listdir("/proc"):
    try:
        seen += open(f"/proc/{process}/environ", "rb").read()
    except OSError:
        pass
print("REACHED" if b"@CANARY@" in seen else "nothing found")
""",
        told="nothing found",
    ),
    Attack(
        name="a file of the machine",
        code="print('REACHED' if '@CANARY@' in open('@FOLDER@/secret.txt').read() else '')",
        told="No such file or directory",
    ),
    Attack(
        name="accounts",
        code="print('REACHED' if 'root' in open('/etc/passwd').read() else '')",
        told="No such file or directory",
    ),
    Attack(
        name="other processes",
        code="""
import os
seen = b""
for process in os.listdir("/proc"):
    try:
        seen += open(f"/proc/{process}/cmdline", "rb").read()
    except OSError:
        pass
print("REACHED" if b"victim of " + b"@CANARY@" in seen else "nothing found")
""",
        told="nothing found",
    ),
    Attack(
        name="memory of the first process",
        code="""
with open("/proc/1/environ", "rb") as first:
    print("REACHED" if b"@CANARY@" in first.read() else "nothing found")
""",
        root=True,
        told="nothing found",
    ),
    Attack(
        name="settings of the kernel",
        code="""
import os
found = []
for folder, folders, files in os.walk("/proc"):
    folders[:] = [one for one in folders if not one.isdigit() and "self" not in one]
    for file in files:
        try:
            os.close(os.open(f"{folder}/{file}", os.O_WRONLY))
            found.append(f"{folder}/{file}")
        except OSError:
            pass
print(f"REACHED {found}" if found else "nothing can be written")
""",
        root=True,
        told="nothing can be written",
    ),
    Attack(
        name="TCP",
        code="""
import socket
with socket.create_connection(("127.0.0.1", @PORT@), timeout=3) as connection:
    print("REACHED" if connection.recv(99) == b"@CANARY@" else "")
""",
        before=_ANSWERING + "answer((socket.AF_INET, socket.SOCK_STREAM), ('127.0.0.1', @PORT@))\n",
        told="Address family not supported",
    ),
    Attack(
        name="UDP",
        code="""
import socket
asking = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
asking.settimeout(3)
asking.sendto(b"?", ("127.0.0.1", @PORT@))
print("REACHED" if asking.recv(99) == b"@CANARY@" else "")
""",
        before=_ANSWERING + "answer((socket.AF_INET, socket.SOCK_DGRAM), ('127.0.0.1', @PORT@))\n",
        told="Address family not supported",
    ),
    Attack(
        name="DNS",
        code="""
import socket
print("REACHED", socket.gethostbyname("canary.example.org"))
""",
        before=_DNS,
        root=True,
        files={"/etc/resolv.conf": "nameserver 127.0.0.1\noptions timeout:20 attempts:3\n"},
        told="name resolution|Name or service not known",
    ),
    Attack(
        name="abstract sockets",
        code="""
import socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("\\0@CANARY@")
    print("REACHED" if connection.recv(99) == b"@CANARY@" else "")
""",
        before=_ANSWERING + "answer((socket.AF_UNIX, socket.SOCK_STREAM), '\\0@CANARY@')\n",
        told="Connection refused",
    ),
    Attack(
        name="sockets in the file system",
        code="""
import socket
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("@FOLDER@/socket")
    print("REACHED" if connection.recv(99) == b"@CANARY@" else "")
""",
        told="No such file or directory",
    ),
    Attack(
        name="sockets of other families",
        code="""
import socket
for family in (socket.AF_NETLINK, socket.AF_INET6, socket.AF_VSOCK, socket.AF_ALG):
    try:
        raw = family == socket.AF_NETLINK
        socket.socket(family, socket.SOCK_RAW if raw else socket.SOCK_STREAM)
        print("REACHED", family)
    except OSError as error:
        print(error)
""",
        told="Address family not supported",
    ),
    Attack(
        name="signals",
        code="""
import os, signal
for process in [os.getppid(), *range(2, 300)]:
    if process not in (os.getpid(), 0, 1):
        try:
            os.kill(process, signal.SIGKILL)
        except OSError:
            pass
os.kill(1, signal.SIGKILL)
print("sent")
""",
        before="import subprocess\nvictim = subprocess.Popen(['/usr/bin/sleep', '60'])\n",
        after="print('REACHED' if victim.wait(timeout=10) == -9 else '')\n",
        told="sent",
    ),
    Attack(
        name="daemons",
        code=_DAEMON,
        after="""
with socket.socket(socket.AF_UNIX) as connection:
    connection.connect("\\0daemon of @CANARY@")
print("REACHED")
""",
        told="left alone",
    ),
    Attack(
        name="nested namespaces",
        code=_CALLS + "checked(libc.unshare(0x10000000))\nprint('REACHED')\n",
        told="Operation not permitted",
    ),
    Attack(
        name="nested namespaces by clone",
        code=_CALLS
        + """
number = {"x86_64": 56, "aarch64": 220}[platform.machine()]
child = checked(libc.syscall(number, 0x10000000 | 17, 0, 0, 0, 0))
if child == 0:
    os._exit(0)
os.waitpid(child, 0)
print("REACHED")
""",
        told="Operation not permitted",
    ),
    Attack(
        name="mounts",
        code=_CALLS
        + "checked(libc.mount(b'none', b'/tmp', b'tmpfs', 0, None))\nprint('REACHED')\n",
        root=True,
        told="Operation not permitted",
    ),
    Attack(
        name="mounts made writable",
        code=_CALLS + "checked(libc.mount(b'none', b'/dev', None, 0x20, None))\nprint('REACHED')\n",
        root=True,
        told="Operation not permitted",
    ),
    Attack(
        name="ptrace",
        code=_CALLS
        + """
import signal, time
child = os.fork()
if child == 0:
    time.sleep(30)
    os._exit(0)
try:
    checked(libc.ptrace(16, child, None, None))  # PTRACE_ATTACH
    print("REACHED")
finally:
    os.kill(child, signal.SIGKILL)
""",
        told="Operation not permitted",
    ),
    Attack(
        name="setuid",
        code="import os\nos.setuid(0)\nprint('REACHED')",
        root=True,
        told="Invalid argument|Operation not permitted",
    ),
    Attack(
        name="devices",
        code="open('/dev/made', 'w').write('x')\nprint('REACHED')",
        told="Read-only file system|Permission denied",
    ),
    Attack(
        name="keyrings",
        code=_CALLS
        + """
number = {"x86_64": 250, "aarch64": 219}[platform.machine()]
checked(libc.syscall(number, 0, -3, 0))  # KEYCTL_GET_KEYRING_ID of the session
print("REACHED")
""",
        told="Operation not permitted",
    ),
    Attack(
        name="memory without a process: memfd",
        code="import os\nos.memfd_create('hidden')\nprint('REACHED')",
        told="Operation not permitted",
    ),
    Attack(
        name="memory without a process: System V",
        code=_CALLS + "checked(libc.shmget(0, 4096, 0o1600))\nprint('REACHED')\n",
        told="Operation not permitted",
    ),
    Attack(
        name="memory without a process: shared mappings",
        code="import mmap\nmmap.mmap(-1, 4096)\nprint('REACHED')",
        told="Operation not permitted",
    ),
    Attack(
        name="contexts of asynchronous input and output",
        code=_CALLS
        + """
number = {"x86_64": 206, "aarch64": 0}[platform.machine()]
context = ctypes.c_ulong(0)
checked(libc.syscall(number, 64, ctypes.byref(context)))
print("REACHED")
""",
        told="Operation not permitted",
    ),
    Attack(
        name="instances of inotify",
        code=_CALLS + "checked(libc.inotify_init1(0))\nprint('REACHED')\n",
        told="Operation not permitted",
    ),
    Attack(
        name="a larger pipe",
        code="""
import fcntl, os
fcntl.fcntl(os.pipe()[1], 1031, 1 << 20)  # F_SETPIPE_SZ
print("REACHED")
""",
        told="Operation not permitted",
    ),
    Attack(
        name="links out of the work folder",
        code="""
import os
os.symlink("@FOLDER@/secret.txt", "link")
os.symlink("@FOLDER@", "folder")
os.symlink("/", "root")
print("REACHED" if "@CANARY@" in open("link").read() else "")
""",
        before=_HERE,
        told="No such file or directory",
    ),
    Attack(
        name="data that is given",
        code="open('given.txt', 'w').write('changed')\nprint('REACHED')",
        before=_HERE + "open('given.txt', 'w').write('given')\n",
        told="Read-only file system|Permission denied",
    ),
    Attack(
        name="a file of a terabyte",
        code="open('large', 'w').truncate(1 << 40)\nprint('REACHED')",
        before=_HERE,
        told="File too large",
    ),
    Attack(
        name="a terminal",
        code="""
import fcntl, os, termios
main, side = os.openpty()
os.setsid() if os.getpid() != os.getsid(0) else None
fcntl.ioctl(side, termios.TIOCSCTTY, 0)
print("REACHED")
""",
        before="import os\nif os.fork():\n    os.wait()\n    raise SystemExit\n",
        told="No such file or directory|out of pty devices",
    ),
)
"""Attacks that are shown to succeed in a throw-away namespace, and to fail in the sandbox."""

UNSHOWN: tuple[Attack, ...] = (
    Attack(
        name="files of the system",
        code="open('/usr/made', 'w').write('x')\nprint('REACHED')",
        unsafe="it would write into the machine's own files",
        told="Read-only file system|Permission denied",
    ),
    Attack(
        name="a fork bomb",
        code="""
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
""",
        unsafe=FILLS,
        stopped="processes",
    ),
    Attack(
        name="threads without end",
        code="""
import threading, time
while True:
    threading.Thread(target=time.sleep, args=(60,)).start()
""",
        unsafe=FILLS,
        stopped="processes",
        limits=Limits(wall=10, processes=16),  # each has a stack of 8 MB, for which it asks
    ),
    Attack(
        name="many processes with a little memory each",
        code="""
import os, time
for _ in range(10):
    if os.fork() == 0:
        held = bytearray(20 << 20)
        time.sleep(60)
time.sleep(60)
""",
        unsafe=FILLS,
        stopped="memory",
    ),
    Attack(
        name="memory in sockets",
        code="""
import os, socket, time
for _ in range(6):
    if os.fork() == 0:
        held = [socket.socketpair() for _ in range(100)]
        for one, _ in held:
            one.setblocking(False)
            try:
                while True:
                    one.send(b"x" * 65536)
            except BlockingIOError:
                pass
        time.sleep(60)
time.sleep(60)
""",
        unsafe=FILLS,
        stopped="memory",
    ),
    Attack(
        name="10 GB",
        code="held = bytearray(10 << 30)\nprint('REACHED')",
        unsafe=FILLS,
        told="MemoryError",
    ),
    Attack(
        name="memory bit by bit",
        code="held = []\nwhile True:\n    held.append(bytearray(100_000))",
        unsafe=FILLS,
        told=r"(?s)held\.append.*MemoryError",
    ),
    Attack(
        name="recursion without end",
        code="import sys\nsys.setrecursionlimit(10**9)\ndef f():\n    f()\nf()",
        unsafe=FILLS,
        told="MemoryError|SystemError|^$",  # interpreters die of it in ways of their own
        limits=replace(SMALL, wall=60, cpu=30),
    ),
    Attack(
        name="endless output",
        code="while True:\n    print('y' * 99)",
        unsafe=FILLS,
        stopped="output",
    ),
    Attack(
        name="one line without end",
        code="import sys\nwhile True:\n    sys.stdout.write('y' * 65536)",
        unsafe=FILLS,
        stopped="output",
    ),
    Attack(
        name="a full folder for temporary files",
        code="""
for n in range(1000):
    with open(f"/tmp/{n}", "wb") as file:
        file.write(bytes(1 << 20))
print("REACHED")
""",
        unsafe=FILLS,
        told="No space left on device",
    ),
    Attack(
        name="a full work folder",
        code="""
for n in range(1000):
    with open(f"{n}", "wb") as file:
        file.write(bytes(1 << 20))
print("REACHED")
""",
        unsafe=FILLS,
        told="No space left on device",
    ),
    Attack(
        name="files without end",
        code="n = 0\nwhile True:\n    open(str(n), 'w').close()\n    n += 1",
        unsafe=FILLS,
        stopped="files",
    ),
    Attack(
        name="folders in folders without end",
        code="import os\nwhile True:\n    os.mkdir('d')\n    os.chdir('d')",
        unsafe=FILLS,
        stopped="files",
    ),
    Attack(
        name="a loop without end",
        code="""
import signal
for one in range(1, 32):
    if one not in (signal.SIGKILL, signal.SIGSTOP):
        signal.signal(one, signal.SIG_IGN)
while True:
    pass
""",
        unsafe=FILLS,
        stopped="cpu",
        limits=Limits(wall=30, cpu=0.3),
    ),
    Attack(
        name="processes that share the work",
        code="import os\nos.fork()\nos.fork()\nwhile True:\n    pass",
        unsafe=FILLS,
        stopped="cpu",
        limits=Limits(wall=30, cpu=1),
    ),
    Attack(
        name="children that nobody waits for",
        code="""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        while time.process_time() < 0.1:
            pass
        os._exit(0)
    time.sleep(0.15)
""",
        unsafe=FILLS,
        stopped="cpu",
        limits=Limits(wall=60, cpu=1),
    ),
    Attack(
        name="children too short to be seen",
        code="""
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
while True:
    if os.fork() == 0:
        while time.process_time() < 0.004:
            pass
        os._exit(0)
    time.sleep(0.005)
""",
        unsafe=FILLS,
        stopped="cpu",
        limits=Limits(wall=60, cpu=1),
    ),
    Attack(
        name="locks without end",
        code="""
import fcntl, time
file = open("locked", "w+b")
for at in range(0, 10_000_000, 2):
    fcntl.lockf(file, fcntl.LOCK_EX, 1, at)
print("REACHED")
""",
        unsafe=FILLS,
        stopped="files",
        limits=Limits(wall=40, cpu=20),
    ),
    Attack(
        name="memory in pipes",
        code="""
import os, time
for _ in range(12):
    if os.fork() == 0:
        held = [os.pipe() for _ in range(100)]
        for _, end in held:
            os.set_blocking(end, False)
            try:
                while True:
                    os.write(end, b"x" * 65536)
            except BlockingIOError:
                pass
        time.sleep(60)
time.sleep(60)
""",
        unsafe=FILLS,
        stopped="memory",
    ),
    Attack(
        name="sleeping for ever",
        code="import os, signal\nprint('good night')\nos.kill(os.getpid(), signal.SIGSTOP)",
        unsafe=FILLS,
        told="good night",
        stopped="wall",
        limits=Limits(wall=2.5),
    ),
    Attack(
        name="an output that is closed",
        code="import os, time\nos.closerange(0, 256)\ntime.sleep(60)",
        unsafe=FILLS,
        stopped="wall",
        limits=Limits(wall=2.5),
    ),
)
"""Attacks that are tried in the sandbox alone, and first under small limits."""

_MANY = """
import os, time
for _ in range(20):
    if os.fork() == 0:
        held = bytearray(300 << 20)
        for at in range(0, len(held), 4096):
            held[at] = 1
        time.sleep(60)
time.sleep(60)
"""
_FULL = {
    "a fork bomb": Limits(),
    "memory in sockets": Limits(memory=128 * MIB),
    "memory bit by bit": Limits(),
    "endless output": Limits(),
    "a full folder for temporary files": Limits(),
    "a full work folder": Limits(),
    "files without end": Limits(),
}
FULL: tuple[Attack, ...] = (
    *(replace(one, limits=_FULL[one.name]) for one in UNSHOWN if one.name in _FULL),
    Attack(name="20 x 300 MB", code=_MANY, unsafe=FILLS, stopped="memory", limits=Limits()),
)
"""Attacks in their full size, under the limits that a user has who sets none."""
