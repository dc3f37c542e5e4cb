"""CodeJob: a piece of code, and what it may use."""

from __future__ import annotations

import keyword
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any

from mergepoint.agent.limits import Limits


@dataclass(frozen=True, slots=True, kw_only=True)
class CodeJob:
    """What is to be run.

    `code` is Python source. `files` are given to it read-only, under their relative names, in the
    folder that it starts in. `tools` are the only functions of yours that it can call: in the code
    they are plain functions of the same names, and what goes in and comes out is JSON data.

    Raises ValueError for a name that leaves the work folder or cannot be a function's.
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
