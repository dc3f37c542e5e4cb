"""Other Python processes that write to a store, which tests start and kill."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

PRELUDE = """
import json, os, random, resource, signal, sys
from datetime import UTC, datetime
from pathlib import Path
from mergepoint.journal.file_journal import FileJournal, read_journal, store_at
from mergepoint.journal.checked_lines import JournalError, read_lines
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.stores import RunHeader

def header(run="r1"):
    return RunHeader(
        run_id=run, created_at=datetime.now(UTC), seed=1, inputs={}, messages=(), tree={}
    )

def record(number, run="r1"):
    return CallRecord(key=CallKey(run, "", "a"), prompt=str(number), response="x" * (number % 997))
"""


def started(script: str, *args: object) -> subprocess.Popen[str]:
    """Start another Python process, in which `header` and `record` are defined."""
    return subprocess.Popen(  # noqa: S603  (this very Python, with a script of a test)
        [sys.executable, "-c", PRELUDE + script, *map(str, args)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def said(script: str, *args: object) -> Any:
    """Return the JSON that another Python process prints; it must succeed."""
    with started(script, *args) as process:
        out, _ = process.communicate()
    assert process.returncode == 0
    return json.loads(out)
