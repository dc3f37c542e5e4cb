"""The list of runs and sessions: one row each, the last changed first, damaged ones too."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime

from mergepoint.core.errors import MergepointError
from mergepoint.core.text import clip
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.recipe_records import NOTE, failed_calls
from mergepoint.report.run_state import RunState, Unreadable, first_input, outcome
from mergepoint.session.session_memory import SessionBrief, Sessions
from mergepoint.view.session_turns import SessionTurn, turns_of

_WORDS = 200  # cells of an input, a result, or an error
_SEARCHED = 8 * _WORDS  # characters of a text in which its first words are searched
_NEWEST = float("inf")
# A file that another program wrote may have any content, and must not hide the other runs.
_INVALID = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError)


@dataclass(frozen=True, slots=True)
class Opening:
    """How the page of a row is opened: by a command, and by an address relative to the list.

    `href` is blank if there is no page yet.
    """

    command: str
    href: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedRun:
    """A row of the list, with the fields of `ListedRun` in page.d.ts."""

    id: str
    kind: str = "run"
    graph: str = ""
    status: str = "damaged"
    input: str = ""
    result: str = ""
    models: tuple[str, ...] = ()
    seconds: float | None = None
    calls: int = 0
    failed: int = 0
    reused: int = 0
    tokens: int = 0
    cost: float | None = None
    created_at: str = ""
    href: str = ""
    command: str = ""


def listing(
    runs: Iterable[RunState | Unreadable],
    *,
    sessions: Sessions | None = None,
    run_opening: Callable[[str], Opening],
    session_opening: Callable[[str], Opening] = Opening,
) -> list[dict[str, object]]:
    """Return the rows of a list of runs and sessions, the last changed first.

    A run or session that can't be read has the status `damaged`, and the problem as its result.

    Args:
        runs: The runs as they were read, newest first.
        sessions: The store of the sessions to list. Default: none.
        run_opening: Return how the page of a run is opened, by its id in the store.
        session_opening: Return how the page of a session is opened, by its id.

    Raises:
        SessionError: The store of the sessions can't be read.
    """
    rows = list(_of_runs(runs, run_opening))
    if sessions is not None:
        rows += [
            _of_session(sessions, one, session_opening(one.session_id))
            for one in sessions.sessions()
        ]
    # Stable: runs that changed at the same time keep the order of their store.
    rows.sort(key=lambda row: row[0], reverse=True)
    return [{**asdict(row), "models": list(row.models)} for _, row in rows]


def _of_runs(
    runs: Iterable[RunState | Unreadable], opening: Callable[[str], Opening]
) -> Iterator[tuple[float, ListedRun]]:
    """Yield the rows of runs, each with the time of its last change."""
    changed = _NEWEST
    for run in runs:
        way = opening(run.name)
        if isinstance(run, Unreadable):
            # Its time is unknown, so it stays below the run that is newer in its store.
            yield changed, _damaged(run.name, run.problem, way)
            continue
        try:
            row, changed = _of_run(run, way), _last_change(run)
        except _INVALID as error:
            row = _damaged(run.name, f"invalid content ({type(error).__name__}: {error})", way)
        yield changed, row


def _damaged(name: str, problem: str, way: Opening) -> ListedRun:
    return ListedRun(id=name, result=_words(problem), href=way.href, command=way.command)


def _of_run(run: RunState, way: Opening) -> ListedRun:
    return ListedRun(
        id=run.name,
        graph=run.graph,
        status=run.status,
        input=_words(first_input(run)),
        result=_words(" ".join(filter(None, outcome(run)))),
        models=run.models,
        seconds=run.seconds,
        calls=run.answered,
        failed=len(failed_calls(run.records)),
        reused=sum(map(_is_reused, run.transcript.records)),
        tokens=run.tokens,
        cost=run.cost,
        created_at=run.transcript.created_at,
        href=way.href,
        command=way.command,
    )


def _last_change(run: RunState) -> float:
    began = datetime.fromisoformat(run.transcript.created_at).timestamp()
    return max([began, *(one.ended for one in run.records)])


def _is_reused(record: CallRecord) -> bool:
    return record.source == "replayed" and record.kind != "gate" and record.model != NOTE


def _of_session(sessions: Sessions, brief: SessionBrief, way: Opening) -> tuple[float, ListedRun]:
    """Return the row of a session, and the time of its last change."""
    changed = 0.0 if brief.updated_at is None else brief.updated_at.timestamp()
    problem = brief.problem
    if not problem:
        try:
            return changed, _of_turns(brief, turns_of(sessions.open(brief.session_id)), way)
        except (MergepointError, OSError, *_INVALID) as error:
            problem = str(error)
    return changed, replace(_damaged(brief.session_id, problem, way), kind="session")


def _of_turns(brief: SessionBrief, turns: Sequence[SessionTurn], way: Opening) -> ListedRun:
    """Return the row of a session: the end of its last turn, and the sums of its runs."""
    runs = [one.run for one in turns if one.run is not None]
    records = [record for run in runs for record in run.records]
    costs = [one.cost for one in runs if one.cost is not None]
    return ListedRun(
        id=brief.session_id,
        kind="session",
        graph=runs[-1].graph if runs else "",
        status=turns[-1].status if turns else "done",
        input=_words(brief.title),
        result=_words(_result(turns[-1])) if turns else "",
        models=tuple(dict.fromkeys(model for run in runs for model in run.models)),
        # Per run: between two turns of a conversation nothing runs.
        seconds=sum(run.seconds or 0.0 for run in runs) if records else None,
        calls=sum(run.answered for run in runs),
        failed=sum(len(failed_calls(run.records)) for run in runs),
        reused=sum(_is_reused(one) for run in runs for one in run.transcript.records),
        tokens=sum(run.tokens for run in runs),
        cost=sum(costs) if costs else None,
        created_at="" if brief.created_at is None else brief.created_at.isoformat(),
        href=way.href,
        command=way.command,
    )


def _result(turn: SessionTurn) -> str:
    """Return what came out of a turn, or what an open one waits for."""
    if turn.run is None or turn.status not in ("waiting", "unfinished"):
        return turn.result
    return " ".join(filter(None, outcome(turn.run)))


def _words(text: str) -> str:
    """Return the first words of a text, on one line."""
    return clip(" ".join(text[:_SEARCHED].split()), _WORDS)
