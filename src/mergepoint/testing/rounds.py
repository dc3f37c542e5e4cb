"""Rounds: an `until` that is a value, so that a test can see when it will hold."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from mergepoint.testing.seen import ToldToFail, digest
from mergepoint.tree.context import PromptContext

COUNTED = ("messages", "key", "whim")
BROKEN_COUNTS = ("raise", "number")


@dataclass(frozen=True)
class Rounds:
    """Holds by what a loop sees after an iteration, and by nothing else.

    `of="messages"`: once there are `count` messages; "key": once the number under `key` is
    `count`; "whim": in one of `count` cases, decided by all that is there. With one of
    BROKEN_COUNTS it raises ToldToFail, or gives a number in place of a bool.
    """

    count: int
    _: KW_ONLY
    of: str = "messages"
    key: str = ""

    def __call__(self, ctx: PromptContext) -> Any:
        """Say whether the loop may end. Raises ToldToFail when it is told to."""
        if self.of == "raise":
            raise ToldToFail("until was told to fail")
        if self.of == "number":
            return 1
        if self.of == "whim":
            return int(digest(ctx.path, ctx.messages, ctx.outputs), 16) % self.count == 0
        if self.of == "messages":
            return len(ctx.messages) >= self.count
        value = ctx.outputs.get(self.key)
        return isinstance(value, int) and value >= self.count
