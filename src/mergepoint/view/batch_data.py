"""The results of a batch as the data of a page, in the format `Batch` of `assets/page.d.ts`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mergepoint.core.text import clean_text
from mergepoint.tree.prompts import as_text
from mergepoint.view.texts import plain

_WORDS = 200  # characters of a result: the whole text is in the page of its run
_MESSAGE = 500  # characters of an error
_SEARCHED = 8  # times as many characters of a text are searched for its first words
_LARGEST = 2**53  # JavaScript has no larger integers

ErrorKind = tuple[str, str, str]
"""Type, path, and message of an error."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRow:
    """A result as the page shows it. `error` is None unless it failed.

    `cost` is None if it isn't known, and `ended` if the line has no time.
    """

    id: str
    done: bool
    text: str
    calls: int
    tokens: tuple[int, int]
    cost: float | None
    attempts: int
    ended: float | None
    error: ErrorKind | None
    run_id: str

    @classmethod
    def of(cls, line: Mapping[str, Any]) -> BatchRow:
        """Return the row of a line of a results file.

        Raises LookupError, TypeError, ValueError or AttributeError for a line that isn't a result.
        """
        done = line["status"] == "done"
        usage = line.get("usage") or {}
        cost = usage.get("cost", 0.0)
        ended = line.get("ended_at")
        outputs = line.get("outputs") or {}
        # Some trees have named outputs only.
        text = line.get("text") or (as_text(plain(outputs)) if outputs else "")
        return cls(
            id=clean_text(line["id"]),
            done=done,
            text=_words(text, _WORDS),
            calls=_number(line.get("calls")),
            tokens=(_number(usage.get("input_tokens")), _number(usage.get("output_tokens"))),
            cost=None if cost is None else float(cost),
            attempts=_number(line.get("attempts", 1)),
            ended=datetime.fromisoformat(ended).timestamp() if ended else None,
            error=None if done else _error(line.get("error") or {}),
            run_id=clean_text(str(line.get("run_id") or "")),
        )


def _error(error: Mapping[str, Any]) -> ErrorKind:
    kind, path = (_words(str(error.get(name) or ""), _WORDS) for name in ("type", "path"))
    return kind, path, _words(str(error.get("message") or ""), _MESSAGE)


def _number(value: Any) -> int:
    number = int(value or 0)
    if not 0 <= number < _LARGEST:
        raise ValueError(f"{number} isn't a number of calls, tokens, or attempts")
    return number


def _words(text: str, most: int) -> str:
    """Return the first words of a text, on one line."""
    line = clean_text(" ".join(text[: _SEARCHED * most].split()))
    return line if len(line) <= most else f"{line[: most - 1].rstrip()}…"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOpening:
    """The ways to the pages of a batch's runs, and the ids of the runs that are stored.

    The command is `before`, the id of the run, and `after`. On a server, the address is `href` and
    the id; in a file, `href` is "".
    """

    before: str
    after: str
    run_ids: frozenset[str]
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchFacts:
    """The facts of a batch besides its results.

    Attributes:
        file: The results file, as it was named.
        batch: The id of the batch; "" if it isn't known.
        target: The tree or recipe, as it was named; "" if it isn't known.
        inputs: The number of inputs; None if it isn't known.
        starts: When each call of the batch started, as ISO times.
        running: Whether a process writes the results now.
        notes: Sentences about what the page lacks.
        commands: Shell commands, by purpose.
    """

    file: str
    batch: str = ""
    target: str = ""
    inputs: int | None = None
    starts: Sequence[str] = ()
    running: bool = False
    notes: Sequence[str] = ()
    commands: Mapping[str, str]


def batch_data(
    facts: BatchFacts, rows: Iterable[BatchRow], opening: RunOpening | None = None
) -> dict[str, Any]:
    """Return a batch as the data of a page.

    Args:
        facts: The facts of the batch.
        rows: Its results.
        opening: How the pages of its runs are opened. None: their journals aren't there.
    """
    errors: dict[ErrorKind, int] = {}
    found = [
        _row(one, -1 if one.error is None else errors.setdefault(one.error, len(errors)), opening)
        for one in rows
    ]
    # A call with --limit, or with fewer inputs than an earlier one, knows only its own.
    inputs = None if facts.inputs is None else max(facts.inputs, len(found))
    return {
        "id": facts.batch,
        "file": facts.file,
        "target": facts.target,
        "status": _status(facts, len(found), inputs, failed=bool(errors)),
        "inputs": inputs,
        "starts": sorted(_times(facts.starts)),
        "notes": list(facts.notes),
        "commands": dict(facts.commands),
        "opening": None
        if opening is None
        else {"before": opening.before, "after": opening.after, "href": opening.href},
        "failures": [
            {"type": kind, "path": path, "message": message} for kind, path, message in errors
        ],
        "rows": found,
    }


def _row(row: BatchRow, failure: int, opening: RunOpening | None) -> dict[str, Any]:
    return {
        "id": row.id,
        "status": "done" if row.done else "failed",
        "text": row.text,
        "calls": row.calls,
        "input_tokens": row.tokens[0],
        "output_tokens": row.tokens[1],
        "cost": row.cost,
        "attempts": row.attempts,
        "ended": row.ended,
        "failure": failure,
        "run": row.run_id if opening is not None and row.run_id in opening.run_ids else "",
    }


def _status(facts: BatchFacts, results: int, inputs: int | None, *, failed: bool) -> str:
    if facts.running:
        return "running"
    if inputs is not None and results < inputs:
        return "unfinished"
    return "failed" if failed else "done"


def _times(moments: Iterable[str]) -> Iterable[float]:
    """Yield ISO times as seconds since the epoch; other texts are skipped."""
    for moment in moments:
        try:
            yield datetime.fromisoformat(moment).timestamp()
        except ValueError:
            continue
