"""Contender: one way of doing a piece of work, ready to be timed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from langchain_core.messages import BaseMessage
from tests.benchmarks.disk import Disk

Mode = Literal["sync", "async"]
Row = tuple[str, str, str, int]


@dataclass(frozen=True, slots=True)
class Ran:
    """What a run leaves: the conversation, the outputs, and its transcript.

    `transcript` gives (path, prompt, response, total tokens) for each call, when it is asked.
    """

    messages: Sequence[BaseMessage]
    outputs: Mapping[str, Any]
    transcript: Callable[[], list[Row]]


@dataclass(frozen=True, slots=True)
class Contender:
    """A letter for tables, and the work, sync and async; compiled or built beforehand.

    `disk` is where a contender leaves what it keeps of a run, for those that do.
    """

    letter: str
    run: Callable[[], Ran]
    arun: Callable[[], Awaitable[Ran]]
    disk: Disk | None = None
