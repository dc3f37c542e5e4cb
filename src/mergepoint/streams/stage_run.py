"""One stage of a recipe: its input, its block, and its output, which is checked and recorded."""

from __future__ import annotations

import warnings
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from functools import partial
from typing import Any, Final

from mergepoint.aio.stream import Stream, from_iterable
from mergepoint.core.errors import BlockError, RecipeError, locate
from mergepoint.streams.block_context import BlockContext, StageInput, StageItem, close, label
from mergepoint.streams.grouping import Gather, gathered
from mergepoint.streams.params import P
from mergepoint.streams.provenance import VocabularyWarning, misspelt
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.registry import BlockType
from mergepoint.streams.thing import Thing, stamp

MOST: Final = 4096


class RecentIds:
    """Window of the latest ids of a stage, in which each id must be unique.

    The window is bounded: clashes are nearly always close together.
    """

    def __init__(self) -> None:
        self._left: dict[str, None] = {}
        self._split: dict[str, None] = {}

    def came(self, name: str) -> None:
        """Record an item: it may leave, even if it left this stage before."""
        self._left.pop(name, None)
        self._split.pop(name, None)

    def problem(self, thing: Thing) -> str:
        """Record a Thing that leaves, and return the problem with its id, or "".

        Children are numbered below their parent's id. A parent that leaves next to its child could
        get the same children again in a later stage.
        """
        name = thing.id
        if name in self._left:
            return f"two Things with the id {name} leave the stage; use a new number for each child"
        parent = ""
        if thing.made is not None and thing.made.parents:  # a child made at this stage?
            above, _, number = name.rpartition(".")
            parent = above if number.isdecimal() else ""
        if name in self._split or parent in self._left:
            return (
                f"{parent if parent in self._left else name} leaves together with its own child; "
                "pass it on as one more child: ctx.child(thing, number)"
            )
        for names, added in ((self._left, name), (self._split, parent)):
            if added:
                names[added] = None
                if len(names) > MOST:
                    del names[next(iter(names))]
        return ""


class StageOutput:
    """The output of one stage: the only place that checks and records a block's results."""

    def __init__(self, kind: BlockType[Any], ctx: BlockContext) -> None:
        self._kind = kind
        self._ctx = ctx
        self._last: Thing | None = None
        self._arrived_at = 0.0
        self._recent = RecentIds()
        self._words: set[object] = set()

    def arrived(self, thing: Thing) -> None:
        """Record an item that the block pulled."""
        self._last = thing
        self._arrived_at = self._ctx.clock()
        self._ctx.items.pulled(thing, self._arrived_at)
        self._ctx.trace.came[self._ctx.stage_id] += 1
        self._recent.came(thing.id)

    def stamped(self, after: Any) -> Thing:
        """Return a block's result with its history entry.

        Raise BlockError if it isn't a Thing, wasn't made from the stage's items, or has the id of
        another Thing.
        """
        if not isinstance(after, Thing):
            raise BlockError(f"yielded {after!r}, which isn't a Thing; yield thing.redrafted(...)")
        before = after if after.made is None else after.base
        item = StageItem() if before is None else self._ctx.items.of(before)
        started = item.pulled
        if started is None:
            # Things that the stage joined have no single base; they are known by their id's prefix.
            own = (f"{self._ctx.stage_id}#", f"{self._ctx.stage_id}@")
            if after.made is None or not after.id.startswith(own):
                raise BlockError(self._stranger(after))
            started = self._arrived_at
        if problem := self._recent.problem(after):
            raise BlockError(problem)
        answers = [] if before is None else item.answers_for(after, before)
        # Nothing changed: an entry would only lengthen the history.
        if after.made is None and not answers:
            self._ctx.trace.leaves(self._ctx.stage_id, after, after)
            return after
        if after.made is not None:
            self._check_words(after.made.added)
        calls: list[str] = []
        models: dict[str, None] = {}
        for answer in answers:
            calls.append(answer.call)
            if answer.model:
                models[answer.model] = None
        left = stamp(
            before,
            after,
            block=self._kind.name,
            stage_id=self._ctx.stage_id,
            model=", ".join(models),
            calls=calls,
            started=started,
            ended=self._ctx.clock(),
            about_content=self._ctx.words.about_content,
        )
        self._ctx.trace.leaves(self._ctx.stage_id, before, left)
        return left

    def locate(self, error: Exception) -> None:
        """Add stage, block, and item to an error that the block raises."""
        # A nested stage has located the error already.
        if getattr(error, "pipeline_path", ""):
            return
        label(error, self._last)
        if isinstance(error, BlockError):
            error.stage_id, error.block = self._ctx.stage_id, self._kind.name
        locate(error, self._ctx.stage_id, kind=self._kind.name, name=self._kind.name)
        if item := getattr(error, "item", ""):
            error.add_note(f"item {item}")

    def _stranger(self, after: Thing) -> str:
        name = f"{after.id}, which" if after.id else "a Thing that"
        return (
            f"yielded {name} wasn't made from any of the stage's items; "
            "use thing.plus(...), thing.redrafted(...), ctx.child(thing, number) or "
            "ctx.joined(things)"
        )

    def _check_words(self, added: Mapping[str, Any]) -> None:
        """Warn about names that nearly match the vocabulary, once per name."""
        known = len(self._words)
        for name, value in added.items():
            # Values of kind and status count too: a misspelled one may come after a correct one.
            self._words.add((name, value) if name in ("kind", "status") else name)
        if len(self._words) == known:
            return
        for problem in misspelt(added, self._ctx.words):
            where = f"{self._ctx.stage_id} ({self._kind.name})"
            warnings.warn(f"{where}: {problem}", VocabularyWarning, stacklevel=2)


INPUT: Final = "input"
_LISTED: Final = 5


def entered(items: Iterable[Any], *, start: int = 0) -> Iterator[Thing]:
    """Yield items as Things of a stream, with the ids `0`, `1`, ..., and a first entry.

    Numbers count from `start`. An item that isn't a Thing becomes the content of one. Raise
    ValueError for a Thing that already has a history.
    """
    for number, item in enumerate(items, start):
        thing = item if isinstance(item, Thing) else Thing(item)
        if thing.history:
            raise ValueError(f"item {number} is {thing.id} of another stream; pass Thing(content)")
        yield stamp(None, thing, block=INPUT, stage_id=INPUT, name=str(number))


def check_needs(recipe: Recipe, things: Iterable[Thing]) -> None:
    """Raise RecipeError that lists the items without a prop that the recipe needs."""
    missing = {
        thing.id: names
        for thing in things
        if (names := [name for name in recipe.needs if name not in thing.props])
    }
    if not missing:
        return
    listed = [f"item {at} has no {', '.join(names)}" for at, names in missing.items()]
    more = [f"and {len(listed) - _LISTED:,} more"] if len(listed) > _LISTED else []
    example = ", ".join(f'"{name}": "..."' for name in recipe.needs)
    raise RecipeError(
        f"the recipe {recipe.name} needs items with the props {', '.join(recipe.needs)}: "
        f"{'; '.join([*listed[:_LISTED], *more])}. Pass Thing(content, {{{example}}}); in a "
        f'command, use --items FILE with one JSON line per item: {{"content": "...", {example}}}'
    )


def run_stage(
    kind: BlockType[P],
    items: AsyncIterator[Thing],
    params: P,
    ctx: BlockContext,
    *,
    batch: Gather | None = None,
) -> Stream[Thing]:
    """Return a block's results for a stream, checked and recorded, as a lazy stream.

    When the stage ends, fails, or is closed, the block, its maps, and `items` are closed.

    Args:
        kind: The block.
        items: The Things to work on.
        params: The block's params.
        ctx: The context of the stage.
        batch: With it, the block receives one batch after the other, each as a stream that ends.

    Raises:
        BlockError: The block broke its contract. This and the block's own errors name stage, block,
            and item.
    """
    output = StageOutput(kind, ctx)
    entering = StageInput(items, output.arrived)
    begin: Callable[[], AsyncIterator[Any]] = partial(_begun, kind, entering, params, ctx)
    if batch is not None:
        begin = partial(_of_batches, kind, gathered(entering, batch, ctx), params, ctx)
    return Stream(_stamped(begin, entering, output, ctx), entering.aclose)


async def _stamped(
    begin: Callable[[], AsyncIterator[Any]],
    entering: StageInput,
    output: StageOutput,
    ctx: BlockContext,
) -> AsyncGenerator[Thing, None]:
    """Yield the block's results with their entries, and close what belongs to the stage."""
    try:
        # Closed in this order: the block first, because it may still pull while it closes.
        async with aclosing(entering):
            made = begin()
            try:
                async for thing in made:
                    yield output.stamped(thing)
            finally:
                await _close(made, ctx)
    except Exception as error:
        output.locate(error)
        raise


async def _of_batches(
    kind: BlockType[P], batches: AsyncIterator[Sequence[Thing]], params: P, ctx: BlockContext
) -> AsyncGenerator[Any, None]:
    """Yield the block's results for one batch after the other."""
    try:
        async for members in batches:
            async with aclosing(from_iterable(members)) as batch:
                made = _begun(kind, batch, params, ctx)
                try:
                    async for thing in made:
                        yield thing
                finally:
                    await _close(made, ctx)
    finally:
        await close(batches)


def _begun(
    kind: BlockType[P], items: AsyncIterator[Thing], params: P, ctx: BlockContext
) -> AsyncIterator[Any]:
    made = kind.function(items, params, ctx)
    if not hasattr(made, "__anext__"):
        raise BlockError(
            f"returned {made!r} instead of an async iterator; a block must be an async generator"
        )
    return made


async def _close(made: AsyncIterator[Any], ctx: BlockContext) -> None:
    """Close a block, and the maps that it left open."""
    # The block may still use its maps while it closes, so the maps come last.
    await close(made)
    while ctx.maps:
        await ctx.maps.pop(0).aclose()
