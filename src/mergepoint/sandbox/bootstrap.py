"""The program that prepares the confined process, and provides the code's tools.

The sandboxed interpreter receives this file as text. It may be older than ours, and sees nothing of
this package. So only the standard library is imported, and as little of it as possible: an import
costs milliseconds of each run.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from typing import Any

MESSAGE = 1_000_000
"""The maximum size of a message to or from a tool, in bytes."""

SPARE = 16 << 20
"""Memory that is reserved for reporting that memory is exhausted, in bytes."""

PROC, WORK, TEMPORARY = FOLDERS = ("/proc", "/work", "/tmp")  # noqa: S108  (of a namespace)
"""The folders by which a confined process is monitored."""


class CodeLoader:
    """A loader that provides the lines of the code for tracebacks, since it is in no file."""

    def __init__(self, text: str) -> None:
        self.text = text

    def get_source(self, _name: str) -> str:
        """Return the whole code."""
        return self.text


def hand_out(line: int, folders: Sequence[str]) -> None:
    """Report that the process is ready, with folders by which it can be monitored."""
    # The C module, because importing `socket` takes milliseconds.
    import _socket

    opened = [os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC) for folder in folders]
    packed = b"".join(one.to_bytes(4, sys.byteorder) for one in opened)
    out = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM, 0, line)
    rights = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, packed)] if folders else []
    out.sendmsg([b"ready\n"], rights)
    out.detach()
    for one in opened:
        os.close(one)


def limit(cpu: int, memory: int, tasks: int, files: int) -> None:
    """Set the limits of the kernel per process; tasks (0: no limit) for the namespace."""
    import resource

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: cpu,
        resource.RLIMIT_DATA: memory,
        resource.RLIMIT_AS: 4 * memory + (4 << 30),  # threads reserve more than they use
        resource.RLIMIT_FSIZE: files,
        resource.RLIMIT_NOFILE: 256,
        resource.RLIMIT_MEMLOCK: 0,
        resource.RLIMIT_MSGQUEUE: 0,
        resource.RLIMIT_SIGPENDING: 256,
    }
    if tasks:
        bounds[resource.RLIMIT_NPROC] = tasks
    for which, most in bounds.items():
        hard = resource.getrlimit(which)[1]
        bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
        # The soft limit is lower, so that `run` can raise it to report that memory is exhausted.
        spare = min(SPARE, bound // 4) if which == resource.RLIMIT_DATA else 0
        resource.setrlimit(which, (bound - spare, bound))
    os.nice(5)  # so that the supervisor gets time
    with open("/proc/self/oom_score_adj", "w") as first:  # noqa: PTH123  (pathlib is slow to load)
        first.write("1000")


def functions(names: Sequence[str], line: int) -> dict[str, Callable[..., Any]]:
    """Return a function for each tool, which sends the call outside and waits."""
    import _thread

    first, turn, rest = os.getpid(), _thread.allocate_lock(), bytearray()

    def ask(name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        import json

        # A forked child would mix its messages with its parent's on the same channel.
        if os.getpid() != first:
            raise RuntimeError(f"{name}() can be called by the first process only")
        asked = json.dumps({"tool": name, "arguments": arguments, "keywords": keywords}).encode()
        if len(asked) >= MESSAGE:
            raise ValueError(f"{name}() was given {len(asked)} bytes, at most {MESSAGE} go through")
        # One call at a time: threads share the channel, and answers have no numbers.
        with turn:
            asked += b"\n"
            while asked:
                asked = asked[os.write(line, asked) :]
            while b"\n" not in rest:
                piece = os.read(line, 65536)
                if not piece:
                    raise ConnectionError(f"{name}() is not answered anymore")
                rest.extend(piece)
            answer, _, more = bytes(rest).partition(b"\n")
            rest[:] = more
        said = json.loads(answer)
        if "error" in said:
            raise error(said["error"], said["message"])
        return said["result"]

    def function(name: str) -> Callable[..., Any]:
        def tool(*arguments: Any, **keywords: Any) -> Any:
            return ask(name, arguments, keywords)

        tool.__name__ = tool.__qualname__ = name
        return tool

    return {name: function(name) for name in names}


def error(kind: str, message: str) -> Exception:
    """Return an exception for a tool's error: of its type if that is built in."""
    import builtins

    found = getattr(builtins, kind, None)
    if isinstance(found, type) and issubclass(found, Exception):
        try:
            return found(message)
        except TypeError:  # its constructor needs other arguments
            pass
    return RuntimeError(f"{kind}: {message}")


def run(code: str, given: Mapping[str, Any]) -> int:
    """Run the code as the main module, and return the exit status."""
    main = type(sys)("__main__")
    main.__dict__.update(given, __file__="code.py", __loader__=CodeLoader(code))
    sys.modules["__main__"] = main
    sys.argv = ["code.py"]
    sys.path.insert(0, os.getcwd())  # noqa: PTH109  (the same)
    compiled = None
    try:
        compiled = compile(code, "code.py", "exec", dont_inherit=True)
        exec(compiled, main.__dict__)  # noqa: S102  (this is the purpose of the sandbox)
    except Exception as failed:  # noqa: BLE001  (reported with the lines of the code only)
        import resource

        most = resource.getrlimit(resource.RLIMIT_DATA)[1]
        resource.setrlimit(resource.RLIMIT_DATA, (most, most))
        import traceback  # imported late to save memory

        trace = failed.__traceback__
        trace = trace.tb_next if trace and compiled else None
        traceback.print_exception(type(failed), failed, trace, limit=-1000)  # of millions
        return 1
    return 0


def start(job: int, line: int, *, confined: bool) -> int:
    """Read the job, prepare the process, and run the code."""
    os.lseek(job, 0, os.SEEK_SET)
    with open(job, encoding="utf-8", newline="") as text:
        limits = [int(one) for one in text.readline().split()]
        names = text.readline().split()
        code = text.read()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")  # type: ignore[union-attr]
    hand_out(line, FOLDERS if confined else ())
    if confined:
        limit(*limits)
    # Programs that the code starts must not reach the tools.
    os.set_inheritable(line, False)  # noqa: FBT003  (it takes no keyword)
    return run(code, functions(names, line) if names else {})


if __name__ == "__main__":
    _status = start(int(sys.argv[1]), int(sys.argv[2]), confined=sys.argv[3] == "confined")
    if _status:
        sys.exit(_status)
