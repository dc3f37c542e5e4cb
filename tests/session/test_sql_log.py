"""Sessions in a database: rows that were changed, taken out or are newer; runs beside them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sql
from tests.journal.places import Place, engine_at, place_of

from mergepoint import SessionError, SessionMemory
from mergepoint.core.errors import MergepointError
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.session.session_store import check_session, repair_session, sessions_at
from mergepoint.session.sql_sessions import SESSION_TABLES, SqlSessions


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


def filled(memory: SessionMemory) -> SessionMemory:
    """Return a session of three entries."""
    memory.add_response("user", "Hello.")
    memory.add_working_step("plan", "Greet.")
    memory.add_response("assistant", "Hi.")
    return memory


def changed(place: Place, *statements: sql.Executable) -> None:
    """Change what is kept behind the back of the library."""
    with engine_at(place.address).begin() as connection:
        for statement in statements:
            connection.execute(statement)


SESSIONS, ENTRIES = SESSION_TABLES.first, SESSION_TABLES.rest
SECOND = sql.and_(ENTRIES.c.session_id == "s", ENTRIES.c.n == 2)


def other_body(place: Place) -> None:
    """Change a text without its checksum."""
    with engine_at(place.address).connect() as connection:
        body = connection.execute(sql.select(ENTRIES.c.body).where(SECOND)).scalar_one()
    value = bytes(body).replace(b"Greet", b"GrEet")
    changed(place, ENTRIES.update().where(SECOND).values(body=value))


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        (other_body, "record 2: its checksum does not fit"),
        (
            lambda place: changed(place, ENTRIES.update().where(SECOND).values(checksum="0")),
            "record 2: its checksum does not fit",
        ),
        (lambda place: changed(place, ENTRIES.delete().where(SECOND)), "record 2.* is missing"),
    ],
    ids=["body", "checksum", "gone"],
)
def test_damage_is_told_and_mended(
    place: Place, damage: Callable[[Place], None], told: str
) -> None:
    """A repair keeps every row that can be read, and what there was under another id."""
    sessions = sessions_at(place.address)
    memory = filled(sessions.create("s"))
    damage(place)
    with pytest.raises(SessionError, match=rf"session 's' in .*{told}.*repair_session"):
        sessions.open("s")
    [flaw] = check_session("s", sessions=sessions)
    assert flaw.where == "record 2"
    repaired = repair_session("s", sessions=sessions)
    assert (repaired.kept, repaired.flaws) == (2, (flaw,))
    assert repaired.copy.startswith("s_damaged_")
    with pytest.raises(SessionError, match="was replaced since it was opened"):
        memory.add_response("assistant", "More.")
    again = sessions.open("s")
    assert again.get_messages() == memory.get_messages()
    again.add_response("assistant", "More.")
    assert check_session("s", sessions=sessions) == []
    briefs = {one.session_id: one.problem for one in sessions.sessions()}
    copy = next(name for name in briefs if name != "s")
    assert "is the journal of session 's'" in briefs[copy]
    sessions.delete(copy)
    assert [one.session_id for one in sessions.sessions()] == ["s"]


@pytest.mark.parametrize("column", ["format", "checksum"])
def test_a_header_is_what_its_row_says(place: Place, column: str) -> None:
    """A header whose bytes do not fit is told and written anew, with all entries kept."""
    sessions = sessions_at(place.address)
    memory = filled(sessions.create("s"))
    if column == "format":
        header = b'{"format":"mergepoint.session/2"}'
        changed(place, SESSIONS.update().values(header=header, checksum="4d1f0b9d"))
    else:
        changed(place, SESSIONS.update().values(checksum="00000000"))
    with pytest.raises(SessionError, match="its header: its checksum does not fit"):
        sessions.open("s")
    repair_session("s", sessions=sessions)
    assert sessions.open("s").get_messages() == memory.get_messages()


def test_a_session_that_is_not_there_cannot_be_checked(place: Place) -> None:
    """A database without tables, and one without the session, say so."""
    sessions = sessions_at(place.address)
    with pytest.raises(SessionError):
        check_session("s", sessions=sessions)
    filled(sessions.create("other"))
    with pytest.raises(SessionError, match="there is no session 's' in"):
        repair_session("s", sessions=sessions)


def test_sessions_and_their_runs_share_a_database(place: Place) -> None:
    """Runs of turns are in the same place, and go with their session alone."""
    sessions = sessions_at(place.address)
    memory = sessions.create("s")
    runs = memory.runs()
    assert isinstance(runs, SqlStore)
    from tests.journal.test_stores import begun

    for name in ("s.1", "s.1.facts", "s.12", "s.x", "t.1"):
        SqlStore(place.address).create(begun(name)).close()
    sessions.delete("s")
    assert sorted(runs.runs()) == ["s.x", "t.1"]


def test_an_engine_of_ones_own_is_taken(tmp_path: Path) -> None:
    """An SQLAlchemy engine serves as a URL does, and an address that is none is told."""
    engine = sql.create_engine(f"sqlite:///{tmp_path / 's.db'}")
    filled(SqlSessions(engine).create("s"))
    assert SqlSessions(f"sqlite:///{tmp_path / 's.db'}").open("s").turn == 1
    engine.dispose()
    for address in ("mysql://h/d", "sqlite:///:memory:"):
        with pytest.raises(MergepointError):
            SqlSessions(address)


def test_a_database_without_its_tables_is_told(place: Place) -> None:
    """Where they were taken away behind an open session, nothing is made up."""
    memory = filled(sessions_at(place.address).create("s"))
    changed(place, sql.text("DROP TABLE mergepoint_session_entries"))
    act: Any = memory.add_response
    with pytest.raises(SessionError, match="its tables are missing"):
        act("user", "More.")
