"""Records as rows: plain dicts, and data frames of pandas."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mergepoint.core.errors import MergepointError
from mergepoint.journal.call_records import SHOWN_SOURCES, CallRecord, to_json_value
from mergepoint.tree.prompts import as_text


def row_of(record: CallRecord) -> dict[str, Any]:
    """Return a call as a flat dict; None stands for what is unknown or not there."""
    usage, error = record.usage or {}, record.error or {}
    value = None if record.kind == "step" else to_json_value(record.value)
    return {
        "path": record.path,
        "kind": record.kind,
        "model": record.model,
        "source": SHOWN_SOURCES[record.source],
        "attempt": record.attempt,
        "started": datetime.fromtimestamp(record.started, UTC),
        "seconds": round(max(0.0, record.ended - record.started), 6),
        "input_tokens": usage.get("input_tokens"),
        "output_tokens": usage.get("output_tokens"),
        "cost": record.cost,
        "prompt": as_text(record.prompt),
        "answer": record.response or None,
        "value": value,
        "error": error.get("type"),
        "message": error.get("message"),
    }


def dataframe(rows: Iterable[Mapping[str, Any]], columns: Sequence[str] | None = None) -> Any:
    """Return rows as a data frame of pandas. Raises MergepointError if pandas isn't installed."""
    try:
        # Loaded here: pandas takes half a second, and nothing else needs it.
        import pandas as pd
    except ImportError as error:
        raise MergepointError(
            "data frames need pandas, which is not installed: pip install pandas. Without it, "
            "rows() returns the same as plain dicts."
        ) from error
    return pd.DataFrame([*rows], columns=None if columns is None else [*columns])
