"""The list of runs and sessions: every run has a row, and a bad one doesn't hide the others."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import Place, place_of
from tests.view.contract import fields
from tests.view.talks import CHAT, said, talk

from mergepoint import Block, Gate, Step, StepError, Template, run_generation
from mergepoint.core.errors import GateOpen, MergepointError
from mergepoint.journal.stores import Store
from mergepoint.report.run_state import RunState, Unreadable, read_state
from mergepoint.session.session_store import sessions_at
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.view.list_data import Opening, listing

TREE = Block(
    [Step(Template("Say {{ topic }}."), name="a"), Step("Say b.", name="b")],
    name="t",
    inputs=["topic"],
)
HOSTILE = "</script><script>alert(1)</script>\u202e\x1b[31m"


@pytest.fixture(params=["files", "sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty place for runs of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


def ran(store: Store, run_id: str, **given: Any) -> None:
    """Run two steps about a topic, and keep the run."""
    given = {
        "inputs": {"topic": "tides"},
        "model": ScriptedModel(default="High\n and low."),
        **given,
    }
    run_generation(given.pop("tree", TREE), runs=store, run_id=run_id, **given)


def states(store: Store) -> Iterable[RunState | Unreadable]:
    """Yield the runs of a store as a command reads them."""
    for run_id in store.runs():
        try:
            yield read_state(store, run_id)
        except MergepointError as error:
            yield Unreadable(run_id, str(error))


def rows(store: Store, **options: Any) -> dict[str, dict[str, Any]]:
    """Return the rows of a store by the ids of the runs."""
    found = listing(states(store), run_opening=Opening, **options)
    return {str(one["id"]): one for one in found}


def test_a_row_has_the_facts_of_a_run(place: Place) -> None:
    """Input, result, calls, tokens and model are those of the run, in each kind of store."""
    store = place.store()
    ran(store, "one")
    [row] = rows(store).values()
    assert row.keys() == fields("ListedRun")
    assert (row["status"], row["input"], row["result"]) == ("done", "tides", "High and low.")
    assert (row["calls"], row["failed"], row["reused"]) == (2, 0, 0)
    assert (row["graph"], row["models"], row["kind"]) == ("t", ["scripted:scripted"], "run")
    assert row["tokens"] > 0
    assert row["command"] == "one"


def test_a_damaged_run_is_a_row_among_the_others(place: Place) -> None:
    """The problem is the result of a damaged run, and the runs around it are whole."""
    store = place.store()
    for run_id in ("one", "two", "three"):
        ran(store, run_id)
    place.damage("two", "checksum")
    found = rows(store)
    assert {name: one["status"] for name, one in found.items()} == {
        "one": "done",
        "two": "damaged",
        "three": "done",
    }
    assert "two" in found["two"]["result"]


def test_a_run_with_invalid_content_is_damaged(tmp_path: Path) -> None:
    """A journal that another program wrote, with a time that is none, is a damaged run."""
    with place_of("files", tmp_path) as place:
        store = place.store()
        ran(store, "one")
        state = read_state(store, "one")
        object.__setattr__(state.transcript, "created_at", "yesterday")
        [row] = listing([state], run_opening=Opening)
    assert (row["status"], row["id"]) == ("damaged", "one")
    assert "invalid content" in str(row["result"])


def test_counts_failed_and_reused_calls(tmp_path: Path) -> None:
    """Calls that failed for good and answers from another run are counted apart."""
    with place_of("files", tmp_path) as place:
        store = place.store()
        ran(store, "one")
        ran(store, "two", reuse="one", model=ScriptedModel(default="High\n and low."))
        with pytest.raises(StepError):
            ran(store, "three", model=ScriptedModel(by_path={"t/a": "Fine.", "t/b": ""}))
        found = rows(store)
    counts = {name: (one["calls"], one["failed"], one["reused"]) for name, one in found.items()}
    assert counts == {"one": (2, 0, 0), "two": (2, 0, 2), "three": (1, 1, 0)}
    assert found["three"]["status"] == "failed"


def test_the_last_changed_comes_first(tmp_path: Path) -> None:
    """Runs and sessions are sorted together, by the time of their last change."""
    sessions = sessions_at(tmp_path / "sessions")
    with place_of("files", tmp_path) as place:
        store = place.store()
        ran(store, "first")
        memory, turns = talk(sessions, plans=(CHAT,), respond="Hello.")
        said(memory, turns, "Hi.")
        ran(store, "last")
        found = listing(
            list(states(store)),
            sessions=sessions,
            run_opening=lambda run: Opening(f"mergepoint view {run}", f"{run}/view.html"),
            session_opening=lambda one: Opening(f"mergepoint view --session {one}"),
        )
    assert [(one["id"], one["kind"]) for one in found] == [
        ("last", "run"),
        ("trip", "session"),
        ("first", "run"),
    ]
    assert [one["href"] for one in found] == ["last/view.html", "", "first/view.html"]
    session = found[1]
    assert (session["input"], session["result"], session["status"]) == ("Hi.", "Hello.", "done")
    assert (session["calls"], session["command"]) == (2 + 1, "mergepoint view --session trip")


def test_a_waiting_session_says_what_it_waits_for(tmp_path: Path) -> None:
    """The result of a session whose last turn waits is the gate."""
    sessions = sessions_at(tmp_path)
    memory, turns = talk(sessions)
    said(memory, turns, "Sum the sales.", "approve")
    [row] = listing([], sessions=sessions, run_opening=Opening)
    assert row["status"] == "waiting"
    assert row["result"] == "for a decision at agent/work/iteration_01/approval"


def test_a_damaged_session_is_a_row(tmp_path: Path) -> None:
    """A session without a whole header is damaged, and its problem says how to repair it."""
    sessions = sessions_at(tmp_path / "sessions")
    memory, turns = talk(sessions, plans=(CHAT,), respond="Hello.")
    said(memory, turns, "Hi.")
    log = tmp_path / "sessions" / "trip" / "journal.jsonl"
    log.write_bytes(b"{" + log.read_bytes())
    [row] = listing([], sessions=sessions, run_opening=Opening)
    assert (row["status"], row["kind"]) == ("damaged", "session")
    assert "trip" in str(row["result"])


def test_a_waiting_run_says_what_it_waits_for(tmp_path: Path) -> None:
    """The result of a run at a gate is the gate."""
    tree = Block([Gate(Step("Say a.", name="a"), name="g")], name="t")
    with place_of("files", tmp_path) as place:
        with pytest.raises(GateOpen):
            ran(place.store(), "one", tree=tree, inputs={})
        [row] = rows(place.store()).values()
    assert (row["status"], row["result"]) == ("waiting", "for a decision at t/g")


def test_hostile_words_stay_words(tmp_path: Path) -> None:
    """Scripts, direction marks and escapes in inputs and answers are data of the row."""
    with place_of("files", tmp_path) as place:
        ran(place.store(), "one", inputs={"topic": HOSTILE}, model=ScriptedModel(default=HOSTILE))
        [row] = rows(place.store()).values()
    assert (row["input"], row["result"]) == (HOSTILE, HOSTILE)


def test_long_words_are_cut(tmp_path: Path) -> None:
    """A result of a megabyte costs the list a line."""
    with place_of("files", tmp_path) as place:
        ran(place.store(), "one", model=ScriptedModel(default="word " * 200_000))
        [row] = rows(place.store()).values()
    assert len(row["result"]) <= 200
    assert row["result"].endswith("…")


def test_an_empty_store_has_no_rows(place: Place) -> None:
    """A store without runs, in files or a database, has an empty list."""
    assert rows(place.store()) == {}
