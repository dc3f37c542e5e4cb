"""search: find the best answer by trying and scoring variants."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Annotated

from pydantic import Field, RootModel

from mergepoint.streams.block_context import BlockContext, IsolatedItem, origin_among
from mergepoint.streams.conditions import canonical, failed, holds, number
from mergepoint.streams.registry import block
from mergepoint.streams.search_strategies import (
    Beam,
    BestFirst,
    Found,
    Islands,
    Move,
    Own,
    Thompson,
    Uct,
)
from mergepoint.streams.thing import Thing

Way = Beam | BestFirst | Uct | Thompson | Islands | Own


class Searched(RootModel[Annotated[Way, Field(discriminator="strategy")]]):
    """A strategy and its params."""


@block(
    "search",
    params=Searched,
    adds=["task", "earlier", "moves", "stopped"],
    inside=lambda params: params.root.inside(),
    inside_has=["task", "earlier"],
    reaches_out=True,
)
async def search(
    items: AsyncIterator[Thing], params: Searched, ctx: BlockContext
) -> AsyncIterator[Thing]:
    """Search from each Thing, and return the best nodes that were found.

    A move sends a node, or several as one, through the stages of `next`; moves from the item itself
    use `first`. The results are new nodes, each with a score. Strategies: `beam` (level by level),
    `best_first`, `uct` (tree search by means and visits), `thompson` (a random draw between wider
    and deeper), `islands` (evolution), and `own` (a function that returns a search with `ask`,
    `tell`, and `best`). Moves depend only on the seed and on scores in the order of moves, not on
    concurrency.

    A node gets `task` (the item's content) and `earlier` (its parent nodes with their scores, the
    best last). Writes `moves` (the number made) and `stopped`: until, moves, nothing left, or
    nothing came. If nothing was found, the item leaves with the status `stuck` and the `reason`.
    """
    plan = params.root

    async def found(thing: Thing) -> AsyncIterator[Thing]:
        if failed(thing):
            yield thing
            return
        quest = _Quest(thing, plan, ctx.within(IsolatedItem(thing.id)))
        await quest.run()
        for best in quest.best():
            yield best

    async for best in ctx.map(items, found):
        yield best


class _Quest:
    """The search from one item."""

    def __init__(self, root: Thing, plan: Way, ctx: BlockContext) -> None:
        self._root = root
        self._plan = plan
        self._ctx = ctx
        self._search = plan.begin(root.id, ctx.rng(root))
        self._nodes = {root.id: root}
        self._children: dict[str, int] = {}
        self._moves = 0
        self._stopped = "nothing left"

    async def run(self) -> None:
        """Make moves until the search is over."""
        while batch := self._batch():
            slots = [self._slot(move) for move in batch]
            made = await self._tried(batch, slots)
            # Results are told in the order of moves, whatever order they finish in: a resumed run
            # must repeat the search.
            for move, nodes in zip(batch, made, strict=True):
                self._nodes.update((node.id, node) for node in nodes)
                # Also without nodes: a strategy may wait for the result of every move.
                self._search.tell(move, [self._scored(node) for node in nodes])
            if any(self._is_good(node) for nodes in made for node in nodes):
                self._stopped = "until"
                return
            if not any(made):
                # A limit stopped the stages, or all nodes failed.
                self._stopped = "nothing came"
                return

    def best(self) -> Sequence[Thing]:
        """Return the best nodes, or the item if nothing was found."""
        told = {"moves": self._moves, "stopped": self._stopped}
        names = list(self._search.best())[: self._plan.keep]
        if not names:
            reason = "the search found nothing"
            return [self._root.plus(told, status="stuck", reason=reason)]
        good = [name for name in names if self._is_good(self._nodes[name])]
        first = [*good, *(name for name in names if name not in good)]
        return [self._nodes[name].plus(told) for name in first]

    def _batch(self) -> list[Move]:
        batch: list[Move] = []
        while len(batch) < self._plan.at_once:
            if self._moves == self._plan.moves:
                self._stopped = "moves"
                break
            move = self._search.ask()
            if move is None:
                break
            self._moves += 1
            batch.append(move)
        return batch

    def _slot(self, move: Move) -> Thing:
        """Return the Thing that passes the stages of a move."""
        parents = [self._nodes[name] for name in move.parents]
        if len(parents) > 1:
            slot = self._ctx.joined(parents).redrafted(parents[-1].content)
        else:
            name = parents[0].id
            # Child numbers are counted per parent, so that ids don't depend on other branches.
            count = self._children[name] = self._children.get(name, -1) + 1
            slot = self._ctx.child(parents[0], count)
        earlier = "" if move.way == "first" else self._earlier(parents)
        return slot.plus(task=self._root.content, earlier=earlier)

    def _earlier(self, parents: Sequence[Thing]) -> str:
        texts = (
            (one.content if isinstance(one.content, str) else canonical(one.content), one)
            for one in parents
        )
        return "\n\n".join(
            f"{place}. (score {number(one, self._plan.by):g}) {text}"
            for place, (text, one) in enumerate(texts, 1)
        )

    async def _tried(self, batch: Sequence[Move], slots: Sequence[Thing]) -> list[list[Thing]]:
        """Return the nodes of each move in lineage order, without failed ones."""
        ways = ["next" if self._plan.first is None else move.way for move in batch]
        made: dict[str, list[Thing]] = {slot.id: [] for slot in slots}
        for way in dict.fromkeys(ways):
            entering = [slot for slot, its in zip(slots, ways, strict=True) if its == way]
            async for node in self._ctx.inside(way, entering):
                if not failed(node):
                    made[origin_among(made, node)].append(node)
        return list(made.values())

    def _scored(self, node: Thing) -> Found:
        return Found(node.id, self._plan.share(number(node, self._plan.by)))

    def _is_good(self, node: Thing) -> bool:
        return self._plan.until is not None and holds(self._plan.until, node)
