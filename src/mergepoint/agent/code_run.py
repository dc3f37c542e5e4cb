"""CodeRun: what came of a piece of code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Stop = Literal["wall", "cpu", "memory", "processes", "output", "files", "cancelled"]
"""Why a run was ended from outside: the limit that it passed, or that nobody wants it anymore."""


@dataclass(frozen=True, slots=True)
class MadeFile:
    """A file that the code left in its work folder: its relative name, size in bytes, content."""

    name: str
    size: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call of a tool by the code. `error` is `Type: message` of what it raised, else None."""

    name: str
    arguments: tuple[Any, ...] = ()
    keywords: dict[str, Any]
    result: Any = None
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeRun:
    r"""What came of a piece of code.

    `output` is stdout and stderr as they came, in which what cannot be seen is written out
    (`\x1b`). `exit_code` is None where the run was ended from outside; a code that died of a
    signal has 128 + its number, as in a shell. `truncated` says that there was more output than
    is kept, `left_out` names made files that are not in `made`, each with the reason. `seconds`
    is wall time.
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

    @property
    def ok(self) -> bool:
        """Whether the code came to its end without an error."""
        return self.exit_code == 0 and self.stopped is None
