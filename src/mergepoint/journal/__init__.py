"""The journal: records of every call in files and databases, transcripts, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.journal.file import FileJournal as FileJournal
    from mergepoint.journal.file import FileStore as FileStore
    from mergepoint.journal.file import read_journal as read_journal
    from mergepoint.journal.header import RunHeader as RunHeader
    from mergepoint.journal.open_store import store_at as store_at
    from mergepoint.journal.questions import answer_questions as answer_questions
    from mergepoint.journal.questions import open_questions as open_questions
    from mergepoint.journal.records import CallKey as CallKey
    from mergepoint.journal.records import CallRecord as CallRecord
    from mergepoint.journal.sql import SqlStore as SqlStore
    from mergepoint.journal.transcript import Transcript as Transcript
    from mergepoint.journal.transcript import read_transcript as read_transcript
    from mergepoint.journal.transcript import transcript_of as transcript_of
    from mergepoint.journal.transcript import write_transcript as write_transcript
    from mergepoint.journal.usage import Usage as Usage

__all__ = [
    "CallKey",
    "CallRecord",
    "FileJournal",
    "FileStore",
    "RunHeader",
    "SqlStore",
    "Transcript",
    "Usage",
    "answer_questions",
    "open_questions",
    "read_journal",
    "read_transcript",
    "store_at",
    "transcript_of",
    "write_transcript",
]

_HOMES = {
    "mergepoint.journal.file": "FileJournal FileStore read_journal",
    "mergepoint.journal.header": "RunHeader",
    "mergepoint.journal.open_store": "store_at",
    "mergepoint.journal.questions": "answer_questions open_questions",
    "mergepoint.journal.records": "CallKey CallRecord",
    "mergepoint.journal.sql": "SqlStore",
    "mergepoint.journal.transcript": ("Transcript read_transcript transcript_of write_transcript"),
    "mergepoint.journal.usage": "Usage",
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
