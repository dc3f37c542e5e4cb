"""Begun: what a run of a recipe began with, as its journal's header tells it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import Fault, RecipeError, TreeError
from mergepoint.record.header import RunHeader
from mergepoint.streams.planned import PlannedRecipe
from mergepoint.streams.planned_calls import outline_of, statics_of
from mergepoint.streams.run_end import end_in_outline
from mergepoint.streams.sealed import plain
from mergepoint.streams.thing import Thing


def header_of(
    planned: PlannedRecipe,
    models: Mapping[str, BaseChatModel],
    items: Iterable[Any] | None,
    *,
    run_id: str,
    seed: int = 0,
    knobs: Mapping[str, Any] | None = None,
) -> RunHeader:
    """Give the header of a new run; items that came from a stream are None.

    Raises RecipeError for Things of another stream.
    """
    return RunHeader(
        run_id=run_id,
        created_at=datetime.now(UTC),
        seed=seed,
        inputs={
            "items": None if items is None else [on_wire(one) for one in items],
            "knobs": dict(knobs or {}),
        },
        messages=(),
        tree=_outline(planned),
        requests=statics_of(planned, models),
    )


def _outline(planned: PlannedRecipe) -> dict[str, Any]:
    outline = outline_of(planned)
    return {**outline, "nodes": [*outline["nodes"], end_in_outline(planned)]}


def changed(header: RunHeader, planned: PlannedRecipe, models: Mapping[str, BaseChatModel]) -> None:
    """Raise TreeError with every stage that is another than a run began with."""
    now, before = statics_of(planned, models), header.requests
    faults = [
        Fault(path, "is another than the run began with; begin one that reuses it (--reuse)")
        for path in sorted(now.keys() | before.keys())
        if now.get(path) != before.get(path)
    ]
    if faults:
        raise TreeError(faults)


def on_wire(item: Any) -> Any:
    """Give an item as JSON data: its content, with its props where it has any."""
    if not isinstance(item, Thing):
        return {"content": plain(Thing(item).content)}
    if item.history:
        raise RecipeError(f"{item.id} is of another stream; give Thing(content, props)")
    props = {"props": plain(item.props)} if item.props else {}
    return {"content": plain(item.content), **props}


def off_wire(data: Mapping[str, Any]) -> Thing:
    """Give an item back."""
    return Thing(data["content"], data.get("props", {}))
