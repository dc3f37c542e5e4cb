"""BlockContext: what a block is given beside its items and params."""

from __future__ import annotations

import contextlib
import copy
import itertools
import random
from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from functools import partial
from typing import Any, TypeVar, overload

from pydantic import BaseModel

from mergepoint.core.errors import RailError, RecipeError
from mergepoint.record.record import now
from mergepoint.streams.alone import Alone
from mergepoint.streams.arrivals import close
from mergepoint.streams.ask import Answer, Ask, Asker
from mergepoint.streams.calls import Calls
from mergepoint.streams.counting import Counting
from mergepoint.streams.flow.mapped import mapped
from mergepoint.streams.flow.stream import Stream
from mergepoint.streams.groups import group_of, regrouped
from mergepoint.streams.inside import Inside
from mergepoint.streams.notes import MISSING, Notes, NotesInMemory
from mergepoint.streams.proposal import Proposals
from mergepoint.streams.taken import Taken
from mergepoint.streams.talk import Talk, Talked, Talker
from mergepoint.streams.thing import Thing, child, joined
from mergepoint.tree.node import Node
from mergepoint.tree.step import Content

T = TypeVar("T")
R = TypeVar("R")


class BlockContext:
    """One stage of one run, as its block sees it; it lives as long as the run.

    `stage_id` is the stage's place in the recipe, such as `outer.stage_3.critique`. At most
    `width` functions given to `map` run at once, and `prefetch` results wait to be taken;
    `ordered` says whether they come in the order of their items. `asker` answers calls, `talker`
    runs trees, `proposals` plan what is proposed, `notes` keep what a resumed run must find again,
    `clock` gives seconds since the epoch. `under_way` counts what is waited for in calls, and
    refuses those for which there is no time. `inner` has the stages that the block runs itself.

    Raises RecipeError for a width below 1 or a prefetch below 0.
    """

    def __init__(
        self,
        stage_id: str,
        *,
        seed: int = 0,
        width: int = 1,
        prefetch: int = 0,
        ordered: bool = True,
        asker: Asker | None = None,
        talker: Talker | None = None,
        proposals: Proposals | None = None,
        notes: Notes | None = None,
        clock: Callable[[], float] = now,
        under_way: Counting | None = None,
        inner: Inside | None = None,
    ) -> None:
        for name, number, least in (("width", width, 1), ("prefetch", prefetch, 0)):
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                problem = f"{name} is a whole number from {least} on, not {number!r}"
                raise RecipeError(f"{stage_id}: {problem}")
        self.stage_id = stage_id
        self.seed = seed
        self.width = width
        self.prefetch = prefetch
        self.ordered = ordered
        self.clock = clock
        self.notes: Notes = notes if notes is not None else NotesInMemory()
        self.calls = Calls()
        self.taken = Taken()
        self.maps: dict[int, Stream[Any]] = {}
        self._asker = asker
        self._talker = talker
        self.proposals = proposals
        self._under_way = under_way
        self._inner = inner
        self._alone: Alone | None = None
        self._mark = ""
        self._numbers: Iterator[int] = itertools.count()
        self._kept: list[Any] = []

    def within(self, alone: Alone | None) -> BlockContext:
        """Give the context of one stream of the stage, beside others: its maps are its own.

        Where an item is alone in it, ids are made for that item.
        """
        own = copy.copy(self)
        own.maps = {}
        if alone is not None:
            own._alone = alone
            own._mark = f"@{alone.id}"
            own._numbers = alone.numbers(self.stage_id)
        return own

    def child(self, thing: Thing, number: int) -> Thing:
        """Give child `number` (from 0) of a Thing: its content, props and history, an id below.

        A Thing and its own child must not both leave a stage; to pass on the parent as well, give
        it as a child too. Raises ValueError for a number that is none.
        """
        return child(thing, number)

    def joined(self, things: Sequence[Thing], *, whole: bool = False) -> Thing:
        """Give one Thing made of several, with the next id of this stage: `stage_2.vote#0`.

        It has the content, props and history that their ancestors have in common; all are its
        parents. It is in their group, or with `whole`, where they are all of it, in the group
        around. Ask for it before the first `await` of what works on it, so that ids do not depend
        on concurrency. Raises ValueError for no Things at all.
        """
        return regrouped(joined(things, self.next_id()), group_of(things, whole=whole))

    def next_id(self) -> str:
        """Give an id that this stage gave to nothing before: `stage_2.vote#0`, `#1` and on.

        Where each item goes its own way it names that: `stage_2.vote@3#0`.
        """
        return f"{self.stage_id}{self._mark}#{next(self._numbers)}"

    def rng(self, thing: Thing) -> random.Random:
        """Give random numbers that depend on seed, stage and the Thing's id alone."""
        return random.Random(f"{self.seed}/{self.stage_id}/{thing.id}")  # noqa: S311  (no secrets)

    @overload
    def map(
        self, items: AsyncIterable[T], function: Callable[[T], AsyncIterable[R]]
    ) -> Stream[R]: ...
    @overload
    def map(self, items: AsyncIterable[T], function: Callable[[T], Awaitable[R]]) -> Stream[R]: ...
    def map(self, items: AsyncIterable[T], function: Callable[[T], Any]) -> Stream[Any]:
        """Give what the function makes of each item, several at once, as the stage allows.

        The function is async, or gives an async iterator of results. Lazy: an item is pulled when
        a result is asked for. Where a rail refuses one item, what had begun comes out before the
        stage ends. The exit of the stage closes what is left open.
        """
        made = mapped(
            items,
            partial(_labelled, function),
            width=self.width,
            prefetch=self.prefetch,
            ordered=self.ordered,
            last=(RailError,),
        )
        results = Stream(self._until_over(made), made.aclose)
        self.maps[id(made)] = results
        return results

    async def _until_over(self, made: Stream[R]) -> AsyncGenerator[R, None]:
        """Give the results of a map, and forget it when it is over."""
        try:
            async with made:
                async for result in made:
                    yield result
        finally:
            self.maps.pop(id(made), None)

    async def ask(
        self,
        thing: Thing,
        prompt: Content,
        *,
        system: str | None = None,
        schema: type[BaseModel] | Mapping[str, Any] | None = None,
        sample: int = 0,
    ) -> Answer:
        """Ask the stage's model on behalf of a Thing.

        The call is in the history of that Thing, and of what is made from it here. So for each of
        n samples ask for the child that it becomes. Raises RecipeError where there is no model.
        """
        if self._asker is None:
            raise RecipeError(f"{self.stage_id}: this stage has no model to ask")
        number = self.calls.next_number(thing, sample, self.stage_id)
        ask = Ask(
            thing_id=thing.id,
            stage_id=self.stage_id,
            number=number,
            sample=sample,
            prompt=prompt,
            system=system,
            schema=schema,
        )
        answer = await self._counted(self._asker(ask))
        self.calls.add(thing, number, sample, answer)
        return answer

    async def talk(
        self, thing: Thing, tree: Node, *, message: str | None, inputs: Mapping[str, Any]
    ) -> Talked:
        """Run a conversation tree on behalf of a Thing; its calls are in the Thing's history.

        Raises RecipeError where nobody can, and Unfitting where an answer cannot be used.
        """
        if self._talker is None:
            raise RecipeError(f"{self.stage_id}: this stage has nobody to run a tree")
        number = self.calls.next_number(thing, 0, self.stage_id)
        talk = Talk(
            thing_id=thing.id,
            stage_id=self.stage_id,
            number=number,
            tree=tree,
            message=message,
            inputs=inputs,
        )
        talked = await self._counted(self._talker(talk))
        for more, call in enumerate(talked.calls):
            answer = Answer(text="", call=call, model=", ".join(talked.models))
            self.calls.add(thing, number + more, 0, answer)
        return talked

    async def inside(self, name: str, things: Sequence[Thing]) -> AsyncGenerator[Thing, None]:
        """Send Things through stages of the block's own (see BlockType); give what leaves them.

        What leaves is the block's to go on with, as if it were one of its items. Raises
        RecipeError for a name that the block has not declared.
        """
        if self._inner is None or name not in self._inner.ways:
            raise RecipeError(f"{self.stage_id}: there are no stages {name!r} inside of this block")
        made = self._inner.through(name, things, self._alone, self.taken.add)
        async with contextlib.aclosing(made):
            async for thing in made:
                yield thing

    async def once(self, key: str, make: Callable[[], Awaitable[Any]]) -> Any:
        """Give the value that is noted under a key, else the JSON data that `make` gives, noted.

        For what a resumed run must not do again, or would do otherwise, and that is no model's
        call. A key belongs to one use in the stage's whole run: put a Thing's id into it.
        """
        found = self.notes.find(self.stage_id, key)
        if found is MISSING:
            found = await self._counted(make())
            self.notes.write(self.stage_id, key, found)
        return found

    def kept(self, make: Callable[[], T]) -> T:
        """Give what `make` gives, made once for all streams and batches of the stage in a run."""
        if not self._kept:
            self._kept.append(make())
        return self._kept[0]  # type: ignore[no-any-return]

    def _counted(self, call: Awaitable[R]) -> Awaitable[R]:
        return call if self._under_way is None else self._under_way.counted(call)


def label(error: BaseException, item: object) -> None:
    """Write on an error which item it came from; the first label stays."""
    thing = item[0] if isinstance(item, tuple) and item else item
    if isinstance(thing, Thing) and not getattr(error, "item", ""):
        with contextlib.suppress(AttributeError):  # an error may refuse attributes
            error.item = thing.id  # type: ignore[attr-defined]


def _labelled(function: Callable[[T], Any], item: T) -> Any:
    """Give what a function makes of an item, its errors labelled with the item."""
    try:
        made = function(item)
    except Exception as error:
        label(error, item)
        raise
    return _results(made, item) if hasattr(made, "__aiter__") else _result(made, item)


async def _result(made: Awaitable[R], item: object) -> R:
    try:
        return await made
    except Exception as error:
        label(error, item)
        raise


async def _results(made: AsyncIterable[R], item: object) -> AsyncGenerator[R, None]:
    results = aiter(made)
    try:
        async for result in results:
            yield result
    except Exception as error:
        label(error, item)
        raise
    finally:
        await close(results)
