"""A piece of code to run: its limits, its tools and their channel, its folder, and its result."""

from __future__ import annotations

import asyncio
import inspect
import json
import keyword
import math
import os
import shutil
import socket
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from selectors import EVENT_READ, EVENT_WRITE
from types import MappingProxyType
from typing import Any, Literal

from mergepoint.core.text import shown
from mergepoint.sandbox.bootstrap import MESSAGE

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one run of code, for all its processes together.

    `wall` and `cpu` are seconds, `memory`, `output` and `files` bytes, the others counts:
    `processes` counts threads too, `files` limits the size of the work folder and again that of the
    folder for temporary files, `file_count` the files and folders in them. The docstring of a
    backend says which limits it lacks.

    Raises ValueError for a limit that is not a positive, finite number.
    """

    wall: float = 30.0
    cpu: float = 20.0
    memory: int = 512 * MIB
    processes: int = 64
    output: int = 1_000_000
    files: int = 64 * MIB
    file_count: int = 1_000

    def __post_init__(self) -> None:
        for one in fields(self):
            value: Any = getattr(self, one.name)
            kinds = (int, float) if one.type == "float" else (int,)
            if isinstance(value, bool) or not isinstance(value, kinds):
                raise ValueError(f"limit {one.name}={value!r} is no {one.type}")
            if not (value > 0 and math.isfinite(value)):
                raise ValueError(f"limit {one.name}={value!r} is not above zero and finite")


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeJob:
    """A piece of code to run, with its files, tools and limits.

    `code` is Python source. `files` are read-only, under their relative names, in the folder where
    it starts. `tools` are the only functions outside that it can call: in the code they are plain
    functions with the same names, and arguments and results are JSON data.

    Raises ValueError for a name that leaves the work folder or is not a valid function name.
    """

    code: str
    files: Mapping[str, Path] = field(default_factory=dict)
    tools: Mapping[str, Callable[..., Any]] = field(default_factory=dict)
    limits: Limits = field(default_factory=Limits)

    def __post_init__(self) -> None:
        if not isinstance(self.code, str):
            raise ValueError(f"code is text, not {type(self.code).__name__}")
        for name in self.files:
            _check_file_name(name)
        for name in self.tools:
            if not name.isidentifier() or keyword.iskeyword(name) or name.startswith("__"):
                raise ValueError(f"tool {name!r} cannot be the name of a function")
        files = {name: Path(path) for name, path in self.files.items()}
        object.__setattr__(self, "files", MappingProxyType(files))
        object.__setattr__(self, "tools", MappingProxyType(dict(self.tools)))


def _check_file_name(name: str) -> None:
    parts = PurePosixPath(name).parts
    plain = name.isprintable() and "\\" not in name and str(PurePosixPath(name)) == name
    if not plain or not parts or name.startswith("/") or ".." in parts or name == ".":
        raise ValueError(
            f"file {name!r} is not a plain relative name, such as 'data.csv' or 'in/data.csv'"
        )


Stop = Literal["wall", "cpu", "memory", "processes", "output", "files", "cancelled"]
"""The reason to end a run from outside: the limit that it exceeded, or a cancellation."""

CpuCounted = Literal["cgroup", "supervisor"]
"""The method of counting CPU time: by the kernel in a cgroup, or by sampling."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that the code left in its work folder: its relative name, size in bytes, content."""

    name: str
    size: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool by the code. `error` is `Type: message` of its exception, or None."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any]
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    r"""The result of a run of code.

    Attributes:
        backend: The name of the backend.
        exit_code: 128 plus the signal's number for a run that died of a signal, as in a shell, or
            None if the run was stopped.
        output: stdout and stderr in order, with invisible characters escaped (`\x1b`).
        stopped: The limit that stopped the run, or None.
        truncated: Whether there was more output than the limit.
        seconds: Wall time.
        tool_calls: The calls of tools, in order.
        made: The output files.
        left_out: The output files that were not collected, each with the reason.
        stdout: The standard output; by default, `output`.
        stderr: The standard error.
        cpu_counted: How CPU time was counted, or None if the backend counts it itself or has no
            limit on it.
    """

    backend: str
    exit_code: int | None
    output: str
    stopped: Stop | None = None
    truncated: bool = False
    seconds: float = 0.0
    tool_calls: tuple[ToolCall, ...] = ()
    made: tuple[MadeFile, ...] = ()
    left_out: tuple[str, ...] = ()
    stdout: str = ""
    stderr: str = ""
    cpu_counted: CpuCounted | None = None

    def __post_init__(self) -> None:
        if not (self.stdout or self.stderr):
            object.__setattr__(self, "stdout", self.output)

    @property
    def ok(self) -> bool:
        """Return whether the code finished without an error."""
        return self.exit_code == 0 and self.stopped is None


MAX_CALLS = 1_000
"""The maximum number of tool calls per run."""
MAX_TRANSFER = 16_000_000
"""The maximum number of bytes on the channel per run."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool that the code requests."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class ToolChannel:
    """Our end of the channel. It never blocks, and reads nothing during a call."""

    def __init__(self, end: socket.socket, tools: Mapping[str, Callable[..., Any]]) -> None:
        end.setblocking(False)  # noqa: FBT003  (it takes no keyword)
        self.end = end
        self.calls: list[ToolCall] = []
        self._tools = tools
        self._received, self._outgoing = bytearray(), bytearray()
        self._in_call = False
        self._transferred = 0

    @property
    def events(self) -> int:
        """Return the selector's events to wait for, 0 if the channel is closed or idle."""
        if self.end.fileno() < 0:
            return 0
        return (EVENT_WRITE if self._outgoing else 0) | (0 if self._in_call else EVENT_READ)

    def move(self) -> ToolRequest | None:
        """Send and receive available data, and return a call once it is complete."""
        try:
            if self._outgoing:
                del self._outgoing[: self.end.send(self._outgoing)]
            if not self._in_call:
                came = self.end.recv(65536)  # the kernel closes descriptors that are sent with it
                if not came:
                    self.end.close()
                self._received += came
        except BlockingIOError:
            pass
        except OSError:
            self.end.close()
        return self._next()

    def answer(self, call: ToolCall) -> None:
        """Send the result of a call."""
        self.calls.append(call)
        self._send(reply(call))

    def _next(self) -> ToolRequest | None:
        if self._in_call:
            return None
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            if len(self._received) > MESSAGE:
                self.end.close()
            return None
        self._received = rest
        self._transferred += len(line)
        self._in_call = True
        try:
            if self._transferred > MAX_TRANSFER or len(self.calls) >= MAX_CALLS:
                raise RuntimeError(
                    f"at most {MAX_CALLS} calls and {MAX_TRANSFER} bytes are transferred"
                )
            return parse_request(bytes(line), self._tools)
        except (LookupError, ValueError, RuntimeError) as error:
            self._send(_refusal(error))
            return None

    def _send(self, message: bytes) -> None:
        self._transferred += len(message)
        self._in_call = False
        self._outgoing += message


def parse_request(line: bytes, tools: Mapping[str, Callable[..., Any]]) -> ToolRequest:
    """Return the requested call.

    Raises ValueError for invalid data, and LookupError for a tool that is not allowed.
    """
    try:
        given = json.loads(line)
        name, arguments, keywords = given["tool"], given["arguments"], given["keywords"]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError("not a call of a tool") from error
    if not (isinstance(name, str) and isinstance(arguments, list) and isinstance(keywords, dict)):
        raise ValueError("not a call of a tool")
    if name not in tools:
        raise LookupError(f"no tool {name[:80]!r}; known tools: {', '.join(tools) or 'none'}")
    return ToolRequest(name, tuple(arguments), keywords)


async def call_tool(call: ToolRequest, tool: Callable[..., Any]) -> ToolCall:
    """Call a tool, a plain function in a thread. Its exception becomes part of the result."""
    result, error = None, None
    try:
        result = await asyncio.to_thread(tool, *call.arguments, **call.keywords)
        # A coroutine function only creates its coroutine in the thread; it runs on this loop.
        if inspect.isawaitable(result):
            result = await result
        text = json.dumps(result)
        if len(text) >= MESSAGE:
            raise ValueError(
                f"{call.name}() gave {len(text)} bytes, at most {MESSAGE} go through: ask for less"
            )
        # The record shows what the code receives: a tuple, for example, arrives as a list.
        result = json.loads(text)
    # SystemExit too: raised in a task, it would end the event loop.
    except (Exception, SystemExit) as raised:  # noqa: BLE001  (reported to the code)
        result, error = None, f"{type(raised).__name__}: {_message(raised)}"[:10_000]
    return ToolCall(
        name=call.name,
        arguments=call.arguments,
        keywords=call.keywords,
        result=result,
        error=error,
    )


def reply(call: ToolCall) -> bytes:
    """Return the line with the result of a call."""
    if call.error is None:
        return json.dumps({"result": call.result}).encode() + b"\n"
    kind, _, message = call.error.partition(": ")
    return json.dumps({"error": kind, "message": message}).encode() + b"\n"


def _message(raised: BaseException) -> str:
    alone = raised.args[0] if len(raised.args) == 1 else None
    return alone if isinstance(alone, str) else str(raised)  # a KeyError would show the repr


def _refusal(error: Exception) -> bytes:
    return json.dumps({"error": type(error).__name__, "message": _message(error)}).encode() + b"\n"


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
