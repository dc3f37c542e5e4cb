"""Names and paths: the one key of transcripts, overrides, events, errors and drawings.

A path is the effective names from the root down, joined with `/`. It is always built from the tree
and passed down; it is never parsed from an engine's data.
"""

from __future__ import annotations

import difflib
import fnmatch
import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path

SEPARATOR = "/"
ITERATION = "iteration_"
# `|` and `:` separate nodes and task ids in LangGraph's namespaces; its `add_node` refuses them.
_REFUSED = "/|:"


def name_problem(name: object) -> str | None:
    """Return what is wrong with a node's name, or None.

    Refused: anything but text, blank, `/`, `|`, `:`, control characters, a leading `__`.
    The last three belong to paths and to the engine's own namespaces.
    """
    if not isinstance(name, str):
        return f"a name must be text, not {type(name).__name__}"
    if not name.strip():
        return "a name must not be blank; omit it to get one by position"
    if name.startswith("__"):
        return f"name {name!r} starts with '__', which is reserved for the exits of blocks"
    for character in name:
        if character in _REFUSED:
            return f"name {name!r} holds {character!r}, which separates paths; use '_' or '-'"
        # Cs is half of a surrogate pair, which no file and no request can encode.
        if unicodedata.category(character) in ("Cc", "Cs"):
            return f"name {name!r} holds the control character U+{ord(character):04X}"
    return None


def effective_name(name: str | None, kind: str, position: int) -> str:
    """Return the explicit name, or `step_01`, `block_02` by 1-based position among siblings."""
    return name if name is not None else f"{kind}_{position:02d}"


def iteration_name(number: int) -> str:
    """Return the name of an iteration of a loop, counted from 1: `iteration_01`."""
    return f"{ITERATION}{number:02d}"


def of_first_iterations(selector: str) -> str:
    """Return a path or selector with `iteration_01` for each iteration, as it is in the tree."""
    names = selector.split(SEPARATOR)
    rounds = [name.startswith(ITERATION) and name[len(ITERATION) :].isdecimal() for name in names]
    first = iteration_name(1)
    return SEPARATOR.join(
        first if is_round else name for name, is_round in zip(names, rounds, strict=True)
    )


def is_file(path: Path) -> bool:
    """Return whether a regular file exists; False too for a name that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):  # too long, or a null in it
        return False


@dataclass(frozen=True, slots=True)
class Place:
    """The place of a node in a tree, with the loops around it.

    `loops` contains the positions in the path that name iterations.
    """

    path: str
    loops: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """Return the last name of the path."""
        return self.path.rpartition(SEPARATOR)[2]

    def child(self, name: str) -> Place:
        """Return the place of a child."""
        return Place(join(self.path, name), self.loops)

    def iteration(self) -> Place:
        """Return the place of a loop's body."""
        position = self.path.count(SEPARATOR) + 1
        return Place(join(self.path, iteration_name(1)), (*self.loops, position))

    def at(self, rounds: Sequence[int]) -> str:
        """Return the path for these iteration numbers of the loops around, outermost first."""
        if not self.loops:
            return self.path
        parts = self.path.split(SEPARATOR)
        for position, number in zip(self.loops, rounds, strict=True):
            parts[position] = iteration_name(number)
        return SEPARATOR.join(parts)


def join(parent: str, name: str) -> str:
    """Return the path of a child."""
    return f"{parent}{SEPARATOR}{name}" if parent else name


def prefixes(path: str) -> list[str]:
    """Return the paths from the root down to this one: `a`, `a/b` and `a/b/c` for `a/b/c`."""
    return list(accumulate(path.split(SEPARATOR), f"{{}}{SEPARATOR}{{}}".format))


def ancestors(path: str) -> list[str]:
    """Return the paths above this one, the nearest first: `a/b` and `a` for `a/b/c`."""
    return prefixes(path)[-2::-1]


def nearest(word: str, known: Iterable[str]) -> str:
    """Return ` (did you mean ...?)` for a misspelled word, or an empty string."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.6)
    return f" (did you mean {', '.join(repr(name) for name in close)}?)" if close else ""


def select(selector: str, paths: Sequence[str]) -> list[str]:
    """Return the paths that a selector matches, in tree order.

    A selector is an exact path, a suffix of whole names that is unique, or a glob: `*` matches one
    name or a part of it, `**` any number of names. Exact wins over suffix and suffix over glob, so
    a name that contains `*` can still be selected by its whole path.

    Raises:
        LookupError: The selector matches nothing, or is a suffix of several paths.
    """
    if selector in paths:
        return [selector]
    ending = [path for path in paths if path.endswith(SEPARATOR + selector)]
    if len(ending) == 1:
        return ending
    if ending:
        raise LookupError(
            f"{selector!r} matches {len(ending)} paths: {', '.join(ending)}; "
            f"pass a whole path, or '**/{selector}' for all of them"
        )
    pattern = selector.split(SEPARATOR)
    found = [path for path in paths if _fits(path.split(SEPARATOR), pattern)]
    if found and any(character in selector for character in "*?["):
        return found
    shown = "\n  ".join(paths)
    endings = {SEPARATOR.join(path.split(SEPARATOR)[-len(pattern) :]) for path in paths}
    near = nearest(selector, [*paths, *sorted(endings.difference(paths))])
    raise LookupError(f"no path matches {selector!r}{near}; the paths are:\n  {shown}")


def _fits(names: list[str], pattern: list[str]) -> bool:
    if not pattern:
        return not names
    # `**` stands for any number of names, none included, so every split is tried.
    if pattern[0] == "**":
        return any(_fits(names[skip:], pattern[1:]) for skip in range(len(names) + 1))
    if not names:
        return False
    return fnmatch.fnmatchcase(names[0], pattern[0]) and _fits(names[1:], pattern[1:])
