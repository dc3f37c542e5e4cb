"""A piece of code to run: its limits, its tools, and its result."""

from __future__ import annotations

import keyword
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Literal

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
