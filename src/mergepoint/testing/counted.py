"""Counted: a Call's function that is a value, so that a test can see what it will give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

from mergepoint.testing.seen import ToldToFail, digest, spoil
from mergepoint.tree.context import CallContext
from mergepoint.tree.template import Reads

SAFE_RESULTS = ("seen", "count", "list", "map", "flag", "read", "draw", "spoil", "ask")
BROKEN_RESULTS = ("raise", "odd", "blank")


@dataclass(frozen=True)
class Counted:
    """A function that gives plain data of what it sees.

    `gives`: "seen" a text, "count" how many messages there are, "list" and "map" more of it,
    "flag" a bool, "read" what stands under its `keys`, "next" one more than what stands under
    `counter` (from 1 on), "draw" a random number of the run, "spoil" a text, but it tries to change
    what it was given, "ask" what the run's model answers to two questions, the second about the
    first answer. With arguments it gives those and what it saw. With one of BROKEN_RESULTS
    it fails: it raises ToldToFail, or gives what is no plain data, or nothing.

    `defaults` makes reads optional. With `declared=False` nothing is known about its reads before
    the run. With `late=True` it is async.
    """

    gives: str
    _: KW_ONLY
    keys: Sequence[str] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)
    counter: str = ""
    declared: bool = True
    late: bool = False

    @property
    def __mergepoint_reads__(self) -> Reads | None:  # what the decorator `reads` would write
        if not self.declared:
            return None
        if self.counter:
            return Reads((self.counter,), {self.counter: 0})
        return Reads(tuple(dict.fromkeys((*self.keys, *self.defaults))), self.defaults)

    def __call__(self, ctx: CallContext, **given: Any) -> Any:
        """Give the result. Raises ToldToFail when it is told to."""
        return self._later(ctx, given) if self.late else self._result(ctx, given)

    async def _later(self, ctx: CallContext, given: Mapping[str, Any]) -> Any:
        if self.gives != "ask":
            return self._result(ctx, given)
        model = ctx.model()
        first = await model.ainvoke(_FIRST)
        second = await model.ainvoke(_SECOND.format(first.text))
        return self._told([str(first.text), str(second.text)], given)

    def _result(self, ctx: CallContext, given: Mapping[str, Any]) -> Any:
        return self._told(_GIVES[self.gives](self, ctx), given)

    def _told(self, found: Any, given: Mapping[str, Any]) -> Any:
        if not given:
            return found
        told = {"given": dict(given), "found": found}
        if self.gives == "spoil":
            told["given"] = {name: str(value) for name, value in given.items()}
            spoil((), given.values())
        return told


def _seen(ctx: CallContext) -> str:
    return digest(ctx.path, ctx.messages, ctx.outputs)


def _fail(function: Counted, ctx: CallContext) -> Any:
    raise ToldToFail("the function was told to fail")


def _next(function: Counted, ctx: CallContext) -> int:
    value = ctx.read(function.counter)
    return value + 1 if isinstance(value, int) else 1


_FIRST = "First?"
_SECOND = "And after {}?"


def _asked(function: Counted, ctx: CallContext) -> list[str]:
    model = ctx.model()
    first = model.invoke(_FIRST)
    return [str(first.text), str(model.invoke(_SECOND.format(first.text)).text)]


def _spoilt(function: Counted, ctx: CallContext) -> str:
    seen = _seen(ctx)
    spoil(ctx.messages, [*ctx.inputs.values(), *ctx.outputs.values()])
    return f"spoiled {seen}"


_GIVES: Mapping[str, Callable[[Counted, CallContext], Any]] = {
    "seen": lambda function, ctx: f"seen {_seen(ctx)}",
    "count": lambda function, ctx: len(ctx.messages),
    "list": lambda function, ctx: [len(ctx.messages), _seen(ctx), sorted(ctx.outputs)],
    "map": lambda function, ctx: {"seen": _seen(ctx), "deep": [{"ä": ctx.path}]},
    "flag": lambda function, ctx: int(_seen(ctx), 16) % 2 == 0,
    "read": lambda function, ctx: [
        _seen(ctx),
        *(ctx.read(key) for key in (*function.keys, *function.defaults)),
    ],
    "next": _next,
    "draw": lambda function, ctx: str(ctx.rng.randrange(1_000_000)),
    "spoil": _spoilt,
    "ask": _asked,
    "raise": _fail,
    "odd": lambda function, ctx: {"a set": {1}},
    "blank": lambda function, ctx: None,
}
