"""Thing: a content that is worked on, what is known of it, and how it came about.

A Thing is the fold of its history: `thing == fold(thing.history)`. What a block makes of one
stands beside its history, as *made*, until the stage's exit stamps it: `before + made`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import takewhile
from typing import Any, Final

from mergepoint.core.errors import MissingKey
from mergepoint.core.path import nearest
from mergepoint.core.swift import swift
from mergepoint.streams.candidate import Candidate, ScoredCandidate
from mergepoint.streams.entry import UNMADE, Entry, Made
from mergepoint.streams.sealed import NOTHING, SealedDict, plain, sealed
from mergepoint.streams.why import Why

RESERVED: Final = ("content", "history", "id", "parents", "props")


@swift
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Thing:
    """JSON content (text mostly), props by name, and the history of both. A frozen value.

    `Thing("text", {"topic": "cats"})` is a fresh one: it belongs to no stream yet and has no id.
    `id` is its lineage: `0.2.1` is child 1 of child 2 of the first item; `vote#3` is the fourth
    that the stage `vote` made of several. `parents` are the ids that it was made from. Keys of
    props never vanish, and old values stay in the history.

    A Thing with a history is given by `fold`, `from_plain` and the exits of stages; the
    constructor takes a history only as a check, and raises ValueError where content and props are
    not what it tells. Raises TypeError and ValueError for what is no JSON data (see
    `mergepoint.streams.sealed`), and ValueError for a blank or reserved name of a prop.
    """

    content: Any = None
    props: Mapping[str, Any] = NOTHING
    history: tuple[Entry, ...] = field(default=(), repr=False)
    id: str = field(init=False, default="")
    parents: tuple[str, ...] = field(init=False, default=())
    base: Thing | None = field(init=False, default=None, compare=False, repr=False)
    made: Made | None = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _write(self, "content", sealed(self.content))
        _write(self, "props", _named(self.props))
        if not self.history:
            _write(self, "made", Made(added=self.props, drafts=(self.content,)))
            return
        told = fold(self.history)
        if (told.content, told.props) != (self.content, self.props):
            raise ValueError(
                f"this is not what the history of {told.id} tells; a Thing changes by "
                "thing.plus(...) and thing.redrafted(...), and its history at a stage's exit alone"
            )
        for name in ("content", "props", "history", "id", "parents"):
            _write(self, name, getattr(told, name))

    def __hash__(self) -> int:
        return hash((self.id, len(self.history)))

    @property
    def drafts(self) -> tuple[Any, ...]:
        """Give the contents in order; the last is the content."""
        told = tuple(draft for entry in self.history for draft in entry.drafts)
        return told + self.made.drafts if self.made is not None else told

    def plus(self, props: Mapping[str, Any] = NOTHING, /, **more: Any) -> Thing:
        """Give the Thing with these props added; a new value stands before an old one.

        Raises TypeError and ValueError as the constructor does.
        """
        return self.making(Made(added=_named({**props, **more})))

    def redrafted(self, content: Any, /) -> Thing:
        """Give the Thing with a new content; the one before stays a draft.

        Raises TypeError and ValueError for what is no JSON data.
        """
        return self.making(Made(drafts=(sealed(content),)))

    def making(self, made: Made) -> Thing:
        """Give `self + made`: the view of it, with what was made kept apart until the stamp."""
        if self.made is None:
            return _view(self, made)
        return _view(self.base, self.made + made)

    def why(self, prop: str) -> Why:
        """Tell who set a prop, each time, oldest first; `content` tells who wrote the drafts.

        Raises MissingKey (a KeyError) with near names for a prop that was never set.
        """
        of_content = prop == "content"
        told = [
            (entry, entry.drafts[-1] if of_content else entry.added[prop])
            for entry in self.history
            if (entry.drafts if of_content else prop in entry.added)
        ]
        if not told:
            near = nearest(prop, self.props)
            known = ", ".join(sorted(self.props)) or "none"
            raise MissingKey(prop, f"{self.id} has no prop {prop!r}{near}; there are: {known}")
        return Why(prop, tuple(told))

    def to_plain(self) -> dict[str, Any]:
        """Give JSON data, from which `from_plain` gives an equal Thing.

        Raises ValueError for one that was changed and has not left its stage yet.
        """
        if self.base is not None:
            raise ValueError(f"{self.id} has not left its stage; its history is not written yet")
        return {
            "id": self.id,
            "parents": list(self.parents),
            "content": plain(self.content),
            "props": plain(self.props),
            "history": [entry.to_plain() for entry in self.history],
        }

    @classmethod
    def from_candidate(cls, candidate: Candidate) -> Thing:
        """Give a fresh Thing of a candidate: its content and facts, with the status `candidate`."""
        return cls(candidate.content, {"status": "candidate", **candidate.facts})

    @classmethod
    def from_scored(cls, scored: ScoredCandidate) -> Thing:
        """Give a fresh Thing of a scored candidate: as `from_candidate`, with score and reason."""
        reason = {"reason": scored.reason} if scored.reason else {}
        return cls.from_candidate(scored.candidate).plus(score=scored.score, **reason)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Thing:
        """Give a Thing back from JSON data. Raises ValueError for what is none."""
        if not isinstance(data, Mapping) or not {"content", "props", "history"} <= set(data):
            raise ValueError("a Thing is a mapping with content, props and history")
        history = tuple(Entry.from_plain(entry) for entry in data["history"])
        thing = cls(data["content"], data["props"], history)
        if data.get("id", thing.id) != thing.id:
            raise ValueError(f"{data['id']!r} is not the id that the history of {thing.id} tells")
        return thing


def fold(history: Iterable[Entry]) -> Thing:
    """Give the Thing that a history tells of: what its entries made, one after the other."""
    entries = tuple(history)
    made = reduce(lambda so_far, entry: so_far + entry, entries, UNMADE)
    return _view(None, made, history=entries)


def stamp(
    before: Thing | None,
    after: Thing,
    *,
    block: str,
    stage_id: str,
    name: str = "",
    model: str = "",
    calls: Sequence[str] = (),
    started: float = 0.0,
    ended: float = 0.0,
) -> Thing:
    """Give `before + made`, as it leaves a stage: the one place where history is written.

    `before` is what `after` was made from; None for a fresh Thing, which gets its `name` for an
    id. What nothing was made of and no call was made for leaves as it came. Times are seconds
    since the epoch.
    """
    if after.made is None and not calls:
        return after
    made = after.made or UNMADE
    entry = Entry(
        id=name or after.id,
        parents=made.parents,
        added=made.added,
        drafts=made.drafts,
        block=block,
        stage_id=stage_id,
        model=model,
        calls=tuple(calls),
        started=started,
        ended=ended,
    )
    history = () if before is None else before.history
    return _view(before, entry, history=(*history, entry))


def child(thing: Thing, number: int) -> Thing:
    """Give a child to be, with its parent's content, props and history: `0.2` is child 2 of `0`.

    Raises ValueError for a Thing without an id, and for a number that is no whole number from 0.
    """
    if not thing.id:
        raise ValueError("a Thing that is in no stream has no id, so a child of it has none")
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"the number of a child is a whole number from 0 on, not {number!r}")
    return thing.making(Made(id=f"{thing.id}.{number}", parents=_origins([thing])))


def joined(things: Sequence[Thing], name: str) -> Thing:
    """Give one Thing to be that is made of several; `name` becomes its id.

    It starts from what their ancestors have in common: the entries with which all their histories
    begin, as a merge in git starts from the merge base. Samples of one question keep the
    question's props, and one sample alone no more than several.

    Raises ValueError for no Things at all.
    """
    if not things:
        raise ValueError(f"{name} would be made of nothing; give at least one Thing")
    histories = [one.history if one.made is None else _history(one.base) for one in things]
    own = {one.id if one.base is None else one.base.id for one in things}
    in_common = histories[0][: _length_in_common(histories)]
    shared = takewhile(lambda entry: entry.id not in own, in_common)
    return _view(fold(shared), Made(id=name, parents=_origins(things)))


def _origins(things: Iterable[Thing]) -> tuple[str, ...]:
    """Give the ids that the Things had when they came into the stage, each once."""
    found: dict[str, None] = {}
    for one in things:
        if one.made is None:
            found[one.id] = None
        else:
            found.update(dict.fromkeys(one.made.parents or (one.id,)))
    return tuple(found)


def _length_in_common(histories: Sequence[tuple[Entry, ...]]) -> int:
    """Give with how many equal entries all histories begin."""
    columns = zip(*histories, strict=False)  # the shortest ends it
    return sum(1 for _ in takewhile(_all_equal, columns))


def _all_equal(entries: tuple[Entry, ...]) -> bool:
    return all(entry is entries[0] or entry == entries[0] for entry in entries)


def _history(base: Thing | None) -> tuple[Entry, ...]:
    return () if base is None else base.history


def _named(props: Mapping[str, Any]) -> SealedDict:
    """Give props sealed. Raises ValueError for a name that cannot be one."""
    for name in props:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"the name of a prop is text that is not blank, not {name!r}")
        if name in RESERVED:
            raise ValueError(f"{name!r} is a field of every Thing, and no name of a prop")
    try:
        return sealed(props)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise type(error)(f"props: {error}") from None


def _view(base: Thing | None, made: Made, *, history: tuple[Entry, ...] | None = None) -> Thing:
    """Give `base + made`; with a history it is stamped, else what was made stays apart."""
    thing = object.__new__(Thing)
    old = made if base is None else base
    content = made.drafts[-1] if made.drafts else None if base is None else base.content
    props = made.added if base is None else _with(base.props, made.added)
    _write(thing, "content", content)
    _write(thing, "props", props)
    _write(thing, "history", _history(base) if history is None else history)
    _write(thing, "id", made.id or old.id)
    _write(thing, "parents", made.parents or old.parents)
    _write(thing, "base", base if history is None else None)
    _write(thing, "made", made if history is None else None)
    return thing


def _with(props: Mapping[str, Any], added: Mapping[str, Any]) -> Mapping[str, Any]:
    return SealedDict({**props, **added}) if added else props


_write = object.__setattr__
