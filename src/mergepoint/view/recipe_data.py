"""A recipe's run as the data of a page: its stages, and its Things with their lineage."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Final

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recipe_records import Lineage, RecipeEnd
from mergepoint.streams.provenance import lineage_order
from mergepoint.streams.recipe_drawing import DrawnStage, recipe_svg
from mergepoint.view.texts import Texts, plain

Data = dict[str, Any]

SCORE: Final = "score"


class RecipeThings:
    """The Things of a recipe's run, as far as its lineage and its calls tell.

    A journal holds the content and the props of results. Of other Things, the content is the answer
    of the last call that wrote it, and the score the one in the answer of the call that gave it.

    Args:
        inputs: The items that the recipe was given.
        end: The end of the run, None if it has none.
        answers: The answered calls, by path with the host's prefix.
        texts: The texts of the page.
    """

    def __init__(
        self,
        inputs: Mapping[str, Any],
        end: RecipeEnd | None,
        answers: Mapping[str, CallRecord],
        texts: Texts,
    ) -> None:
        self._end = end
        self._lineage: Sequence[Lineage] = () if end is None else end.lineage
        self._answers = answers
        self._texts = texts
        items = inputs.get("items")
        self._items: dict[str, Any] = (
            {str(number): item for number, item in enumerate(items)}
            if isinstance(items, list)
            else {}
        )
        self._results = {} if end is None else {str(one["id"]): one for one in end.things}

    def to_page(self, stages: Sequence[tuple[str, str]]) -> Data:
        """Return the recipe as the data of a page; `stages` are ids and paths of its stages."""
        counts = {} if self._end is None else {one.stage: one for one in self._end.stages}
        return {
            "stages": [
                {
                    "id": stage,
                    "path": path,
                    "came": counts[stage].came if stage in counts else 0,
                    "left": counts[stage].left if stage in counts else 0,
                    "failed": counts[stage].failed if stage in counts else 0,
                }
                for stage, path in stages
            ],
            "things": self._things(),
            "lineage": [
                {
                    "stage": one.stage,
                    "thing": one.thing,
                    "wrote": [*(("content",) if one.drafted else ()), *one.set],
                    "calls": list(one.calls),
                    "parents": list(one.parents),
                    "drafted": one.drafted,
                }
                for one in self._lineage
            ],
            "stopped": "" if self._end is None else self._end.stopped,
            "reasons": [] if self._end is None else list(self._end.reasons),
        }

    def _things(self) -> list[Data]:
        entries: dict[str, list[Lineage]] = {}
        for one in self._lineage:
            entries.setdefault(one.thing, []).append(one)
        used = {parent for one in self._lineage for parent in one.parents}
        known = {*entries, *used, *self._items} - self._results.keys()
        names = [*sorted(known, key=lineage_order), *self._results]
        return [self._row(name, entries.get(name, ()), used=name in used) for name in names]

    def _row(self, name: str, entries: Sequence[Lineage], *, used: bool) -> Data:
        result = self._results.get(name)
        content, props = self._content(name, entries), self._props(name)
        score, stale = self._score(entries, props)
        end, why = self._fate(name, used=used)
        return {
            "id": name,
            "content": None if content is None else self._texts.value(content),
            "props": plain(props),
            "parents": list(entries[0].parents) if entries else [],
            "end": end,
            "stage": entries[-1].stage if entries else "",
            "why": why if result is None else _why_of(props),
            "score": score,
            "stale": stale,
        }

    def _fate(self, name: str, *, used: bool) -> tuple[str, str]:
        """Return where a Thing ended, and why."""
        reason = next((one for one in self._reasons if _names(one, name)), "")
        if (result := self._results.get(name)) is not None:
            failed = result.get("props", {}).get("status") == "failed"
            return ("failed" if failed else "result"), reason
        if self._end is None:
            return "unfinished", ""
        if reason:
            return "failed", reason
        if used:
            return "consumed", "others were made of it"
        stopped = self._end.stopped
        return "dropped", f"the run was stopped: {stopped}" if stopped else "not among the results"

    @cached_property
    def _made_by(self) -> Counter[str]:
        """Return the number of Things whose content each call made."""
        return Counter(call for one in self._lineage if one.drafted for call in one.calls)

    @property
    def _reasons(self) -> Sequence[str]:
        return () if self._end is None else self._end.reasons

    def _content(self, name: str, entries: Sequence[Lineage]) -> Any:
        if name in self._results:
            return self._results[name].get("content")
        for one in reversed(entries):
            if one.drafted:
                answered = [self._answers[call] for call in one.calls if call in self._answers]
                # The answer of a call that made several Things is the content of none of them.
                alone = bool(answered) and self._made_by[answered[-1].key.full_path] == 1
                return answered[-1].response if alone else None
        item = self._items.get(name)
        return item.get("content") if isinstance(item, Mapping) else item

    def _props(self, name: str) -> Mapping[str, Any]:
        found = self._results.get(name) or self._items.get(name)
        props = found.get("props") if isinstance(found, Mapping) else None
        return props if isinstance(props, Mapping) else {}

    def _score(
        self, entries: Sequence[Lineage], props: Mapping[str, Any]
    ) -> tuple[float | None, bool]:
        """Return the score of a Thing, and whether its content changed after it was given."""
        value, stale = _number(props.get(SCORE)), False
        given: float | None = None
        for one in entries:
            told = self._told(one) if SCORE in one.set else None
            if told is not None:
                given, stale = told, False
            elif one.drafted:
                # A stage that changes the content drops what was said about the old one.
                stale = given is not None
            elif SCORE in one.set:  # set by a block that asked nobody: the value isn't recorded
                given, stale = None, False
        if value is not None:
            return value, False
        return given, stale

    def _told(self, entry: Lineage) -> float | None:
        """Return the score in the answers of the calls of an entry."""
        for call in reversed(entry.calls):
            record = self._answers.get(call)
            if record is not None and (score := _score_of(record)) is not None:
                return score
        return None


def _score_of(record: CallRecord) -> float | None:
    """Return the score in an answer: in its text, or in the arguments of its structured output."""
    if (score := _score_in(record.response)) is not None or record.message is None:
        return score
    found = (_number(call["args"].get(SCORE)) for call in record.message.tool_calls)
    return next((score for score in found if score is not None), None)


def _score_in(answer: str) -> float | None:
    try:
        found = json.loads(answer)
    except ValueError:
        return None
    return _number(found.get(SCORE)) if isinstance(found, Mapping) else None


def _number(value: object) -> float | None:
    return value if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _why_of(props: Mapping[str, Any]) -> str:
    return str(props.get("reason") or props.get("error") or "")


def _names(reason: str, thing: str) -> bool:
    """Return whether the reason of a failure is about a Thing: it begins with its id."""
    return reason.startswith(f"{thing} at ")


def recipe_drawing(shape: Mapping[str, Any]) -> str:
    """Return the drawing of a recipe from its outline, which has its stages and no params."""
    return recipe_svg(_drawn(shape, str(shape["path"]), str(shape["path"])))


def _drawn(shape: Mapping[str, Any], name: str, root: str) -> DrawnStage:
    inner = [one for one in shape.get("nodes", ()) if "stage" in one]
    stages = tuple(
        _drawn(one, f"{number} {_label(one)}", root) for number, one in enumerate(inner, 1)
    )
    # A stage holds one block: the box of the block alone says the same.
    if len(stages) == 1 and not stages[0].stages and str(shape["path"]) != root:
        return DrawnStage(path=stages[0].path, name=f"{name} {_label(inner[0])}")
    return DrawnStage(path=str(shape["path"]), name=name, stages=stages)


def _label(shape: Mapping[str, Any]) -> str:
    return str(shape.get("stage") or shape["path"].rpartition("/")[2])
