"""Faults that are put into the primitive on purpose, each with the law that it breaks."""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.mutate import Mutant


@dataclass(frozen=True)
class Planted(Mutant):
    """A fault, and the name of the law that it breaks."""

    law: str


def _planted(name: str, law: str, where: str, old: str, new: str) -> Planted:
    return Planted(name, f"mergepoint.aio.{where}", old, new, law)


PLANTED = (
    _planted(
        "it pulls before it is asked",
        "lazy",
        "map",
        "    intake = InputStream(items)\n",
        "    intake = InputStream(items)\n"
        "    import asyncio\n    asyncio.ensure_future(anext(items))\n",
    ),
    _planted(
        "the window counts calls in flight",
        "held",
        "map",
        "while self._held > self._limit:",
        "while sum(not call.done() for call in self._ready) >= self._limit:",
    ),
    _planted(
        "the window is wider by one",
        "held",
        "map",
        "while self._held > self._limit:",
        "while self._held > self._limit + 1:",
    ),
    _planted(
        "the input is read without a bound",
        "held",
        "map",
        "while self._held > self._limit:",
        "while not self._limit:",
    ),
    _planted(
        "a fan-out runs ahead without a bound",
        "held",
        "map",
        "while results and self._held >= self._limit and not self._ending:",
        "while results and not self._limit and not self._ending:",
    ),
    _planted(
        "a width of one runs ahead",
        "lazy",
        "map",
        "        if not self._strict:\n            self._room.ring()",
        "        self._room.ring()",
    ),
    _planted(
        "more calls than the width",
        "width",
        "map",
        "if self._running == self._settings.width:",
        "if self._running < 0:",
    ),
    _planted(
        "the order is lost",
        "order",
        "map",
        "self._ready.append(call)",
        "self._ready.appendleft(call)",
    ),
    _planted(
        "calls share a context",
        "context",
        "map",
        "context = self._context.copy()",
        "context = self._context",
    ),
    _planted(
        "calls one by one share a context",
        "context",
        "map",
        "    copy = copy_context().copy",
        "    copy = (lambda shared: lambda: shared)(copy_context().copy())",
    ),
    _planted(
        "the error of a source is swallowed",
        "results",
        "map",
        "            raise self._last\n        self._reader.result()\n",
        "            raise self._last\n        pass\n",
    ),
    _planted(
        "the error of a fan-out is swallowed",
        "unseen",
        "map",
        "                        result = task.result()\n",
        "                        result = None if fan is not None else task.result()\n",
    ),
    _planted(
        "calls begin after a failure",
        "begun",
        "map",
        "            if not _has_run(call):\n                call.cancel()",
        "            pass",
    ),
    _planted(
        "a call is left on cancellation",
        "alive",
        "map",
        "_stop_reader(calls, outlasts)\n",
        "_stop_reader([], outlasts)\n",
    ),
    _planted(
        "a second cancellation leaves what is there",
        "alive",
        "stream",
        "            cancelled = error\n",
        "            raise\n",
    ),
    _planted(
        "calls do not land",
        "land",
        "map",
        "if not (lands and _has_run(call)):",
        "if not (lands and call.done()):",
    ),
    _planted(
        "an input that goes on after its cancellation is read",
        "begun",
        "map",
        "                    if not self._limit:\n                        return\n",
        "",
    ),
    _planted(
        "an input is not closed after an error",
        "closed",
        "stream",
        "if close is not None:\n            await close()",
        "if close is not None and error is None:\n            await close()",
    ),
    _planted(
        "an input is closed by another task",
        "one task",
        "stream",
        "            await close()",
        "            await __import__('asyncio').create_task(close())",
    ),
    _planted(
        "what never began is not closed",
        "closed",
        "stream",
        "        await self._abandon()\n",
        "",
    ),
)
