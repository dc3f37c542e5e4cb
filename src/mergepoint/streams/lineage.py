"""Lineage: where Things came from, as text and as a Mermaid flowchart; and the order of ids."""

from __future__ import annotations

import re
from collections.abc import Iterable
from graphlib import TopologicalSorter
from typing import Final

from mergepoint.report.lettering import shown as visible
from mergepoint.report.mermaid import label
from mergepoint.streams.entry import Entry
from mergepoint.streams.thing import Thing
from mergepoint.streams.why import by, shown

MOST: Final = 200

Order = tuple[tuple[int, int, str], ...]
_PART = re.compile(r"([0-9]+)|([^.#0-9]+)")


def lineage_order(name: str) -> Order:
    """Give the key that sorts ids: `0.2` before `0.10`, a parent before its children."""
    return tuple(
        (0, int(part[1]), "") if part[1] else (1, 0, part[2]) for part in _PART.finditer(name)
    )


def ancestor(name: str, levels: int | None) -> str:
    """Give the id so many levels above an id, or with None the one that all began with.

    Above a root, and above what was made of several, there is nothing: it is its own.
    """
    stage, mark, numbers = name.rpartition("#")
    parts = numbers.split(".")
    kept = parts[:1] if levels is None else parts[: max(1, len(parts) - levels)]
    return f"{stage}{mark}{'.'.join(kept)}"


def lineage(things: Thing | Iterable[Thing], *, most: int = MOST) -> str:
    """Draw where a Thing, or several, came from: a line for each Thing, parents first.

    Below each stands what its later stages made. A parent whose history is not among those given
    is shown by its id. After `most` Things the rest is counted.
    """
    known = _known(things)
    lines: list[str] = []
    names = _sorted(known)
    for name in names[:most]:
        entries = known[name]
        if not entries:
            lines.append(f"{visible(name)}  (its history is not given)")
            continue
        parents = ", ".join(entries[0].parents)
        origin = f"  from {visible(parents)}" if parents else ""
        lines.append(f"{visible(name)}{origin}  {by(entries[0])}{_changes(entries[0])}")
        lines += [f"    {by(entry)}{_changes(entry)}" for entry in entries[1:]]
    if len(names) > most:
        lines.append(f"and {len(names) - most:,} more")
    return "".join(f"{line}\n" for line in lines)


def lineage_mermaid(things: Thing | Iterable[Thing], *, most: int = MOST) -> str:
    """Give what `lineage` draws as the text of a Mermaid flowchart, an arrow from each parent."""
    known = _known(things)
    names = _sorted(known)[:most]
    numbers = {name: number for number, name in enumerate(names)}
    left_out = len(known) - len(names)
    lines = [f"%% {left_out:,} more are left out"] if left_out else []
    lines.append("flowchart TB")
    for name, number in numbers.items():
        blocks = dict.fromkeys(f"{entry.block} at {entry.stage_id}" for entry in known[name])
        lines.append(f"  t{number}[{label(name, *blocks)}]")
    lines += [
        f"  t{numbers[parent]} --> t{number}"
        for name, number in numbers.items()
        for parent in _parents(known[name])
        if parent in numbers
    ]
    return "\n".join(lines) + "\n"


def _known(things: Thing | Iterable[Thing]) -> dict[str, tuple[Entry, ...]]:
    """Give the entries of each id that the histories tell of; of parents alone, none."""
    known: dict[str, tuple[Entry, ...]] = {}
    for thing in (things,) if isinstance(things, Thing) else things:
        told: dict[str, list[Entry]] = {}
        for entry in thing.history:
            told.setdefault(entry.id, []).append(entry)
        for name, entries in told.items():
            if len(entries) > len(known.get(name, ())):
                known[name] = tuple(entries)
    for parent in {parent for entries in known.values() for parent in _parents(entries)}:
        known.setdefault(parent, ())
    return known


def _parents(entries: tuple[Entry, ...]) -> tuple[str, ...]:
    return entries[0].parents if entries else ()


def _sorted(known: dict[str, tuple[Entry, ...]]) -> list[str]:
    """Give the ids with parents before children, else in the order of lineage."""
    sorter: TopologicalSorter[str] = TopologicalSorter()
    for name, entries in known.items():
        sorter.add(name, *_parents(entries))
    sorter.prepare()
    names: list[str] = []
    while ready := sorted(sorter.get_ready(), key=lineage_order):
        names += ready
        sorter.done(*ready)
    return names


def _changes(entry: Entry) -> str:
    made = [f"{name}={shown(value, width=30)}" for name, value in entry.added.items()]
    if entry.drafts:
        made.insert(0, f"content={shown(entry.drafts[-1], width=30)}")
    return f": {visible(', '.join(made))}" if made else ""
