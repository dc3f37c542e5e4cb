"""Engrave: the file of a cassette, so that recording it again changes what changed and no more."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from langchain_core.messages import BaseMessage

from mergepoint.record.header import RunHeader
from mergepoint.record.lines import JournalError, write_lines
from mergepoint.record.plain import record_to_plain
from mergepoint.record.read_journal import read_journal
from mergepoint.record.record import CallRecord
from mergepoint.record.redact import Redact, safe
from mergepoint.testing.tape import CassetteError, playable

RUN = "cassette"
"""The id of the run that a cassette's header names; its records are of any number of runs."""

_HEADER = RunHeader(
    run_id=RUN,
    created_at=datetime.fromtimestamp(0, UTC),
    seed=0,
    inputs={},
    messages=(),
    tree={},
)
_OF_THE_MOMENT = frozenset(
    {
        "id",
        "request_id",
        "headers",
        "created",
        "created_at",
        "system_fingerprint",
        "total_duration",
        "load_duration",
        "prompt_eval_duration",
        "eval_duration",
    }
)
"""What providers put into an answer's metadata that is another in each recording."""

M = TypeVar("M", bound=BaseMessage)


def engrave(path: Path, records: Iterable[CallRecord], redact: Redact | None) -> None:
    """Write a cassette as a journal, whole or not at all; one that is there gives way.

    Keys are masked in it as in every journal. Raises JournalError where it cannot be written.
    """
    kept = in_order(playable(records), _before(path))
    said = [safe(record_to_plain(timeless(record)), redact) for record in kept]
    write_lines(path, [_HEADER.to_plain(), *said])


def in_order(records: Sequence[CallRecord], before: Sequence[CallRecord]) -> list[CallRecord]:
    """Give records in the order that they have in another recording, new ones where they came.

    Side by side, calls end in another order each time; the file should not tell of that.
    """
    ranks = {call: rank for rank, call in enumerate(_numbered(before))}
    highest = -1
    ranked: list[tuple[int, CallRecord]] = []
    for record, call in zip(records, _numbered(records), strict=True):
        rank = ranks.get(call)
        highest = max(highest, -1 if rank is None else rank)
        ranked.append((highest if rank is None else rank, record))
    return [record for _, record in sorted(ranked, key=lambda one: one[0])]


def timeless(record: CallRecord) -> CallRecord:
    """Give a record without times, and without ids that are others in each recording."""
    message = record.message
    if message is not None:
        told = message.response_metadata.items()
        kept = {key: value for key, value in told if key not in _OF_THE_MOMENT}
        message = message.model_copy(update={"id": None, "response_metadata": kept})
    made = tuple(_renamed(message, record.key.run) for message in record.messages)
    return replace(record, started=0.0, ended=0.0, message=message, messages=made)


def steady(redact: Redact) -> Redact:
    """Give a hook that is seen to leave what it gave as it is.

    It raises CassetteError where it does not: then a replay would ask otherwise than the recording
    did.
    """

    def hook(text: str) -> str:
        shown = redact(text)
        if redact(shown) != shown:
            raise CassetteError(
                f"redact changes its own text {shown!r} again; write it so that what it gave "
                "stays as it is"
            )
        return shown

    return hook


def _numbered(records: Iterable[CallRecord]) -> list[tuple[str, int]]:
    """Give for each record its path, and how many of that path came before it."""
    count: Counter[str] = Counter()
    numbered: list[tuple[str, int]] = []
    for record in records:
        path = record.key.full_path
        numbered.append((path, count[path]))
        count[path] += 1
    return numbered


def _before(path: Path) -> tuple[CallRecord, ...]:
    try:
        return read_journal(path)[1] if path.exists() else ()
    except JournalError:  # it is about to be replaced
        return ()


def _renamed(message: M, run: str) -> M:
    name = str(message.id or "")
    if not run or not name.startswith(f"{run}/"):
        return message
    return message.model_copy(update={"id": RUN + name.removeprefix(run)})
