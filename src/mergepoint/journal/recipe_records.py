"""The journal of a recipe's run: its stages, its end, and the purpose of its calls.

The outline of a recipe names only its stages. The calls depend on the items, so the outline does
not contain their paths. The end of a run is a record of its own, at `<recipe>/end`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Final

from mergepoint.core.paths import SEPARATOR, ancestors, join
from mergepoint.journal.call_records import CallRecord, to_json_value
from mergepoint.tree.leaves import Call
from mergepoint.tree.nodes import Order
from mergepoint.tree.transform import from_outline

NOTE: Final = "note"
"""The model in records that no model answered: notes of blocks, and the end of a run."""

FAILED: Final = "RecipeFailed"
"""The error type of a run in which every item failed."""

_STAGE: Final = "stage"
_END: Final = "end"
_LISTS: Final = ("things", "stages", "reasons", "lineage")
_REASONS: Final = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class StageCount:
    """The number of Things that a stage received, emitted, and emitted as failed."""

    stage: str
    came: int
    left: int
    failed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lineage:
    """The work of one stage on one Thing: the props that it `set`, and the calls that it made.

    `drafted` says whether it wrote the content. `parents` are the ids of the Things that a new
    Thing was made from.
    """

    thing: str
    stage: str
    parents: tuple[str, ...] = ()
    set: tuple[str, ...] = ()
    drafted: bool = False
    calls: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeEnd:
    """The end of a recipe's run.

    `stopped` names the limit that ended it, blank if none did. `count` Things are in the output, of
    which `failed` failed; `things` contains the first of them as `id`, `content` and `props`.
    `reasons` contains place and cause of the first Things that failed anywhere. `lineage` is in the
    order in which Things left their stages, and `untold` counts entries that had no room in it.
    """

    stopped: str = ""
    count: int = 0
    failed: int = 0
    things: tuple[Mapping[str, Any], ...] = ()
    stages: tuple[StageCount, ...] = ()
    reasons: tuple[str, ...] = ()
    lineage: tuple[Lineage, ...] = ()
    untold: int = 0

    @property
    def good(self) -> tuple[Mapping[str, Any], ...]:
        """Return the Things that did not fail."""
        return tuple(one for one in self.things if not _failed(one))

    @property
    def broken(self) -> int:
        """Return the number of Things that failed, including those not in the output."""
        return max(self.failed, sum(stage.failed for stage in self.stages))

    @property
    def is_failure(self) -> bool:
        """Return whether a Thing failed and the output has none that did not fail."""
        return self.broken > 0 and self.count == self.failed

    def to_plain(self) -> dict[str, Any]:
        """Return JSON data, without what is empty."""
        lineage = json.loads(json.dumps(list(map(asdict, self.lineage))))  # its tuples as lists
        return {
            "stopped": self.stopped,
            "count": self.count,
            "failed": self.failed,
            "things": to_json_value(list(self.things)),
            "stages": list(map(asdict, self.stages)),
            "reasons": list(self.reasons),
            "lineage": [{name: value for name, value in one.items() if value} for one in lineage],
            "untold": self.untold,
        }

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> RecipeEnd:
        """Return the end that JSON data describes. Raises TypeError or ValueError otherwise."""
        lists = {name: tuple(data.get(name, ())) for name in _LISTS}
        return cls(
            stopped=str(data.get("stopped", "")),
            count=int(data.get("count", 0)),
            failed=int(data.get("failed", 0)),
            things=lists["things"],
            stages=tuple([StageCount(**one) for one in lists["stages"]]),
            lineage=tuple(map(_lineage, lists["lineage"])),
            reasons=tuple(map(str, lists["reasons"])),
            untold=int(data.get("untold", 0)),
        )


def is_recipe(shape: Mapping[str, Any]) -> bool:
    """Return whether an outline is that of a recipe's run."""
    return _STAGE in shape


def end_path(recipe: str) -> str:
    """Return the path of the record of a recipe run's end."""
    return join(recipe, _END)


def recipe_end(shape: Mapping[str, Any], records: Iterable[CallRecord]) -> RecipeEnd | None:
    """Return the end of a recipe's run; None if it has not ended, or is not a recipe's.

    A run that was resumed has several such records; the last counts.
    """
    if not is_recipe(shape):
        return None
    path = end_path(str(shape["path"]))
    ends = [record for record in records if record.key.path == path and record.answered]
    if not ends:
        return None
    value = ends[-1].value
    return RecipeEnd.from_plain(value) if isinstance(value, Mapping) else RecipeEnd()


def failed_calls(records: Iterable[CallRecord]) -> list[str]:
    """Return the paths of the calls that failed and have no answer, each once."""
    found = list(records)
    settled = {record.path for record in found if record.settled and record.kind != "inner"}
    failed = (record.path for record in found if record.failed and record.kind != "inner")
    return [path for path in dict.fromkeys(failed) if path not in settled]


def failures_said(end: RecipeEnd | None, calls: Sequence[str]) -> str:
    """Return the numbers of failed Things and calls in words, or an empty string."""
    said = []
    if end is not None and end.broken:
        said.append(f"{end.broken:,} Thing{'s' * (end.broken != 1)} failed")
    if end is not None and end.failed:
        said.append(f"{end.failed:,} of {end.count:,} that came out")
    if calls:
        said.append(f"{len(calls):,} call{'s' * (len(calls) != 1)} failed")
    return ", ".join(said)


def error_of_end(shape: Mapping[str, Any], end: RecipeEnd | None) -> dict[str, str] | None:
    """Return the error of a recipe's run, or None if it finished and not all of it failed.

    Args:
        shape: The outline of the run.
        end: The end of the run, or None if it has not ended.
    """
    path = str(shape["path"])
    if end is None:
        message = f"unfinished: the recipe {path} was stopped before its end"
        return {"type": "Unfinished", "message": message, "path": end_path(path), "node": _END}
    if end.is_failure:
        why = "; ".join(end.reasons[:_REASONS]) or "no reason is on record"
        message = f"{failures_said(end, ())}: {why}"
        return {"type": FAILED, "message": message, "path": path, "node": path}
    return None


TOOLS: Final = "step with tools"
_TOOL: Final = re.compile(r"tool_\d{2,}")


class CallsOfItems:
    """The set of paths below nodes whose calls depend on items.

    These are the stages of a recipe's run and, in a tree, its Calls, which may run recipes, and
    steps with tools.
    """

    def __init__(self, shape: Mapping[str, Any]) -> None:
        self._root = f"{shape['path']}{SEPARATOR}" if is_recipe(shape) else None
        self._order = None if self._root else Order(from_outline(shape), str(shape["path"]))
        self._calls = {at for at, kind in _kinds(shape) if kind == Call.kind}
        self._with_tools = {at for at, kind in _kinds(shape) if kind == TOOLS}

    def __contains__(self, path: str) -> bool:
        """Return whether a call at a path may exist although no outline names it."""
        if self._root is not None:
            return path.startswith(self._root)
        if self._order is None:
            return False
        if any(self._is_tool(at, self._order) for at in (path, *ancestors(path))):
            return True
        return any(self._order.static(at) in self._calls for at in ancestors(path))

    def _is_tool(self, path: str, order: Order) -> bool:
        """Return whether a path is a tool's execution; a graph as a tool makes calls below it."""
        parent, _, name = path.rpartition(SEPARATOR)
        return bool(_TOOL.fullmatch(name)) and order.static(parent) in self._with_tools


def _kinds(shape: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    yield str(shape["path"]), TOOLS if shape.get("tools") else str(shape["kind"])
    for inner in shape.get("nodes", ()):
        yield from _kinds(inner)


def _lineage(data: Mapping[str, Any]) -> Lineage:
    lists = {
        "parents": tuple(data.get("parents", ())),
        "set": tuple(data.get("set", ())),
        "calls": tuple(data.get("calls", ())),
    }
    return Lineage(**{**data, **lists})


def _failed(thing: Mapping[str, Any]) -> bool:
    return bool(thing.get("props", {}).get("status") == "failed")
