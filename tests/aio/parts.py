"""Parts: sources, functions and the places between stages, all of them watched."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from tests.aio.laws import Laws, Told

OWNER: ContextVar[object] = ContextVar("owner", default="nobody")

Item = tuple[int, ...]
Waits = Sequence[float | None]


def wait_of(waits: Waits, item: Item) -> float | None:
    """Return how long an item takes: the same in every run, whatever comes before it."""
    return waits[sum(item) % len(waits)]


def now() -> float:
    """Return the simulated time."""
    return asyncio.get_running_loop().time()


async def pause(seconds: float | None) -> None:
    """Wait in simulated time; None is no wait at all, 0 a turn of the loop."""
    if seconds is not None:
        await asyncio.sleep(seconds)


@dataclass(frozen=True)
class Faults:
    """What goes wrong, at the item whose first number it is."""

    fails: int | None = None
    hangs: int | None = None
    interrupts: int | None = None
    closing: bool = False  # it raises as it is closed or cancelled
    stubborn: bool = False  # it takes a second to be closed or cancelled
    deaf: bool = False  # it swallows a cancellation, and goes on

    async def strike(self, item: Item, where: str) -> None:
        """Fail, hang or interrupt where it is time to."""
        if self.hangs == item[0]:
            await asyncio.Event().wait()
        if self.interrupts == item[0]:
            raise KeyboardInterrupt
        self.check(item, where)

    def check(self, item: Item, where: str) -> None:
        """Raise Told where the item is the one that fails."""
        if self.fails == item[0]:
            raise Told(f"{where} at {item[0]}")


@dataclass(eq=False)
class Watched:
    """A stream between two stages: who asks it, how much it gave, how often it was closed."""

    name: str
    inner: Any
    laws: Laws
    asked: int = 0
    asked_at: float = 0.0
    given: int = 0
    closed: int = 0
    over: bool = False  # it was closed, or raised, or came to its end
    on_given: list[Callable[[Any], None]] = field(default_factory=list)
    _task: object = None
    _asking: bool = False

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        self.laws.hold("closed", holds=not self.closed, told=f"{self.name} was asked when closed")
        self.laws.hold("one task", holds=not self._asking, told=f"{self.name} was asked twice")
        self._asking = True
        self.asked += 1
        self.asked_at = now()
        self._by_one_task()
        try:
            item = await self.inner.__anext__()
        except BaseException:
            self.over = True
            raise
        finally:
            self._asking = False
        self.given += 1
        for tell in self.on_given:
            tell(item)
        return item

    async def aclose(self) -> None:
        """Close the stream inside."""
        self.closed += 1
        self.over = True
        if self.asked:
            self._by_one_task()
        await self.inner.aclose()

    def forget(self) -> None:
        """Let go of the stream inside, which the loop is then to close."""
        self.closed += 1
        self.over = True
        self.inner = None
        self.laws.relax("one task")  # the loop closes it in a task of its own

    def _by_one_task(self) -> None:
        task = asyncio.current_task()
        self._task = self._task or task
        told = f"{self.name} is advanced and closed by two tasks"
        self.laws.hold("one task", holds=self._task is task, told=told)


@dataclass(eq=False)
class Source:
    """Items with faults."""

    items: Sequence[Item]
    faults: Faults
    waits: Waits
    opened: int = 0
    shut: int = 0

    async def stream(self) -> AsyncGenerator[Item, None]:
        """Yield the items."""
        self.opened += 1
        OWNER.set("source")  # no call must see it
        deaf = self.faults.deaf
        try:
            for item in self.items:
                try:
                    await pause(wait_of(self.waits, item))
                    await self.faults.strike(item, "source")
                except asyncio.CancelledError:
                    if not deaf:
                        raise
                    deaf = False
                yield item
        finally:
            self.shut += 1
            if self.faults.stubborn:
                await asyncio.sleep(1)
            if self.faults.closing:
                raise Told("closing")

    def expected(self) -> Iterator[Item]:
        """Yield the same without a loop."""
        for item in self.items:
            self.faults.check(item, "source")
            yield item


@dataclass(eq=False)
class Work:
    """A function, one result or many, that counts its calls and looks at their contexts."""

    name: str
    many: bool
    faults: Faults
    waits: Waits
    width: int
    ordered: bool
    laws: Laws
    arrived: list[Item] = field(default_factory=list)
    calls: Counter[str] = field(default_factory=Counter)
    on_made: list[Callable[[Any], None]] = field(default_factory=list)
    failed: Item | None = None

    @property
    def running(self) -> int:
        """Return how many calls are in flight."""
        return self.calls["begun"] - self.calls["over"]

    def function(self, *, disguised: bool) -> Callable[[Item], Any]:
        """Give it as a function; `disguised` as one that does not look async."""
        if self.many:
            return lambda item: self._many(item)
        return (lambda item: self._one(item)) if disguised else self._one

    def expected(self, item: Item) -> Iterator[Item]:
        """Yield the same results without a loop."""
        if not self.many:
            self.faults.check(item, self.name)
            yield (*item, 7)
            return
        for number in range(_results(item)):
            yield (*item, number)
        self.faults.check(item, self.name)

    async def _one(self, item: Item) -> Item:
        self._begin(item)
        try:
            await self._go_on(item)
            await self.faults.strike(item, self.name)
            return (*item, 7)
        except BaseException as error:
            await self._fail(item, error)
            raise
        finally:
            self.calls["over"] += 1

    async def _many(self, item: Item) -> AsyncGenerator[Item, None]:
        self._begin(item)
        try:
            for number in range(_results(item)):
                await self._go_on(item)
                self.calls["made"] += 1
                for tell in self.on_made:
                    tell(item)
                yield (*item, number)
            await self.faults.strike(item, self.name)
        except BaseException as error:
            if not isinstance(error, GeneratorExit):
                await self._fail(item, error)
            raise
        finally:
            self.calls["over"] += 1

    def _begin(self, item: Item) -> None:
        self.laws.hold("begun", holds=self._may_begin(item), told=f"{self.name} after a failure")
        self.calls["begun"] += 1
        told = f"{self.running} calls of {self.name} at once"
        self.laws.hold("width", holds=self.running <= self.width, told=told)
        self._own("taker")
        OWNER.set(item)

    async def _go_on(self, item: Item) -> None:
        await pause(wait_of(self.waits, item))
        self._own(item)

    def _own(self, owner: object) -> None:
        found = OWNER.get()
        told = f"{self.name} found {found} in the place of {owner}"
        self.laws.hold("context", holds=found == owner, told=told)

    def _may_begin(self, item: Item) -> bool:
        """Return whether nothing failed; in order, whether it failed only behind the item."""
        if self.failed is None:
            return True
        return self.ordered and self.arrived.index(item) < self.arrived.index(self.failed)

    async def _fail(self, item: Item, error: BaseException) -> None:
        if not isinstance(error, asyncio.CancelledError):
            self.failed = self.failed or item
            return
        self.calls["cancelled"] += 1
        if self.faults.stubborn:
            await asyncio.sleep(1)
        if self.faults.closing:
            raise Told("cleaning up")


def _results(item: Item) -> int:
    return (3 * sum(item) + 1) % 4
