"""Made and Entry: what one stage made of a Thing, before and after it was stamped."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass, field
from typing import Any, Final

from mergepoint.core.swift import swift
from mergepoint.streams.sealed import NOTHING, SealedDict, plain, sealed


@swift
@dataclass(frozen=True, slots=True)
class Made:
    """What was made: props, a new content where there is one (`drafts`), a new id and its parents.

    `+` joins what was made one after the other; it is associative, and `Made()` is neutral.
    """

    _: KW_ONLY
    id: str = ""
    parents: tuple[str, ...] = ()
    added: Mapping[str, Any] = NOTHING
    drafts: tuple[Any, ...] = ()

    def __add__(self, later: Made) -> Made:
        if not self.added:
            added = later.added
        elif not later.added:
            added = self.added
        else:
            added = SealedDict({**self.added, **later.added})
        return Made(
            id=later.id or self.id,
            parents=self.parents if not later.parents else later.parents,
            added=added,
            drafts=later.drafts or self.drafts,
        )


@swift
@dataclass(frozen=True, slots=True)
class Entry(Made):
    """One entry of a history: what was made, by which block, at which stage, with which calls.

    `id` is the Thing's from here on. Times are seconds since the epoch; they say nothing about
    what was made, so entries that differ in them alone are equal. `model` names the models of the
    calls, separated by `, `.
    """

    _: KW_ONLY
    block: str = ""
    stage_id: str = ""
    model: str = ""
    calls: tuple[str, ...] = ()
    started: float = field(default=0.0, compare=False)
    ended: float = field(default=0.0, compare=False)

    def to_plain(self) -> dict[str, Any]:
        """Give JSON data; what is empty is left out."""
        rare = {
            "parents": list(self.parents),
            "added": plain(self.added),
            "model": self.model,
            "calls": list(self.calls),
        }
        content = {"content": plain(self.drafts[-1])} if self.drafts else {}
        times = {"started": self.started, "ended": self.ended}
        named = {"id": self.id, "block": self.block, "stage_id": self.stage_id}
        return {**named, **{key: value for key, value in rare.items() if value}, **content, **times}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> Entry:
        """Give an entry back.

        Raises ValueError that lists every field that is missing, unknown or of another type.
        """
        if not isinstance(data, Mapping):
            raise ValueError(f"an entry is a mapping of its fields, not {data!r}")
        problems = [
            f"{name} is {'missing' if name not in data else f'not {data[name]!r}'}"
            for name, kinds in _KINDS.items()
            if not isinstance(data.get(name, _EMPTY.get(name)), kinds)
        ]
        problems += [f"{name!r} is no field" for name in data if name not in {*_KINDS, "content"}]
        for name in ("parents", "calls"):
            if not all(isinstance(one, str) for one in data.get(name, ())):
                problems.append(f"{name} is a list of texts")
        if problems:
            raise ValueError(f"an entry cannot be read: {'; '.join(problems)}")
        return cls(
            id=data["id"],
            parents=tuple(data.get("parents", ())),
            added=sealed(data.get("added", NOTHING)),
            drafts=(sealed(data["content"]),) if "content" in data else (),
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
    "model": str,
    "calls": list,
}
_EMPTY: Final[dict[str, Any]] = {"parents": [], "added": NOTHING, "model": "", "calls": []}

UNMADE: Final = Made()
