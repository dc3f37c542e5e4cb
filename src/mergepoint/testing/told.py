"""Told: a prompt function that is a value, so that a test can see what it will say."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mergepoint.tree.context import PromptContext
from mergepoint.tree.template import Reads, as_text

Part = tuple[str, ...]

SAFE_PARTS = ("text", "read", "last", "count", "keys", "path", "draw", "spoil")
BROKEN_PARTS = ("raise", "none", "number")


class PromptFault(Exception):
    """What a prompt function of a random tree raises when it is told to."""


@dataclass(frozen=True)
class Told:
    """A prompt function that says its parts, with a space between them.

    Parts: `("text", words)`, `("read", key)`, `("last",)` the last message's text, `("count",)`
    how many messages there are, `("keys",)` the keys captured so far, `("path",)`, `("draw",)` a
    random number of the run, `("spoil",)` nothing, but it tries to change what it was given.
    With one of BROKEN_PARTS the prompt fails: it raises PromptFault, or is None, or a number.

    `defaults` makes reads optional. With `declared=False` nothing is known about its reads before
    the run. With `blocks=True` it gives content blocks in place of text.
    """

    parts: Sequence[Part]
    _: KW_ONLY
    defaults: Mapping[str, str] = field(default_factory=dict)
    declared: bool = True
    blocks: bool = False

    @property
    def __mergepoint_reads__(self) -> Reads | None:  # what the decorator `reads` would write
        if not self.declared:
            return None
        keys = [part[1] for part in self.parts if part[0] == "read"]
        return Reads(tuple(dict.fromkeys(keys)), self.defaults)

    def __call__(self, ctx: PromptContext) -> Any:
        """Give the prompt. Raises PromptFault when one of the parts says so."""
        kinds = {part[0] for part in self.parts}
        if "raise" in kinds:
            raise PromptFault("told to fail")
        if "none" in kinds:
            return None
        if "number" in kinds:
            return 7
        pieces = [_SAYS[part[0]](ctx, part) for part in self.parts]
        text = " ".join(piece for piece in pieces if piece)
        return [{"type": "text", "text": text}] if self.blocks else text


def _last(ctx: PromptContext) -> str:
    return str(ctx.messages[-1].text) if ctx.messages else "nothing"


def _spoil(ctx: PromptContext) -> str:
    for message in ctx.messages:
        message.content = "spoiled"
        message.id = "spoiled"
    for value in [*ctx.inputs.values(), *ctx.outputs.values()]:
        if isinstance(value, list):
            value.append("spoiled")
    return ""


_SAYS: Mapping[str, Callable[[PromptContext, Part], str]] = {
    "text": lambda ctx, part: part[1],
    "read": lambda ctx, part: as_text(ctx.read(part[1])),
    "last": lambda ctx, part: _last(ctx),
    "count": lambda ctx, part: str(len(ctx.messages)),
    "keys": lambda ctx, part: ",".join(sorted(ctx.outputs)),
    "path": lambda ctx, part: ctx.path,
    "draw": lambda ctx, part: str(ctx.rng.randrange(1_000_000)),
    "spoil": lambda ctx, part: _spoil(ctx),
}
