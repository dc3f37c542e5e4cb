"""Talk and Talked: a whole conversation for one Thing, by a tree."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from mergepoint.tree.node import Node


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """Which tree is run, and for whom.

    `thing_id`, `stage_id` and `number` name the conversation as they name a call. It begins with
    `message`, None for nothing; `inputs` are those that the tree declares.
    """

    thing_id: str
    stage_id: str
    number: int
    tree: Node
    message: str | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Talked:
    """What a tree came to: its last response, blank for none; its outputs; its calls' ids."""

    text: str
    outputs: Mapping[str, Any]
    calls: tuple[str, ...]
    models: tuple[str, ...]


class Talker(Protocol):
    """Whoever can run a tree: the executor, or a fake."""

    async def __call__(self, talk: Talk, /) -> Talked:
        """Give what the tree came to.

        Raises Unfitting where a step's answer, or a limit of the tree's own, ended it.
        """
        ...
