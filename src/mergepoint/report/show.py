"""Show: everything that one call saw, where it came from, and what became of the answer."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

from mergepoint.record.transcript import Transcript
from mergepoint.report.call_view import CallView as CallView
from mergepoint.report.show_text import to_text as to_text
from mergepoint.report.sight import Sight as Sight

FORMAT = "mergepoint.call/1"


def call_view(transcript: Transcript, path: str) -> CallView:
    """Give the call at a path: exact, or a unique suffix of whole names.

    To look at many calls of one run, make one Sight and ask it. Raises LookupError that lists
    the calls there are, or says why the node has none.
    """
    sight = Sight(transcript)
    return sight.call(sight.find(path))


def to_json(view: CallView) -> dict[str, Any]:
    """Give a call as JSON data."""
    plain = json.dumps({"format": FORMAT, **dataclasses.asdict(view)}, default=str)
    data: dict[str, Any] = json.loads(plain)
    return data
