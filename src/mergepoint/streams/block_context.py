"""The context of a stage: everything that a block can use while it runs."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
import re
from collections import Counter
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import AbstractContextManager, aclosing, nullcontext
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, Self, TypeVar, overload
from weakref import WeakKeyDictionary

from pydantic import BaseModel

from mergepoint.aio.map import mapped
from mergepoint.aio.stream import Stream, from_iterable
from mergepoint.core.errors import BlockError, RailError, RecipeError
from mergepoint.core.frozen_json import freeze
from mergepoint.journal.call_records import now
from mergepoint.journal.recipe_records import Lineage, StageCount
from mergepoint.journal.writer import call_and_flush
from mergepoint.streams.conditions import failed
from mergepoint.streams.model_calls import (
    Check,
    InvalidAnswer,
    ModelAnswer,
    ModelClient,
    ModelRequest,
    TreeRequest,
    TreeResult,
    TreeRunner,
)
from mergepoint.streams.provenance import Vocabulary, group_of, regrouped, vocabulary
from mergepoint.streams.thing import Thing, child, joined, stamp
from mergepoint.tree.leaves import Content
from mergepoint.tree.nodes import Node

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class IsolatedItem:
    """An item that passes through nested stages in isolation, with ids of its own.

    Ids take the form `best.stage_2.vote@3#0`, `#1`, and so on. They don't depend on how many items
    are in progress concurrently.
    """

    id: str
    _made: dict[str, Iterator[int]] = field(default_factory=dict)

    def numbers(self, stage_id: str) -> Iterator[int]:
        """Return the counter of a stage, which continues across rounds."""
        return self._made.setdefault(stage_id, itertools.count())


MOST: Final = 1024


@dataclass(slots=True)
class StageItem:
    """Record of a Thing at one stage: when it was pulled, and the calls for what was made of it.

    `pulled` is None for a Thing that isn't an item of the stage. Calls are known by Thing and
    sample, and answers by Thing and by number, sample, and part of a tree's run.
    """

    pulled: float | None = None
    numbers: dict[tuple[str, int], int] = field(default_factory=dict)
    attempts: dict[tuple[str, int], int] = field(default_factory=dict)
    answers: dict[str, dict[tuple[int, int, int], ModelAnswer]] = field(default_factory=dict)

    def place(
        self, thing: Thing, sample: int, stage_id: str, *, again: bool = False
    ) -> tuple[int, int]:
        """Return the number of a call and how many attempts it has had.

        With `again`, return the latest call if its answer was refused; otherwise the next call.
        """
        place = (thing.id, sample)
        if again and place in self.attempts:
            return self.numbers[place] - 1, self.attempts[place]
        number = self.numbers.get(place)
        if number is None:
            # A resumed or second round must not reuse call numbers that the history already holds:
            # the number is part of a call's path in the journal.
            number = 0
            for entry in thing.history:
                if entry.stage_id == stage_id:
                    number += len(entry.calls)
        self.numbers[place] = number + 1
        # Forget the refused call: a later `again` must not count as an attempt of it.
        self.attempts.pop(place, None)
        return number, 0

    def answers_for(self, thing: Thing, before: Thing) -> list[ModelAnswer]:
        """Return the answers for a Thing that leaves, and for `before`, which it was made from.

        They are sorted by number, sample, and part, regardless of the order in which they arrived.
        """
        found: list[ModelAnswer] = []
        for name in (before.id, thing.id) if thing.id != before.id else (before.id,):
            if answers := self.answers.get(name):
                found += map(answers.__getitem__, sorted(answers))
        return found


class StageItems:
    """Records of the Things of one stage; a record goes away together with its Thing.

    A Thing that comes back in a later round has the same id and a longer history, so it is another
    key, and its calls are counted from its history. The latest items are also known by id and the
    hash of their last entry, because a worker in another process returns copies.
    """

    def __init__(self) -> None:
        # Weak keys: an endless stream must not fill the memory with answers that no Thing needs.
        self._alive: WeakKeyDictionary[Thing, StageItem] = WeakKeyDictionary()
        self._latest: dict[tuple[str, int], tuple[int, float]] = {}

    def __len__(self) -> int:
        return len(self._alive)

    def pulled(self, thing: Thing, time: float) -> None:
        """Record an item and when it was pulled."""
        self._alive.setdefault(thing, StageItem()).pulled = time
        self._latest[thing.id, len(thing.history)] = (hash(thing.history[-1]), time)
        # Bounded: an endless stream must not fill the memory.
        if len(self._latest) > MOST:
            del self._latest[next(iter(self._latest))]

    def about(self, thing: Thing) -> StageItem:
        """Return the record of the Thing that this one was made from, for its calls."""
        # By the base: every change makes a new Thing, and the one that asked may be gone by then.
        return self._alive.setdefault(thing.base or thing, StageItem())

    def of(self, thing: Thing) -> StageItem:
        """Return the record of a Thing; for a copy of an item, one without calls."""
        found = self._alive.get(thing) or StageItem()
        if found.pulled is None and thing.history:
            last, time = self._latest.get((thing.id, len(thing.history)), (None, None))
            found.pulled = time if last == hash(thing.history[-1]) else None
        return found


Through = Callable[[AsyncIterator[Thing], IsolatedItem | None], AsyncGenerator[Thing, None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class NestedStages:
    """The nested stages that one block runs itself, by name."""

    stage_id: str
    block: str
    ways: Mapping[str, Through]
    clock: Callable[[], float]
    words: Vocabulary

    async def through(
        self,
        name: str,
        things: Sequence[Thing],
        isolated: IsolatedItem | None,
        add: Callable[[Thing, float], Any],
    ) -> AsyncGenerator[Thing, None]:
        """Yield the results of the named stages for Things that the block made.

        `add` receives each Thing that leaves, and when: the block may continue with it.
        """
        entering = [self._entered(thing) for thing in things]
        async with aclosing(self.ways[name](from_iterable(entering), isolated)) as made:
            async for thing in made:
                add(thing, self.clock())
                yield thing

    def _entered(self, thing: Thing) -> Thing:
        before = thing if thing.made is None else thing.base
        moment = self.clock()
        # A nested stage sees only recorded Things, so what the block made so far gets its history
        # entry before it enters.
        return stamp(
            before,
            thing,
            block=self.block,
            stage_id=self.stage_id,
            started=moment,
            ended=moment,
            about_content=self.words.about_content,
        )


def origin_among(names: Mapping[str, Any], thing: Thing) -> str:
    """Return the id of the input Thing that a Thing which left nested stages came from.

    That is the Thing itself, an ancestor by id, or a parent. If none matches, it is the last input.
    """
    origin = thing.id
    while origin and origin not in names:
        origin = origin.rpartition(".")[0]
    return origin or next((name for name in names if _came_of(thing, name)), list(names)[-1])


def _came_of(thing: Thing, name: str) -> bool:
    return any(entry.id == name for entry in thing.history) or any(
        parent == name or parent.startswith(f"{name}.") for parent in thing.parents
    )


# Notes: what a block must find again when its run is resumed.
MISSING: Final = object()


class Notes(Protocol):
    """Storage for a run's notes: JSON values by stage and key, each written once.

    Which Things a time limit put into one batch, or what a search returned, can't be computed
    again. A block therefore writes it down before using it, and finds it when the run resumes.
    """

    def find(self, stage_id: str, key: str) -> Any:
        """Return the stored value, or `MISSING`."""
        ...

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Store a value."""
        ...


class NotesInMemory:
    """Notes that last as long as this object."""

    def __init__(self) -> None:
        self.kept: dict[tuple[str, str], Any] = {}

    def find(self, stage_id: str, key: str) -> Any:
        """Return the stored value, or `MISSING`."""
        return self.kept.get((stage_id, key), MISSING)

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Store a value. Raise ValueError if the key already has one."""
        if (stage_id, key) in self.kept:
            raise ValueError(f"{stage_id}: the note {key!r} was already written; use another key")
        self.kept[stage_id, key] = freeze(value)


PROPOSAL: Final = "proposal"  # the prop that holds the stages

_PLACE = re.compile(rf"\.{PROPOSAL}_\d+\.")

Proposed = Sequence[Mapping[str, Any]]


def depth_of(stage_id: str) -> int:
    """Return how many levels of proposals a stage is nested in."""
    return len(_PLACE.findall(stage_id))


class Proposals(Protocol):
    """Planner for proposed stages: the executor's, or a test double."""

    def known(self, allowed: Sequence[str] | None) -> tuple[str, ...]:
        """Return the block types that may be proposed.

        `allowed` restricts them; None means all types that can't reach files. Raise RecipeError for
        an unknown type.
        """
        ...

    def about(self, names: Sequence[str]) -> str:
        """Return a description of block types and their params, one per line."""
        ...

    def faults(
        self,
        stages: Proposed,
        *,
        stage_id: str,
        props: Sequence[str],
        known: Sequence[str],
        depth: int,
    ) -> list[str]:
        """Return the problems of stages proposed for a Thing with these props."""
        ...


class StageInput:
    """Iterator over a stage's items that reports each arrival and is closed exactly once.

    Iteration raises BlockError for anything that isn't a Thing from an input or a stage.
    """

    def __init__(self, items: AsyncIterator[Thing], arrived: Callable[[Thing], None]) -> None:
        self._items = items
        self._arrived = arrived
        self._closed = False

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Thing:
        if self._closed:
            raise StopAsyncIteration
        item = await anext(self._items)
        if not isinstance(item, Thing) or item.made is not None:
            raise BlockError(
                f"received {item!r}, which isn't a Thing from a stream; use entered(...)"
            )
        self._arrived(item)
        return item

    async def aclose(self) -> None:
        """Close the items and end the iteration."""
        if not self._closed:
            self._closed = True
            await close(self._items)


async def close(items: AsyncIterator[Any]) -> None:
    """Close an iterator if it has `aclose`."""
    aclose = getattr(items, "aclose", None)
    if aclose is not None:
        await aclose()


MOST_REASONS: Final = 20
"""Maximum number of failures whose place and reason a run keeps; the rest is only counted."""

MOST_LINEAGE: Final = 20_000
"""Maximum number of lineage entries that a run keeps, so that endless streams fit in memory."""


@dataclass
class Trace:
    """Counts, failures, and lineage of the Things that passed the stages of one run.

    Rounds of a recurrent recipe add up.
    """

    came: Counter[str] = field(default_factory=Counter)
    left: Counter[str] = field(default_factory=Counter)
    failed: Counter[str] = field(default_factory=Counter)
    reasons: list[str] = field(default_factory=list)
    lineage: list[Lineage] = field(default_factory=list)
    untold: int = 0

    def leaves(self, stage_id: str, before: Thing | None, after: Thing) -> None:
        """Count a Thing that leaves a stage; `before` is the Thing that the stage made it from."""
        self.left[stage_id] += 1
        if failed(after) and (before is None or not failed(before)):
            self.failed[stage_id] += 1
            if len(self.reasons) < MOST_REASONS:
                reason = after.props.get("reason") or "no reason is given"
                self.reasons.append(f"{after.id} at {stage_id}: {reason}")
        if not after.history or after.history[-1].stage_id != stage_id:
            return
        if len(self.lineage) >= MOST_LINEAGE:
            self.untold += 1
            return
        made = after.history[-1]
        if before is not None and before.history and made is before.history[-1]:
            # An earlier round of this stage made this entry; the Thing leaves unchanged.
            return
        self.lineage.append(
            Lineage(
                thing=made.id,
                stage=stage_id,
                parents=made.parents,
                set=tuple(made.added),
                drafted=bool(made.drafts),
                calls=made.calls,
            )
        )

    def stages(self, stage_ids: Iterable[str]) -> tuple[StageCount, ...]:
        """Return the counts of stages, in the order of `stage_ids`."""
        return tuple(
            [
                StageCount(
                    stage=stage_id,
                    came=self.came[stage_id],
                    left=self.left[stage_id],
                    failed=self.failed[stage_id],
                )
                for stage_id in stage_ids
            ]
        )


T = TypeVar("T")


class BlockContext:
    """One stage of one run, as its block sees it; it lives as long as the run.

    Args:
        stage_id: The stage's place in the recipe, such as `outer.stage_3.critique`.
        seed: Seed for `rng`.
        width: Maximum number of functions passed to `map` that run concurrently.
        prefetch: Number of finished results that may wait for the consumer.
        ordered: Whether results come in the order of their items.
        client: Model client for `ask`; None means that the stage has no model.
        tree_runner: Tree runner for `talk`.
        proposals: Planner for proposed stages.
        notes: Storage for values that a resumed run must find again.
        clock: Function that returns seconds since the epoch.
        call_counter: Context of each call: counts those in progress, and refuses those without
            time left.
        inner: The stages that the block runs itself.
        words: Vocabulary of the recipe.

    Raises:
        RecipeError: `width` is below 1, or `prefetch` is below 0.
    """

    def __init__(
        self,
        stage_id: str,
        *,
        seed: int = 0,
        width: int = 1,
        prefetch: int = 0,
        ordered: bool = True,
        client: ModelClient | None = None,
        tree_runner: TreeRunner | None = None,
        proposals: Proposals | None = None,
        notes: Notes | None = None,
        clock: Callable[[], float] = now,
        call_counter: AbstractContextManager[object] | None = None,
        inner: NestedStages | None = None,
        words: Vocabulary | None = None,
    ) -> None:
        for name, number, least in (("width", width, 1), ("prefetch", prefetch, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                problem = f"{name} must be an integer of at least {least}, not {number!r}"
                raise RecipeError(f"{stage_id}: {problem}")
        self.stage_id = stage_id
        self.words = vocabulary() if words is None else words
        self.seed = seed
        self.width = width
        self.prefetch = prefetch
        self.ordered = ordered
        self.clock = clock
        self.notes: Notes = notes if notes is not None else NotesInMemory()
        self.items, self.trace = StageItems(), Trace()
        self.maps: list[Stream[Any]] = []
        self._client = client
        self._tree_runner = tree_runner
        self.proposals = proposals
        self._call_counter = nullcontext() if call_counter is None else call_counter
        self._inner = inner
        self._isolated: IsolatedItem | None = None
        self._mark = ""
        self._numbers: Iterator[int] = itertools.count()
        # A list, which copies of the context share, and in which None is a value like others.
        self._kept: list[Any] = []

    def within(self, isolated: IsolatedItem | None) -> BlockContext:
        """Return a copy of the context for one of several parallel streams of the stage.

        The copy has its own maps. For an isolated item, it also makes ids of its own.
        """
        # A shallow copy: answers, pulled items, counts, and notes are shared by all streams.
        own = copy.copy(self)
        own.maps = []
        if isolated is not None:
            own._isolated = isolated
            own._mark = f"@{isolated.id}"
            own._numbers = isolated.numbers(self.stage_id)
        return own

    def child(self, thing: Thing, number: int) -> Thing:
        """Return child `number` (from 0) of a Thing: the same values with a new id.

        A Thing and its own child must not both leave a stage: to pass on the parent too, make it a
        child as well. Raise ValueError for an invalid number.
        """
        return child(thing, number)

    def joined(self, things: Sequence[Thing], *, whole: bool = False) -> Thing:
        """Return one Thing made of several, with the next id of this stage: `stage_2.vote#0`.

        It has the content, props, and history that their ancestors share; all of them are its
        parents. It belongs to their group. With `whole`, if they are the entire group, it belongs
        to the enclosing group. Call it before the first `await` that works on the Thing, so that
        ids don't depend on concurrency. Raise ValueError if there are no Things.
        """
        return regrouped(joined(things, self.next_id()), group_of(things, whole=whole))

    def next_id(self) -> str:
        """Return an id that this stage hasn't used before: `stage_2.vote#0`, `#1`, and so on.

        For an isolated item, the id contains the item's id: `stage_2.vote@3#0`.
        """
        return f"{self.stage_id}{self._mark}#{next(self._numbers)}"

    def rng(self, thing: Thing) -> random.Random:
        """Return a random generator that depends only on seed, stage, and the Thing's id."""
        # A text is the same seed in every process; a hash isn't.
        return random.Random(f"{self.seed}/{self.stage_id}/{thing.id}")  # noqa: S311  (no secrets)

    @overload
    def map(
        self, items: AsyncIterable[T], function: Callable[[T], AsyncIterable[R]]
    ) -> Stream[R]: ...
    @overload
    def map(self, items: AsyncIterable[T], function: Callable[[T], Awaitable[R]]) -> Stream[R]: ...
    def map(self, items: AsyncIterable[T], function: Callable[[T], Any]) -> Stream[Any]:
        """Return the results of a function for each item, computed concurrently.

        The function is async, or returns an async iterator of results. The map is lazy: it pulls an
        item when a result is requested. If a rail refuses one item, results already in progress are
        still returned before the stage ends. The stage closes whatever is left open when it exits.
        """
        results = mapped(
            items,
            function,
            width=self.width,
            prefetch=self.prefetch,
            ordered=self.ordered,
            last=(RailError,),
            on_error=label,
        )
        # The stage's exit must close maps that the block abandoned, so each is remembered until it
        # ends.
        self.maps[:] = [one for one in self.maps if not one.over]
        self.maps.append(results)
        return results

    async def ask(
        self,
        thing: Thing,
        prompt: Content,
        *,
        system: str | None = None,
        schema: type[BaseModel] | Mapping[str, Any] | None = None,
        sample: int = 0,
        check: Check | None = None,
        again: bool = False,
    ) -> ModelAnswer:
        """Call the stage's model on behalf of a Thing.

        The call appears in that Thing's history, and in that of Things made from it here. For n
        samples, ask on behalf of each child.

        `sample` numbers samples from 0. `check` receives text and JSON value, and returns a problem
        or None. With `again`, the call is the next attempt of the one whose answer was refused.

        Raise InvalidAnswer for an answer that is blank, doesn't parse, or fails `check`, which the
        journal records as a failed attempt. Raise RecipeError if the stage has no model.
        """
        if self._client is None:
            raise RecipeError(f"{self.stage_id}: this stage has no model; set one for the run")
        # Before the first await: numbers must not depend on which of several calls ends first.
        calls = self.items.about(thing)
        number, attempts = calls.place(thing, sample, self.stage_id, again=again)
        ask = ModelRequest(
            thing_id=thing.id,
            stage_id=self.stage_id,
            number=number,
            sample=sample,
            prompt=prompt,
            system=system,
            schema=schema,
            check=check,
            attempts=attempts,
        )
        with self._call_counter:
            try:
                answer = await self._client(ask)
            except InvalidAnswer as error:
                calls.attempts[thing.id, sample] = error.attempts or attempts + 1
                raise
        calls.answers.setdefault(thing.id, {})[number, sample, 0] = answer
        return answer

    async def talk(
        self, thing: Thing, tree: Node, *, message: str | None, inputs: Mapping[str, Any]
    ) -> TreeResult:
        """Run a conversation tree on behalf of a Thing, in whose history its calls appear.

        Raise RecipeError if the stage has no tree runner, and InvalidAnswer if an answer can't be
        used.
        """
        if self._tree_runner is None:
            raise RecipeError(
                f"{self.stage_id}: this stage can't run trees; run it as part of a recipe"
            )
        calls = self.items.about(thing)
        number, _ = calls.place(thing, 0, self.stage_id)
        talk = TreeRequest(
            thing_id=thing.id,
            stage_id=self.stage_id,
            number=number,
            tree=tree,
            message=message,
            inputs=inputs,
        )
        with self._call_counter:
            result = await self._tree_runner(talk)
        # A run has one number, however many calls it made: the next run or call has another.
        for part, call in enumerate(result.calls):
            answer = ModelAnswer(text="", call=call, model=", ".join(result.models))
            calls.answers.setdefault(thing.id, {})[number, 0, part] = answer
        return result

    async def inside(self, name: str, things: Sequence[Thing]) -> AsyncGenerator[Thing, None]:
        """Yield what nested stages return for Things that the block sends through them.

        The block may continue with the results as if they were its items. Raise RecipeError for a
        name that the block hasn't declared.
        """
        if self._inner is None or name not in self._inner.ways:
            raise RecipeError(f"{self.stage_id}: the block declares no nested stages {name!r}")
        made = self._inner.through(name, things, self._isolated, self.items.pulled)
        async with contextlib.aclosing(made):
            async for thing in made:
                yield thing

    async def once(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Return the value noted under a key; if there is none, note the JSON data from `make`.

        Use it for work other than model calls that a resumed run must not repeat. A key is used
        once per stage and run: include a Thing's id in it.
        """
        found = await call_and_flush(self.notes.find, self.stage_id, key)
        if found is MISSING:
            with self._call_counter:
                found = await make()
            # Written before it is returned: whatever the block does next may depend on the value.
            await call_and_flush(self.notes.write, self.stage_id, key, found)
        return found

    def kept(self, make: Callable[[], T]) -> T:
        """Return the result of `make`, computed once for all streams and batches of the stage."""
        if not self._kept:
            self._kept.append(make())
        return self._kept[0]  # type: ignore[no-any-return]


def label(error: BaseException, item: object) -> None:
    """Attach the id of the item that caused an error; the first label stays."""
    # Blocks also map tuples whose first element is the Thing.
    thing = item[0] if isinstance(item, tuple) and item else item
    if isinstance(thing, Thing) and not getattr(error, "item", ""):
        # Some exceptions have no `__dict__` and refuse attributes.
        with contextlib.suppress(AttributeError):
            error.item = thing.id  # type: ignore[attr-defined]
