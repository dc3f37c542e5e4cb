"""The header of a run, and the protocols of a journal and of a store of journals."""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Protocol, Self, get_args

import orjson
from langchain_core.messages import BaseMessage, messages_from_dict, messages_to_dict

from mergepoint.core.paths import name_problem, nearest
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.checked_lines import JournalError, encode
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import outcomes
from mergepoint.journal.redact import Redact, safe, suspicious
from mergepoint.tree.transform import from_outline

FORMAT = "mergepoint.journal/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunHeader:
    """The input of a run and the outline of its tree, as they were at its start.

    Args:
        run_id: The id of the run.
        created_at: The time of its start.
        seed: The seed of random numbers in prompt functions.
        inputs: The inputs, after masking.
        messages: The messages, after masking.
        tree: The outline of the tree.
        requests: A digest of the static part of each step's request, by path.
        masked: The fields that are masked and so differ from the run's input.
        cleaned: The fields in which lone surrogates were replaced.
        meta: Your own data, to find the run by.
        hidden: Digests of the masked fields (see `with_hidden_digests`), so that a resumed run can
        check its input.
    """

    run_id: str
    created_at: datetime
    seed: int
    inputs: Mapping[str, Any]
    messages: tuple[BaseMessage, ...]
    tree: Mapping[str, Any]
    requests: Mapping[str, str] = field(default_factory=dict)
    masked: tuple[str, ...] = ()
    cleaned: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    hidden: Mapping[str, Any] = field(default_factory=dict)

    @property
    def shape(self) -> Mapping[str, Any]:
        """Return the outline of the run's tree. Raises JournalError if there is none."""
        if not self.tree:
            raise JournalError(
                f"the journal of {self.run_id!r} names no tree: it is a cassette, whose records "
                "are of any number of runs, and not the journal of a run"
            )
        return self.tree

    def to_plain(self) -> dict[str, Any]:
        """Return the header as JSON data."""
        plain = {
            "format": FORMAT,
            "run_id": self.run_id,
            "created_at": self.created_at.isoformat(),
            "seed": self.seed,
            "inputs": dict(self.inputs),
            "messages": messages_to_dict(self.messages),
            "tree": dict(self.tree),
            "requests": dict(self.requests),
        }
        rare = {
            "masked": list(self.masked),
            "cleaned": list(self.cleaned),
            "meta": dict(self.meta),
            "hidden": dict(self.hidden),
        }
        return {**plain, **{name: value for name, value in rare.items() if value}}

    @classmethod
    def from_plain(cls, data: Mapping[str, Any]) -> RunHeader:
        """Return the header from its JSON data.

        Raises KeyError, TypeError, ValueError or OverflowError for data that no run writes, so that
        later code can rely on its shape.
        """
        _check_shape(data)
        return cls(
            run_id=data["run_id"],
            created_at=datetime.fromisoformat(data["created_at"]),
            seed=data["seed"],
            inputs=data["inputs"],
            messages=tuple(messages_from_dict(data["messages"])),
            tree=data["tree"],
            requests=data["requests"],
            masked=tuple(data.get("masked", ())),
            cleaned=tuple(data.get("cleaned", ())),
            meta=data.get("meta", {}),
            hidden=data.get("hidden", {}),
        )

    def differing(self, inputs: Mapping[str, Any], messages: Sequence[BaseMessage]) -> list[str]:
        """Return the masked fields whose values differ from those at the start of the run.

        Raises KeyError if the header has no digest of a masked field.
        """
        salt = bytes.fromhex(self.hidden["salt"])
        values = {"inputs": _plain_inputs(inputs), "messages": _plain_messages(messages)}
        return [
            name for name in self.masked if self.hidden[name] != _slow_digest(values[name], salt)
        ]


def _check_shape(data: Mapping[str, Any]) -> None:
    maps = [data["inputs"], data["tree"], data["requests"], data.get("meta", {})]
    hidden = data.get("hidden", {})
    if not all(isinstance(one, Mapping) for one in (*maps, hidden)):
        raise TypeError("inputs, tree, requests, meta and hidden are objects")
    names = hidden.get("names", [])
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TypeError("hidden.names is a list of texts")
    datetime.fromisoformat(data["created_at"]).astimezone()
    if not data["tree"]:  # a cassette, whose records may belong to many runs
        return
    if not isinstance(data["tree"]["path"], str):
        raise TypeError("tree.path must be a string")
    if "stage" not in data["tree"]:  # a recipe's plan has a shape of its own
        from_outline(data["tree"])


def with_hidden_digests(header: RunHeader, redact: Redact | None) -> RunHeader:
    """Return the header with digests of the inputs and messages that will be masked.

    `names` lists the inputs with masked values. The digests use scrypt with a salt of their own:
    with a fast hash, a reader of the journal could find short secrets by trying.
    """
    plain = header.to_plain()
    body = encode({"inputs": plain["inputs"], "messages": plain["messages"]})
    # One search through the bytes is enough for almost every run: most inputs have no secrets.
    if redact is None and not suspicious(body):
        return header
    masked = safe(plain, redact).get("masked", ())
    if not masked:
        return header
    salt = secrets.token_bytes(16)
    values = {
        "inputs": _plain_inputs(header.inputs),
        "messages": _plain_messages(header.messages),
    }
    hidden: dict[str, Any] = {name: _slow_digest(values[name], salt) for name in masked}
    if "inputs" in masked:
        hidden["names"] = masked_inputs(header.inputs, redact)
    return replace(header, hidden={"salt": salt.hex(), **hidden})


def masked_inputs(inputs: Mapping[str, Any], redact: Redact | None = None) -> list[str]:
    """Return the names of the inputs in which something is masked before they are written."""
    return [
        name
        for name, value in inputs.items()
        if safe({"inputs": {name: value}}, redact)["inputs"] != {name: value}
    ]


def _plain_inputs(inputs: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(inputs), option=orjson.OPT_SORT_KEYS | orjson.OPT_NON_STR_KEYS)


def _plain_messages(messages: Sequence[BaseMessage]) -> bytes:
    """Return the contents of messages; ids do not count, since a graph creates new ones."""
    digests = Digests()
    return b"".join(digests.of(message) for message in messages)


def _slow_digest(value: bytes, salt: bytes) -> str:
    # 128 * n * r bytes: each try of a secret costs 32 MiB; maxmem is the limit above that.
    found = hashlib.scrypt(value, salt=salt, n=2**15, r=8, p=1, maxmem=2**26, dklen=32)
    return found.hex()


class Journal(Protocol):
    """A list of call records that only grows."""

    @property
    def keyed(self) -> bool:
        """Return whether its records are looked up by request fingerprint."""
        ...

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        ...

    def append(self, record: CallRecord) -> None:
        """Write one record."""
        ...


class MemoryJournal:
    """A journal that lives as long as the process; safe to write from several threads."""

    keyed = False

    def __init__(self, records: Iterable[CallRecord] = ()) -> None:
        self._records = list(records)
        self._lock = threading.Lock()

    @property
    def records(self) -> tuple[CallRecord, ...]:
        """Return all records in the order in which they were written."""
        with self._lock:
            return tuple(self._records)

    def append(self, record: CallRecord) -> None:
        """Write one record; starts of calls are dropped, since nothing survives a crash."""
        with self._lock:
            # A start tells a resumed run of a call in progress, and nobody resumes from memory.
            if not record.begun:
                self._records.append(record)


Sync = Literal["edges", "record", "off"]
"""When a store flushes written records to the disk, so that they survive a power failure.

- `"edges"`: at the begin and end of a run, at failed calls and at gates.
- `"record"`: every record, before its answer is used. A group of records that are written together
  is flushed once.
- `"off"`: never; the operating system writes them to the disk within seconds to minutes.

Records survive a crash of the process with each of them.
"""


class RunJournal(Journal, Protocol):
    """The journal of one run, locked by one process until it is closed."""

    @property
    def header(self) -> RunHeader:
        """Return the header of the run."""
        ...

    def close(self) -> None:
        """Flush the journal and unlock the run; a second call does nothing."""
        ...

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...


class Store(Protocol):
    """A store of journals. Each method raises JournalError, with the fix, if it fails."""

    @property
    def sync(self) -> Sync:
        """Return when writes are flushed, see `Sync`."""
        ...

    @property
    def redact(self) -> Redact | None:
        """Return the hook that changes texts before they are written."""
        ...

    def create(self, header: RunHeader) -> RunJournal:
        """Create the journal of a new run. Raises JournalError if its id is taken."""
        ...

    def open(self, run_id: str) -> RunJournal:
        """Open a run to append to it. Raises JournalError while another process writes it."""
        ...

    def read(self, run_id: str) -> tuple[RunHeader, tuple[CallRecord, ...]]:
        """Return header and records of a run, also while it is being written."""
        ...

    def has(self, run_id: str) -> bool:
        """Return whether a run with this id has begun. Raises JournalError for an invalid id."""
        ...

    def held(self, run_id: str) -> bool:
        """Return whether a process writes a run now."""
        ...

    def runs(self) -> Sequence[str]:
        """Return the ids of all runs, the latest first."""
        ...

    def folder_of(self, run_id: str) -> Path | None:
        """Return the folder for a run's other files, or None if the store has no folders."""
        ...


def checked_run_id(run_id: str) -> str:
    """Return a run's id. Raises JournalError unless every system takes it as a folder name."""
    problem = name_problem(run_id)
    if problem is None and (run_id in (".", "..") or "\\" in run_id):
        problem = "it names a place in the file system; use letters, digits, '-', '_' and '.'"
    if problem is not None:
        raise JournalError(f"{run_id!r} isn't a run id: {problem}")
    return run_id


def checked_sync(sync: Sync) -> Sync:
    """Return the way to flush. Raises ValueError that lists the valid ones."""
    if sync not in get_args(Sync):
        raise ValueError(f"sync is one of {', '.join(map(repr, get_args(Sync)))}, not {sync!r}")
    return sync


def unknown_run(place: object, run_id: str, known: Iterable[str]) -> JournalError:
    """Return the error for a run that a store does not have."""
    known = tuple(known)
    there = f"the newest are: {', '.join(known[:5])}" if known else "there are none yet"
    return JournalError(f"there is no run {run_id!r} in {place}{nearest(run_id, known)}; {there}")


def known_run(place: object, run_id: str) -> JournalError:
    """Return the error for a new run whose id was used before."""
    return JournalError(
        f"there is a run {run_id!r} in {place} already; to continue it, resume it, or use "
        "another id for the new run"
    )


def without_starts(
    records: tuple[CallRecord, ...], going: Callable[[], bool]
) -> tuple[CallRecord, ...]:
    """Return the records without starts of calls, as a reader of a growing journal needs them."""
    # `going` tries a lock or asks a database, so it is called only if a start needs it.
    if not any(record.begun for record in records):
        return records
    return outcomes(records, over=not going())
