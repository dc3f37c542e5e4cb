"""Limits: how much a piece of code may use before it is stopped."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """How much one run of code may use, all its processes together.

    `wall` and `cpu` are seconds, `memory`, `output` and `files` bytes, the others counts:
    `processes` counts threads too, `files` is the size of the work folder and once more that of
    the folder for temporary files, `file_count` the files and folders in them. What a backend
    cannot limit is said in its docstring.

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
