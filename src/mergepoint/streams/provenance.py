"""Lineage, groups, and values of Things, and the vocabulary of kinds and props."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property, lru_cache
from graphlib import TopologicalSorter
from itertools import takewhile
from pathlib import Path
from typing import Any, Final

from mergepoint.core.errors import RecipeError
from mergepoint.core.frozen_json import NOTHING
from mergepoint.core.paths import nearest
from mergepoint.core.strict_yaml import load_file
from mergepoint.core.text import shown as visible
from mergepoint.report.mermaid import label
from mergepoint.streams.thing import Entry, Thing, by, child, shown

MOST: Final = 200

Order = tuple[tuple[int, int, str], ...]
_PART = re.compile(r"([0-9]+)|([^.#0-9]+)")


def lineage_order(name: str) -> Order:
    """Return the key that sorts ids: `0.2` before `0.10`, a parent before its children."""
    return tuple(
        [(0, int(part[1]), "") if part[1] else (1, 0, part[2]) for part in _PART.finditer(name)]
    )


def ancestor(name: str, levels: int | None) -> str:
    """Return the id `levels` above an id, or its root if `levels` is None.

    Roots and Things made of several have no ancestor: they are returned unchanged.
    """
    stage, mark, numbers = name.rpartition("#")
    parts = numbers.split(".")
    kept = parts[:1] if levels is None else parts[: max(1, len(parts) - levels)]
    return f"{stage}{mark}{'.'.join(kept)}"


def lineage(things: Thing | Iterable[Thing], *, most: int = MOST) -> str:
    """Return the lineage of one or several Things as text, parents first.

    Each Thing has one line, followed by one line per later stage that changed it. A parent whose
    history isn't available is shown by its id. After `most` Things, only the count of the rest is
    shown.
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
    """Return the lineage of Things as a Mermaid flowchart, with an arrow from each parent."""
    known = _known(things)
    names = _sorted(known)[:most]
    numbers = {name: number for number, name in enumerate(names)}
    left_out = len(known) - len(names)
    lines = [f"%% {left_out:,} more are omitted"] if left_out else []
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
    """Return the history entries by id; ids that occur only as parents have none."""
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
    """Return the ids with parents before children, otherwise in lineage order."""
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


FILE = Path(__file__).with_name("vocabulary.yaml")

Words = Mapping[str, Mapping[str, str]]
"""Meanings of words, by section and word."""


class VocabularyWarning(UserWarning):
    """A name that nearly matches a word of the vocabulary."""


@dataclass(frozen=True)
class Vocabulary:
    """Meanings by word: values of `kind` and `status`, and names of props.

    These are conventions, not rules: only near misses cause a warning. Props of `assessment` and
    `origin` are about the content and are dropped when it changes.
    """

    kinds: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    assessment: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    status: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    origin: Mapping[str, str] = field(default_factory=lambda: NOTHING)
    provenance: Mapping[str, str] = field(default_factory=lambda: NOTHING)

    @cached_property
    def props(self) -> Mapping[str, str]:
        """The names of props with their meanings."""
        return {**self.assessment, **self.origin, **self.provenance}

    @cached_property
    def about_content(self) -> frozenset[str]:
        """The names of props that are dropped when the content changes."""
        return frozenset({*self.assessment, *self.origin})

    def plus(self, *more: Words) -> Vocabulary:
        """Return the vocabulary with more words. Raise RecipeError if they are invalid."""
        if faults := [fault for words in more for fault in words_problems(words)]:
            raise RecipeError("; ".join(faults))
        if not any(more):
            return self
        found = {name: dict(getattr(self, name)) for name in SECTIONS}
        for words in more:
            for name, meanings in words.items():
                found[name] |= meanings
        return Vocabulary(**found)


SECTIONS = tuple(one.name for one in fields(Vocabulary))

_added: list[Words] = []


@lru_cache(maxsize=1)
def _known_words() -> Vocabulary:
    return Vocabulary(**load_file(FILE).value).plus(*_added)


def vocabulary() -> Vocabulary:
    """Return the built-in vocabulary with the words that were added to it."""
    return _known_words()


def add_words(words: Words) -> None:
    """Add words to the vocabulary of all recipes in this process.

    A package of blocks calls it where it defines them: `add_words({"assessment": {"rhyme": "how
    well it rhymes, 0 to 100"}})`. To add words to a single recipe, set its field `words`.

    Args:
        words: Meanings by section (kinds, assessment, status, origin, provenance) and word.

    Raises:
        RecipeError: A section is unknown, or a word or meaning isn't a non-blank string.
    """
    # Checked before they are added: invalid words would break every later recipe.
    Vocabulary().plus(words)
    _added.append(words)
    _known_words.cache_clear()


def words_problems(words: Any) -> list[str]:
    """Return the problems of words that a project adds."""
    if not isinstance(words, Mapping):
        return [f"words must be a mapping of {', '.join(SECTIONS)}, not {words!r}"]
    problems: list[str] = []
    for name, meanings in words.items():
        if name not in SECTIONS:
            near = nearest(str(name), SECTIONS)
            problems.append(f"no section is named {name!r}{near}; available: {', '.join(SECTIONS)}")
        elif not isinstance(meanings, Mapping):
            problems.append(f"{name}: write each word with its meaning, not {meanings!r}")
        else:
            problems += [
                f"{name}: {word!r}: {meaning!r}: word and meaning must be non-blank strings"
                for word, meaning in meanings.items()
                if not (_is_text(word) and _is_text(meaning))
            ]
    return problems


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value.strip())


def misspelt(props: Mapping[str, Any], known: Vocabulary | None = None) -> tuple[str, ...]:
    """Return problems for prop names, kind, and status that nearly match the vocabulary."""
    known = known or vocabulary()
    # (what, word, words): only unknown words are compared.
    asked = [("prop", name, known.props) for name in props if name not in known.props]
    for name, words in (("kind", known.kinds), ("status", known.status)):
        if isinstance(value := props.get(name), str) and value not in words:
            asked.append((name, value, words))
    return tuple(
        f"{what} {word!r} is not in the vocabulary; did you mean {near!r}?"
        for what, word, words in asked
        if (near := _near_word(word, tuple(words))) is not None
    )


# Every Thing that leaves a stage is checked, and the names repeat.
@lru_cache(maxsize=4096)
def _near_word(word: str, known: tuple[str, ...]) -> str | None:
    return next((other for other in known if _is_near(word, other)), None)


def _is_near(word: str, known: str) -> bool:
    """Return whether two words differ by one slip, or by two from eight letters on.

    Short words, a different first letter, and plurals count as different words.
    """
    if len(known) < 4 or word[:1] != known[:1] or word == f"{known}s" or known == f"{word}s":
        return False
    return slips(word, known) <= (2 if len(known) >= 8 else 1)


def slips(one: str, other: str) -> int:
    """Return the number of letters added, omitted, changed, or swapped with the next.

    This is the restricted edit distance of Damerau (1964) and Levenshtein (1966).
    """
    before: list[int] = []
    above = list(range(len(other) + 1))
    for row, letter in enumerate(one, start=1):
        here = [row]
        for column, wanted in enumerate(other, start=1):
            cost = min(above[column] + 1, here[-1] + 1, above[column - 1] + (letter != wanted))
            swapped = row > 1 and column > 1 and letter == other[column - 2]
            if swapped and one[row - 2] == wanted:
                cost = min(cost, before[column - 2] + 1)
            here.append(cost)
        before, above = above, here
    return above[-1]


MARKS: Final = ("group", "group_size", "group_last", "group_key")
_BELOW: Final = "/"


def group_marks(name: str, members: Sequence[Thing]) -> dict[str, Any]:
    """Return the props that mark the members of a new group inside their current group.

    Blocks that group (accumulate, group_by, tee) set `group`, `group_size`, and `group_last`, the
    id of the last member. Things without these props form one group: the whole stream. A nested
    group has a path as its name: `outer#0/inner#3`.
    """
    around = group_of(members)
    full = name if around is None else f"{around}{_BELOW}{name}"
    return {"group": full, "group_size": len(members), "group_last": members[-1].id}


def children(thing: Thing, props: Sequence[Mapping[str, Any]]) -> Iterator[Thing]:
    """Yield a child of a Thing for each of several props, on demand, as members of a new group.

    Its size and last member are known from the start: later stages needn't wait for its end.
    """
    last = child(thing, len(props) - 1)
    marks = {**group_marks(thing.id, [last]), "group_size": len(props)}
    for number, own in enumerate(props):
        yield child(thing, number, {**marks, **own})


def group_of(things: Sequence[Thing], *, whole: bool = False) -> str | None:
    """Return the innermost group that all Things share.

    With `whole`, if the Things are an entire group, return the group around it.
    """
    names = [str(thing.props.get("group") or "").split(_BELOW) for thing in things]
    # The shortest path limits the comparison, so zip may drop the rest.
    levels = zip(*names, strict=False)
    shared = [level[0] for level in takewhile(lambda level: len(set(level)) == 1, levels)]
    if whole and names.count(shared) == len(names):
        shared = shared[:-1]
    return _BELOW.join(shared) or None


def regrouped(thing: Thing, group: str | None) -> Thing:
    """Return the Thing in a group, or in none; props of its former group become None."""
    if thing.props.get("group") == group:
        return thing
    blank = dict.fromkeys(name for name in MARKS if name in thing.props)
    return thing.plus({**blank, "group": group})
