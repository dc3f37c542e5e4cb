"""The rows of shared budgets: in memory, in an SQLite file, or in PostgreSQL."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from mergepoint.journal.checked_lines import JournalError
from mergepoint.models.budget_account import NOTHING, Amount
from mergepoint.scale.rate_limits import is_postgres

Execute = Callable[[str, Mapping[str, Any]], Sequence[tuple[Any, ...]]]

_BUSY_SECONDS = 30
_STATES = [f"{state}_{kind}" for state in ("spent", "held") for kind in Amount._fields]
_LIMITS = [f"most_{kind}" for kind in Amount._fields]


def _named(names: Iterable[str], form: str) -> str:
    return ", ".join(form.format(name) for name in names)


_BUDGETS = (
    "CREATE TABLE IF NOT EXISTS mergepoint_budgets (batch VARCHAR(255) PRIMARY KEY, "
    f"{_named(_LIMITS, '{} BIGINT')}, {_named(_STATES, '{} BIGINT NOT NULL DEFAULT 0')})"
)
_RUNS = (
    "CREATE TABLE IF NOT EXISTS mergepoint_budget_runs (batch VARCHAR(255) NOT NULL, "
    "run_id VARCHAR(255) NOT NULL, epoch INTEGER NOT NULL, "
    f"{_named(_STATES, '{} BIGINT NOT NULL')}, PRIMARY KEY (batch, run_id))"
)
_SET_LIMITS = (
    f"INSERT INTO mergepoint_budgets (batch, {_named(_LIMITS, '{}')}) "  # noqa: S608
    f"VALUES (:batch, {_named(_LIMITS, ':{}')}) "
    f"ON CONFLICT (batch) DO UPDATE SET {_named(_LIMITS, '{0} = excluded.{0}')}"
)
_READ = (
    f"SELECT {_named(_LIMITS, '{}')}, {_named(_STATES, '{}')} "  # noqa: S608
    "FROM mergepoint_budgets WHERE batch = :batch"
)
_READ_RUNS = (
    f"SELECT run_id, epoch, {_named(_STATES, '{}')} "  # noqa: S608
    "FROM mergepoint_budget_runs WHERE batch = :batch AND run_id"
)
_WRITE = (
    f"UPDATE mergepoint_budgets SET {_named(_STATES, '{0} = :{0}')} "  # noqa: S608
    "WHERE batch = :batch"
)
_WRITE_RUN = (
    f"INSERT INTO mergepoint_budget_runs (batch, run_id, epoch, {_named(_STATES, '{}')}) "  # noqa: S608
    f"VALUES (:batch, :run_id, :epoch, {_named(_STATES, ':{}')}) "
    "ON CONFLICT (batch, run_id) DO UPDATE SET epoch = excluded.epoch, "
    + _named(_STATES, "{0} = excluded.{0}")
)


class BudgetUsage(NamedTuple):
    """The amounts that are spent, and those that are reserved for calls in progress."""

    spent: Amount = NOTHING
    held: Amount = NOTHING

    def plus(self, other: BudgetUsage) -> BudgetUsage:
        """Return the sum."""
        return BudgetUsage(self.spent.plus(other.spent), self.held.plus(other.held))

    def minus(self, other: BudgetUsage) -> BudgetUsage:
        """Return the difference."""
        return BudgetUsage(self.spent.minus(other.spent), self.held.minus(other.held))


class BudgetRow(NamedTuple):
    """The usage of a whole batch, and its limits of calls, tokens and picodollars."""

    most: tuple[int | None, int | None, int | None]
    usage: BudgetUsage


class RunSpending(NamedTuple):
    """The usage of one run, and how often a process began or resumed it."""

    epoch: int
    usage: BudgetUsage


class BudgetRows:
    """The rows of one batch.

    Args:
        batch: The batch.
        at: None for this process, the path of an SQLite file, or a postgresql:// URL.

    Raises:
        JournalError: The place can't be opened.
    """

    def __init__(self, batch: str, at: str | None) -> None:
        self._batch = batch
        self._place: _RowsPlace
        if at is None or not is_postgres(at):
            self._place = _SqliteFile(at)
        else:
            self._place = _Server(at)
        with self._place.transaction(making=True) as execute:
            for table in (_BUDGETS, _RUNS):
                execute(table, {})

    def set_limits(self, most: Sequence[int | None]) -> None:
        """Set the limits of the batch, and create its row if there is none."""
        limits = dict(zip(_LIMITS, most, strict=True))
        with self._place.transaction() as execute:
            execute(_SET_LIMITS, {"batch": self._batch, **limits})

    @contextmanager
    def locked(self) -> Iterator[Execute]:
        """Yield the statements of one transaction; it is rolled back after an error."""
        with self._place.transaction() as execute:
            yield execute

    def read(self, execute: Execute) -> BudgetRow:
        """Return the row of the batch, and lock it until the end of the transaction."""
        found = execute(_READ + self._place.lock, {"batch": self._batch})
        if not found:
            raise JournalError(
                f"the budget of batch {self._batch!r} is no longer in {self._place.name}; resume "
                "the batch, which creates it again"
            )
        row = found[0]
        return BudgetRow(row[:3], _usage(row[3:]))

    def read_runs(self, execute: Execute, runs: Iterable[str]) -> dict[str, RunSpending]:
        """Return the rows of runs, by id, without those that don't exist."""
        about = {"batch": self._batch, "runs": self._place.several(list(runs))}
        found = execute(_READ_RUNS + self._place.among, about)
        return {row[0]: RunSpending(row[1], _usage(row[2:])) for row in found}

    def write(self, execute: Execute, total: BudgetUsage, runs: Mapping[str, RunSpending]) -> None:
        """Write the usage of the batch, and the rows of runs."""
        execute(_WRITE, {"batch": self._batch, **_columns(total)})
        for run, row in runs.items():
            about = {"batch": self._batch, "run_id": run, "epoch": row.epoch}
            execute(_WRITE_RUN, {**about, **_columns(row.usage)})

    def close(self) -> None:
        """Close the connection."""
        self._place.close()


def _usage(row: Sequence[Any]) -> BudgetUsage:
    calls, tokens, pico, *held = map(int, row)
    return BudgetUsage(Amount(calls, tokens, pico), Amount(*held))


def _columns(usage: BudgetUsage) -> dict[str, int]:
    return dict(zip(_STATES, (*usage.spent, *usage.held), strict=True))


class _RowsPlace(Protocol):
    """Where rows are, and what differs between databases: locks, and lists as parameters."""

    name: str
    lock: str
    among: str

    def transaction(self, *, making: bool = False) -> AbstractContextManager[Execute]: ...

    def several(self, values: list[str]) -> Any: ...

    def close(self) -> None: ...


class _SqliteFile:
    """A file, or this process's memory. A transaction locks all of it."""

    lock = ""
    among = " IN (SELECT value FROM json_each(:runs))"

    def __init__(self, path: str | None) -> None:
        self.name = path or "memory"
        try:
            if path is not None:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(
                path or ":memory:",
                isolation_level=None,
                timeout=_BUSY_SECONDS,
                check_same_thread=False,
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            # It survives a killed process. After a power failure, the journals of runs count.
            self._connection.execute("PRAGMA synchronous = NORMAL")
        except (OSError, sqlite3.Error) as error:
            raise _unusable(self.name, error) from error

    @contextmanager
    def transaction(self, *, making: bool = False) -> Iterator[Execute]:
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            yield lambda statement, about: self._connection.execute(statement, about).fetchall()
            self._connection.execute("COMMIT")
        except BaseException as error:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            if isinstance(error, sqlite3.Error):
                raise _unusable(self.name, error) from error
            raise

    def several(self, values: list[str]) -> str:
        return json.dumps(values)

    def close(self) -> None:
        self._connection.close()


def _unusable(name: str, error: Exception) -> JournalError:
    return JournalError(
        f"can't use the budget of the batch in {name}: {error}; make sure that it is an SQLite "
        "file, that it can be written, and that its disk isn't full"
    )


class _Server:
    """A database of PostgreSQL, through the connections that this process shares."""

    lock = " FOR UPDATE"
    among = " = ANY(:runs)"

    def __init__(self, address: str) -> None:
        import sqlalchemy

        from mergepoint.journal.sql_database import Database, Schema, write_transaction

        tables = Schema("budgets", 1, sqlalchemy.MetaData(), ())
        self._database = Database(address, schema=tables)
        self._text = sqlalchemy.text
        self._write_transaction = write_transaction
        self.name = self._database.name

    @contextmanager
    def transaction(self, *, making: bool = False) -> Iterator[Execute]:
        # CREATE TABLE IF NOT EXISTS fails if two sessions find no table at the same time.
        lock = "budgets" if making else ""
        with (
            self._database.connected() as connection,
            self._database.errors("use the budget of the batch in"),
            self._write_transaction(self._database, connection, flush=None, lock=lock) as commit,
        ):

            def execute(statement: str, about: Mapping[str, Any]) -> Sequence[tuple[Any, ...]]:
                result = connection.execute(self._text(statement), about)
                return [tuple(row) for row in result] if result.returns_rows else []

            yield execute
            commit()

    def several(self, values: list[str]) -> list[str]:
        return values

    def close(self) -> None:
        """Close nothing: the connections are this process's."""
