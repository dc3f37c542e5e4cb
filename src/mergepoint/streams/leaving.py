"""Leaving: the exit of a stage, where what its block made is checked and stamped."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from mergepoint.core.errors import locate
from mergepoint.streams.block_error import BlockError
from mergepoint.streams.block_type import BlockType
from mergepoint.streams.context import BlockContext, label
from mergepoint.streams.recent import Recent
from mergepoint.streams.thing import Thing, stamp
from mergepoint.streams.vocabulary import VocabularyWarning, misspelt


class Leaving:
    """The exit of one stage. All checks of what a block yields are here, and the only stamp."""

    def __init__(self, kind: BlockType[Any], ctx: BlockContext) -> None:
        self._kind = kind
        self._ctx = ctx
        self._last: Thing | None = None
        self._arrived_at = 0.0
        self._recent = Recent()
        self._words: set[object] = set()

    def arrived(self, thing: Thing) -> None:
        """Take note of an item that the block pulled."""
        self._last = thing
        self._arrived_at = self._ctx.clock()
        self._ctx.taken.add(thing, self._arrived_at)
        self._recent.came(thing.id)

    def stamped(self, after: Any) -> Thing:
        """Give what the block yielded as it leaves the stage.

        Raises BlockError for what is no Thing, was made from none of the stage's items, or has
        the id of another.
        """
        if not isinstance(after, Thing):
            raise BlockError(f"yielded {after!r}, which is no Thing; yield thing.redrafted(...)")
        before = after if after.made is None else after.base
        started = None if before is None else self._ctx.taken.when(before)
        if started is None:
            own = (f"{self._ctx.stage_id}#", f"{self._ctx.stage_id}@")
            if after.made is None or not after.id.startswith(own):
                raise BlockError(self._stranger(after))
            started = self._arrived_at
        if problem := self._recent.problem(after):
            raise BlockError(problem)
        answers = self._ctx.calls.of(after)
        if after.made is None and not answers:
            return after
        if after.made is not None:
            self._check_words(after.made.added)
        return stamp(
            before,
            after,
            block=self._kind.name,
            stage_id=self._ctx.stage_id,
            model=", ".join(dict.fromkeys(answer.model for answer in answers if answer.model)),
            calls=[answer.call for answer in answers],
            started=started,
            ended=self._ctx.clock(),
        )

    @contextmanager
    def located(self) -> Iterator[None]:
        """Write stage, block and item on an error that comes out of the block."""
        try:
            yield
        except Exception as error:
            if not getattr(error, "pipeline_path", ""):
                self._locate(error)
            raise

    def _locate(self, error: Exception) -> None:
        label(error, self._last)
        if isinstance(error, BlockError):
            error.stage_id, error.block = self._ctx.stage_id, self._kind.name
        locate(error, self._ctx.stage_id, kind=self._kind.name, name=self._kind.name)
        if item := getattr(error, "item", ""):
            error.add_note(f"item {item}")

    def _stranger(self, after: Thing) -> str:
        name = f"{after.id}, which" if after.id else "a Thing that"
        return (
            f"yielded {name} was made from none of its items, or whose history is another; "
            "use thing.plus(...), thing.redrafted(...), ctx.child(thing, number) or "
            "ctx.joined(things)"
        )

    def _check_words(self, added: Mapping[str, Any]) -> None:
        """Warn of names that are nearly words of the vocabulary, each once."""
        words = {
            (name, value) if name in ("kind", "status") else name for name, value in added.items()
        }
        if words <= self._words:
            return
        self._words |= words
        for problem in misspelt(added):
            where = f"{self._ctx.stage_id} ({self._kind.name})"
            warnings.warn(f"{where}: {problem}", VocabularyWarning, stacklevel=2)
