"""Things: content with props, their history, and the reason for each value."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import reduce
from typing import Any, Final

from mergepoint.core.errors import MissingKey
from mergepoint.core.frozen_json import NOTHING, FrozenDict, freeze, thaw
from mergepoint.core.lazy import Displayed
from mergepoint.core.paths import nearest
from mergepoint.core.text import clip
from mergepoint.core.text import shown as visible


@dataclass(frozen=True, slots=True)
class Made:
    """Changes to a Thing: props, new content (`drafts`), and for a new Thing its id and parents.

    `origins` records, by prop or `content`, the entries of other Things from which values were
    taken. `+` combines successive changes: it is associative, and `Made()` is neutral.
    """

    _: KW_ONLY
    id: str = ""
    parents: tuple[str, ...] = ()
    added: Mapping[str, Any] = NOTHING
    drafts: tuple[Any, ...] = ()
    origins: Mapping[str, Any] = field(default=NOTHING, hash=False)  # rare, and large

    def __add__(self, later: Made) -> Made:
        # If one side adds nothing, the other mapping is reused instead of copied.
        if not self.added:
            added = later.added
        elif not later.added:
            added = self.added
        else:
            added = FrozenDict({**self.added, **later.added})
        return Made(
            id=later.id or self.id,
            parents=self.parents if not later.parents else later.parents,
            added=added,
            # Only the last content of a stage becomes a draft; no other stage saw those before it.
            drafts=later.drafts or self.drafts,
            origins=_merged_origins(self, later) if self.origins or later.origins else NOTHING,
        )


def _merged_origins(before: Made, later: Made) -> FrozenDict:
    """Return the origins of both; a value that is written again keeps only its new ones."""
    written = {*later.added, *(["content"] if later.drafts else [])}
    kept = {name: told for name, told in before.origins.items() if name not in written}
    return FrozenDict({**kept, **later.origins})


@dataclass(frozen=True, slots=True)
class Entry(Made):
    """One history entry: the changes, the block and stage that made them, and their calls.

    `id` is the Thing's id from here on. Times are seconds since the epoch. They don't count in
    comparisons. `model` names the models of the calls, separated by `, `.
    """

    _: KW_ONLY
    block: str = ""
    stage_id: str = ""
    model: str = ""
    calls: tuple[str, ...] = ()
    started: float = field(default=0.0, compare=False)
    ended: float = field(default=0.0, compare=False)

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data without empty fields."""
        rare = {
            "parents": list(self.parents),
            "added": thaw(self.added),
            "origins": thaw(self.origins),
            "model": self.model,
            "calls": list(self.calls),
        }
        content = {"content": thaw(self.drafts[-1])} if self.drafts else {}
        times = {"started": self.started, "ended": self.ended}
        named = {"id": self.id, "block": self.block, "stage_id": self.stage_id}
        return {**named, **{key: value for key, value in rare.items() if value}, **content, **times}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Entry:
        """Return an entry from JSON data.

        Raise ValueError that lists every missing, unknown, or invalid field.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"an entry must be a mapping of its fields, not {data!r}")
        problems = [
            f"{name} is {'missing' if name not in data else f'not {data[name]!r}'}"
            for name, kinds in _KINDS.items()
            if not isinstance(data.get(name, _EMPTY.get(name)), kinds)
        ]
        problems += [f"{name!r} isn't a field" for name in data if name not in {*_KINDS, "content"}]
        for name in ("parents", "calls"):
            if not all(isinstance(one, str) for one in data.get(name, ())):
                problems.append(f"{name} must be a list of strings")
        if problems:
            raise ValueError(f"the entry is invalid: {'; '.join(problems)}")
        return cls(
            id=data["id"],
            parents=tuple(data.get("parents", ())),
            added=freeze(data.get("added", NOTHING)),
            drafts=(freeze(data["content"]),) if "content" in data else (),
            origins=freeze(data.get("origins", NOTHING)),
            block=data["block"],
            stage_id=data["stage_id"],
            model=data.get("model", ""),
            calls=tuple(data.get("calls", ())),
            started=float(data["started"]),
            ended=float(data["ended"]),
        )


_KINDS: Final[dict[str, Any]] = {
    "id": str,
    "block": str,
    "stage_id": str,
    "started": int | float,
    "ended": int | float,
    "parents": list,
    "added": Mapping,
    "origins": Mapping,
    "model": str,
    "calls": list,
}
_EMPTY: Final[dict[str, Any]] = {
    "parents": [],
    "added": NOTHING,
    "origins": NOTHING,
    "model": "",
    "calls": [],
}

UNMADE: Final = Made()


WIDTH: Final = 60
# Maximum number of lines about the Things from which a value was taken.
MOST: Final = 10


@dataclass(frozen=True, slots=True)
class Why:
    """The entries that set a prop, oldest first, each with its value.

    As text, it has one line per entry: value, block and stage, model, and calls. If the value came
    from other Things, one line per stage that set it there follows. A value that was dropped
    because the content changed is None.
    """

    prop: str
    told: tuple[tuple[Entry, Any], ...]

    def __iter__(self) -> Iterator[Entry]:
        return (entry for entry, _ in self.told)

    def __len__(self) -> int:
        return len(self.told)

    @property
    def values(self) -> tuple[Any, ...]:
        """Return the values in the order in which they were set; the last one counts."""
        return tuple(value for _, value in self.told)

    def __str__(self) -> str:
        last = self.told[-1][0]
        lines = [f"{self.prop} of {last.id}"]
        had = False
        for entry, value in self.told:
            if had and value is None and entry.drafts:
                lines.append(f"  dropped  {by(entry)}, as {entry.id}: it changed the content")
            else:
                lines.append(f"  {shown(value)}  {by(entry)}, as {entry.id}")
            had = value is not None
            lines += _from(entry.origins.get(self.prop) or ())
        return "\n".join(lines)


def _from(origins: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a line for each entry of another Thing that set a value, up to a maximum."""
    for one in origins[:MOST]:
        entry = Entry(**{**one, "calls": tuple(one.get("calls", ()))})
        yield f"    from {visible(entry.id)}: {by(entry)}"
    if len(origins) > MOST:
        yield f"    and from {len(origins) - MOST:,} more"


def by(entry: Entry) -> str:
    """Return an entry's origin on a line: `critique at stage_2.critique (openai:gpt), calls 7`."""
    model = f" ({entry.model})" if entry.model else ""
    calls = f", calls {', '.join(entry.calls)}" if entry.calls else ""
    return visible(f"{entry.block} at {entry.stage_id}{model}{calls}")


def shown(value: Any, *, width: int = WIDTH) -> str:
    """Return a value as JSON on one printable line, at most `width` cells wide."""
    return clip(visible(json.dumps(value, ensure_ascii=False)), width)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A possible answer: JSON content, and facts about it by name.

    Together with ScoredCandidate, this is the pair that best-of-n needs: a generator samples, a
    verifier ranks (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168).
    """

    content: Any
    _: KW_ONLY
    facts: Mapping[str, Any] = NOTHING


@dataclass(frozen=True, slots=True)
class ScoredCandidate:
    """A candidate, its score (higher is better), and the reason, which may be blank."""

    candidate: Candidate
    score: float
    _: KW_ONLY
    reason: str = ""


RESERVED: Final = ("content", "history", "id", "parents", "props")


# With a weakref slot, because stages keep Things as keys of weak dictionaries.
@dataclass(frozen=True, slots=True, weakref_slot=True)
class Thing(Displayed):
    """JSON content (usually text), props by name, and their history, as a frozen value.

    `Thing("text", {"topic": "cats"})` creates a fresh Thing, which has no id because it isn't in a
    stream yet. `id` encodes the lineage: `0.2.1` is child 1 of child 2 of the first item, and
    `vote#3` is the fourth Thing that the stage `vote` made of several. `parents` are the ids that
    it was made from. Props are never removed, and old values stay in the history.

    A Thing equals the fold of its history. A block's changes are kept next to the history, as
    `made`, until the Thing leaves the stage.

    Args:
        content: JSON data.
        props: JSON values by name.
        history: Only checked: streams create histories.

    Raises:
        TypeError: Content or props aren't JSON data.
        ValueError: They aren't JSON data, a prop's name is blank or reserved, or they differ from
            the history.
    """

    content: Any = None
    props: Mapping[str, Any] = NOTHING
    history: tuple[Entry, ...] = field(default=(), repr=False)
    id: str = field(init=False, default="")
    parents: tuple[str, ...] = field(init=False, default=())
    base: Thing | None = field(init=False, default=None, compare=False, repr=False)
    made: Made | None = field(init=False, default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        _write(self, "content", freeze(self.content))
        _write(self, "props", _named(self.props))
        if not self.history:
            _write(self, "made", Made(added=self.props, drafts=(self.content,)))
            return
        told = fold(self.history)
        if (told.content, told.props) != (self.content, self.props):
            raise ValueError(
                f"content or props differ from the history of {told.id}; change a Thing with "
                "thing.plus(...) or thing.redrafted(...); a stage writes the history"
            )
        for name in ("content", "props", "history", "id", "parents"):
            _write(self, name, getattr(told, name))

    def __hash__(self) -> int:
        # Not the content, which may be long: within a run, id and length identify a history.
        return hash((self.id, len(self.history)))

    @property
    def drafts(self) -> tuple[Any, ...]:
        """Return all contents in order; the last is the current content."""
        told = tuple(draft for entry in self.history for draft in entry.drafts)
        return told + self.made.drafts if self.made is not None else told

    def plus(self, props: Mapping[str, Any] = NOTHING, /, **more: Any) -> Thing:
        """Return the Thing with these props added; new values replace old ones.

        Raise TypeError and ValueError as the constructor does.
        """
        return self.making(Made(added=_named({**props, **more})))

    def redrafted(self, content: Any, /, **props: Any) -> Thing:
        """Return the Thing with new content, and these props; the old content stays as a draft.

        Raise TypeError and ValueError as the constructor does.
        """
        return self.making(Made(added=_named(props), drafts=(freeze(content),)))

    def taken_from(self, things: Iterable[Thing], *names: str) -> Thing:
        """Return the Thing with a note that some of its values come from other Things.

        `why` follows the note to the stages and calls that set them there. Things without a value
        are ignored.

        Args:
            things: The Things that the values come from, as they entered the stage.
            names: Names of props, or `content`.
        """
        if not names:
            return self
        given = list(things)
        found = {name: [o for one in given for o in _origin(one, name)] for name in names}
        return self.making(
            Made(origins=freeze({name: all_ for name, all_ in found.items() if all_}))
        )

    def making(self, made: Made) -> Thing:
        """Return the Thing with further changes, which stay separate until it leaves the stage."""
        if self.made is None:
            return _view(self, made)
        # On the base: one entry records all changes of a stage, however many steps made them.
        return _view(self.base, self.made + made)

    def why(self, prop: str) -> Why:
        """Return the entries that set a prop, oldest first, or for `content`, those with drafts.

        Raise MissingKey (a KeyError), with similar names, for a prop that was never set.
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
            raise MissingKey(prop, f"{self.id} has no prop {prop!r}{near}; its props: {known}")
        return Why(prop, tuple(told))

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data, from which `from_plain` returns an equal Thing.

        Raise ValueError for a changed Thing that hasn't left its stage.
        """
        if self.base is not None:
            raise ValueError(
                f"{self.id} has unrecorded changes; serialize it after it leaves its stage"
            )
        return {
            "id": self.id,
            "parents": list(self.parents),
            "content": thaw(self.content),
            "props": thaw(self.props),
            "history": [entry.to_plain() for entry in self.history],
        }

    @classmethod
    def from_candidate(cls, candidate: Candidate) -> Thing:
        """Return a fresh Thing with a candidate's content and facts, and the status `candidate`."""
        return cls(candidate.content, {"status": "candidate", **candidate.facts})

    @classmethod
    def from_scored(cls, scored: ScoredCandidate) -> Thing:
        """Return a fresh Thing like `from_candidate`, with score and reason."""
        reason = {"reason": scored.reason} if scored.reason else {}
        return cls.from_candidate(scored.candidate).plus(score=scored.score, **reason)

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Thing:
        """Return a Thing from JSON data. Raise ValueError if it is invalid."""
        if not isinstance(data, Mapping) or not {"content", "props", "history"} <= set(data):
            raise ValueError("a Thing must be a mapping with content, props, and history")
        history = tuple(Entry.from_plain(entry) for entry in data["history"])
        thing = cls(data["content"], data["props"], history)
        if data.get("id", thing.id) != thing.id:
            raise ValueError(f"the id {data['id']!r} differs from the history's id {thing.id!r}")
        return thing


def fold(history: Iterable[Entry]) -> Thing:
    """Return the Thing that results from the entries of a history, in order."""
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
    about_content: Collection[str] = (),
) -> Thing:
    """Return `before + made` with a new history entry: the only place that writes history.

    `before` is the Thing that `after` was made from, or None for a fresh Thing, whose id is
    `name`. Unchanged Things without calls are returned as they are. Times are seconds since the
    epoch. Props in `about_content`, such as a score, become None if the content changed, unless
    they were written together with it.
    """
    if after.made is None and not calls:
        return after
    made = after.made or UNMADE
    added = made.added
    # A stage that writes the same content again leaves its score valid.
    if before is not None and made.drafts and made.drafts[-1] != before.content:
        added = _without_stale(before.props, added, about_content)
    entry = Entry(
        id=name or after.id,
        parents=made.parents,
        added=added,
        drafts=made.drafts,
        origins=made.origins,
        block=block,
        stage_id=stage_id,
        model=model,
        calls=tuple(calls),
        started=started,
        ended=ended,
    )
    history = () if before is None else before.history
    return _view(before, entry, history=(*history, entry))


def _without_stale(
    before: Mapping[str, Any], added: Mapping[str, Any], about_content: Collection[str]
) -> Mapping[str, Any]:
    """Return the added props, with None for props about the old content."""
    stale = [
        name
        for name, value in before.items()
        if name in about_content and value is not None and name not in added
    ]
    return FrozenDict({**added, **dict.fromkeys(stale)}) if stale else added


def dropped_by(thing: Thing, name: str) -> Entry | None:
    """Return the entry that dropped a prop because the content changed, or None."""
    if thing.props.get(name) is not None or name not in thing.props:
        return None
    if thing.made is not None and name in thing.made.added:
        return None
    setting = [entry for entry in thing.history if name in entry.added]
    # None is also a value that a block may write: a dropped prop had another value before.
    is_dropped = setting[-1].drafts and any(one.added[name] is not None for one in setting)
    return setting[-1] if is_dropped else None


def child(thing: Thing, number: int, props: Mapping[str, Any] = NOTHING, /) -> Thing:
    """Return a new child with its parent's content, props, and history: `0.2` is child 2 of `0`.

    `props` are added to those of the parent. Raise ValueError for a Thing without an id, and for a
    number below 0.
    """
    if not thing.id:
        raise ValueError(
            "a Thing outside a stream has no id, so it can't have children; use entered(...)"
        )
    if isinstance(number, bool) or not isinstance(number, int) or number < 0:
        raise ValueError(f"the number of a child must be an integer of at least 0, not {number!r}")
    made = Made(id=f"{thing.id}.{number}", parents=_origins([thing]), added=_named(props))
    return thing.making(made)


def joined(things: Sequence[Thing], name: str) -> Thing:
    """Return a new Thing made of several; `name` becomes its id.

    It starts from the entries that all histories share at their beginning, as a git merge starts
    from the merge base. Samples of one question keep the question's props. A single sample keeps no
    more than several would.

    Raise ValueError if there are no Things.
    """
    if not things:
        raise ValueError(f"{name} must be made of at least one Thing")
    # A fresh Thing has no history, and a changed one that of its base.
    histories = [one.history for one in things]
    own = {one.id if one.base is None else one.base.id for one in things}
    shared: list[Entry] = []
    # The shortest history limits the comparison.
    for entries in zip(*histories, strict=False):
        # A Thing's own entries aren't common ground, even if one of several has a longer history.
        if entries[0].id in own or entries.count(entries[0]) < len(entries):
            break
        shared.append(entries[0])
    return _view(fold(shared), Made(id=name, parents=_origins(things)))


def _origins(things: Iterable[Thing]) -> tuple[str, ...]:
    """Return the ids that the Things had when they entered the stage, each once."""
    found: dict[str, None] = {}
    for one in things:
        if one.made is None:
            found[one.id] = None
        else:
            found.update(dict.fromkeys(one.made.parents or (one.id,)))
    return tuple(found)


def _origin(thing: Thing, name: str) -> list[Mapping[str, Any]]:
    """Return the entries that set a value, as data; for a copied value, the original entries."""
    for entry in reversed(thing.history):
        if entry.drafts if name == "content" else name in entry.added:
            named = {"id": entry.id, "block": entry.block, "stage_id": entry.stage_id}
            called = {"model": entry.model, "calls": list(entry.calls)} if entry.calls else {}
            return list(entry.origins.get(name) or [{**named, **called}])
    return []


def _named(props: Mapping[str, Any]) -> FrozenDict:
    """Return props frozen. Raise ValueError for an invalid name."""
    if props == NOTHING:
        return NOTHING
    for name in props:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"the name of a prop must be a non-blank string, not {name!r}")
        if name in RESERVED:
            raise ValueError(
                f"{name!r} is a field of every Thing; choose another name for the prop"
            )
    try:
        return freeze(props)  # type: ignore[no-any-return]
    except (TypeError, ValueError) as error:
        raise type(error)(f"props: {error}") from None


def _view(base: Thing | None, made: Made, *, history: tuple[Entry, ...] | None = None) -> Thing:
    """Return `base + made`; with a history, the changes are recorded in it."""
    # Bypasses __init__, whose checks would fold the whole history again at every stage.
    thing = object.__new__(Thing)
    old = made if base is None else base
    content, props, recorded = (
        (None, NOTHING, ()) if base is None else (base.content, base.props, base.history)
    )
    if made.added:
        # A fresh mapping of changes is frozen, and shared instead of copied.
        props = FrozenDict({**props, **made.added}) if props else made.added
    _write(thing, "content", made.drafts[-1] if made.drafts else content)
    _write(thing, "props", props)
    _write(thing, "history", recorded if history is None else history)
    _write(thing, "id", made.id or old.id)
    _write(thing, "parents", made.parents or old.parents)
    _write(thing, "base", base if history is None else None)
    _write(thing, "made", made if history is None else None)
    return thing


_write = object.__setattr__
