"""Two runs as the data of a page, in the format `Comparison` of `assets/page.d.ts`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from mergepoint.report.comparison import Comparison

Data = dict[str, Any]


def comparison_data(found: Comparison, runs: Sequence[Mapping[str, Any]]) -> Data:
    """Return a comparison as the data of a page.

    Args:
        found: The comparison.
        runs: Both runs as the data of the page, in the format `Run`.
    """
    calls = [{call["path"]: at for at, call in enumerate(run["calls"])} for run in runs]
    return {
        "first_divergence": found.first_divergence,
        "reason": found.reason,
        "sentence": found.sentence,
        "rows": [
            {
                "path": row.path,
                "kind": row.kind,
                "why": list(row.why),
                "because": row.because,
                "a": calls[0].get(row.path, -1),
                "b": calls[1].get(row.path, -1),
            }
            for row in found.calls
        ],
        "settings": [
            {"key": name, "a": setting_text(before), "b": setting_text(after)}
            for name, (before, after) in found.settings.items()
        ],
    }


def setting_text(value: Any) -> str:
    """Return the value of a setting as text; "" if it isn't set."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and all(isinstance(one, str) for one in value):
        return "\n".join(value)
    return json.dumps(value, ensure_ascii=False, default=str)
