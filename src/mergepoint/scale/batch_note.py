"""The note next to a results file: which batch it is of, and what its calls knew of the inputs."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mergepoint.journal.checked_lines import file_errors, write_whole

_TEXTS: Final = ("batch", "store", "fingerprint", "target")
_PASSWORD: Final = re.compile(r"(://[^:/@]*):[^@]*@")


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchNote:
    """The content of a note. Notes of earlier versions have the first three fields only.

    Attributes:
        batch: The id of the batch.
        store: The place of the journals: a folder, or a database URL with its password masked.
        fingerprint: Digest of the target and its options.
        target: The target as the latest call named it.
        inputs: The number of inputs of the latest call; None if it wasn't known at its start.
        starts: When each call started, as ISO times, the first one first.
    """

    batch: str = ""
    store: str = ""
    fingerprint: str = ""
    target: str = ""
    inputs: int | None = None
    starts: tuple[str, ...] = ()

    @classmethod
    def beside(cls, results: Path) -> BatchNote | None:
        """Return the note of a results file, None if it has none that can be read."""
        data = note_data(note_path(results))
        if not data:
            return None
        inputs, starts = data.get("inputs"), data.get("starts")
        return cls(
            **{name: str(data.get(name) or "") for name in _TEXTS},
            inputs=inputs if isinstance(inputs, int) else None,
            starts=tuple(map(str, starts)) if isinstance(starts, list) else (),
        )


def without_password(store: str) -> str:
    """Return the address of a store with its password masked."""
    return _PASSWORD.sub(r"\1:***@", store)


def note_path(results: Path) -> Path:
    """Return the path of a results file's note."""
    return results.with_name(f"{results.name}.batch")


def note_data(path: Path) -> dict[str, Any]:
    """Return the data of a note; empty without a note, or if a killed process left half of it.

    Raises JournalFileError if the file can't be read.
    """
    with file_errors("read", path):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (FileNotFoundError, ValueError, RecursionError):
            return {}
    if not isinstance(data, dict):
        return {}
    # Notes of earlier versions have the URL as it was given.
    store = data.get("store")
    return {**data, "store": without_password(store)} if isinstance(store, str) else data


def write_note(path: Path, data: Mapping[str, Any]) -> None:
    """Write a note. Raises JournalFileError if it can't be written."""
    with file_errors("write", path):
        write_whole(path, f"{json.dumps(data, indent=1)}\n".encode(), flush=False)


def note_start(results: Path, *, target: str, inputs: int | None) -> None:
    """Note that a call of the batch starts. Raises JournalFileError, as `write_note`."""
    path = note_path(results)
    data = note_data(path)
    starts = data.get("starts")
    now = datetime.now(UTC).isoformat(timespec="milliseconds")
    known = [*starts, now] if isinstance(starts, list) else [now]
    write_note(path, {**data, "target": target, "inputs": inputs, "starts": known})
