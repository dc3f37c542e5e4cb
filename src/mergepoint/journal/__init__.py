"""The journal: records of every call in files and databases, transcripts, and replay."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mergepoint.core.lazy import lazy_names

if TYPE_CHECKING:
    from mergepoint.journal.call_records import CallKey as CallKey
    from mergepoint.journal.call_records import CallRecord as CallRecord
    from mergepoint.journal.file_journal import FileJournal as FileJournal
    from mergepoint.journal.file_journal import FileStore as FileStore
    from mergepoint.journal.file_journal import read_journal as read_journal
    from mergepoint.journal.file_journal import store_at as store_at
    from mergepoint.journal.replay import answer_questions as answer_questions
    from mergepoint.journal.replay import open_questions as open_questions
    from mergepoint.journal.segment_store import SegmentStore as SegmentStore
    from mergepoint.journal.sql_journal import SqlStore as SqlStore
    from mergepoint.journal.stores import RunHeader as RunHeader
    from mergepoint.journal.transcript import Transcript as Transcript
    from mergepoint.journal.transcript import Usage as Usage
    from mergepoint.journal.transcript import read_transcript as read_transcript
    from mergepoint.journal.transcript import transcript_of as transcript_of
    from mergepoint.journal.transcript import write_transcript as write_transcript

__all__ = [
    "CallKey",
    "CallRecord",
    "FileJournal",
    "FileStore",
    "RunHeader",
    "SegmentStore",
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
    "mergepoint.journal.call_records": "CallKey CallRecord",
    "mergepoint.journal.file_journal": "FileJournal FileStore read_journal store_at",
    "mergepoint.journal.replay": "answer_questions open_questions",
    "mergepoint.journal.segment_store": "SegmentStore",
    "mergepoint.journal.sql_journal": "SqlStore",
    "mergepoint.journal.stores": "RunHeader",
    "mergepoint.journal.transcript": (
        "Transcript Usage read_transcript transcript_of write_transcript"
    ),
}
if not TYPE_CHECKING:  # to a type checker a module with `__getattr__` has any name
    __getattr__, __dir__ = lazy_names(__name__, _HOMES)
