"""`mergepoint view`: the page of a run as a file, where it is, and what it says."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import command
from tests.journal.places import place_of
from tests.view.talks import said, talk

from mergepoint.session.session_store import sessions_at
from mergepoint.view.page import ISLAND


def data_of(file: Path) -> dict[str, Any]:
    """Return the data of a page."""
    html = file.read_text(encoding="utf-8")
    text = html.partition(f'id="{ISLAND}">')[2].partition("</script>")[0]
    found = json.loads(text)
    assert isinstance(found, dict)
    return found


@pytest.fixture
def run_id() -> str:
    """Return the id of a run on disk."""
    assert command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one").code == 0
    return "one"


def test_the_page_is_in_the_runs_folder_and_its_path_on_stdout(run_id: str) -> None:
    """Without -o, the page is beside the run's files, and stdout has its path and nothing else."""
    seen = command("view", "last")
    assert seen.code == 0
    assert seen.out == f"runs/{run_id}/view.html\n"
    page = data_of(Path(seen.out.strip()))
    assert page["screen"] == "run"
    (run,) = page["runs"]
    assert (run["id"], run["graph"], run["status"]) == ("one", "essay.py:tree", "done")
    assert len(run["calls"]) == 4
    assert page["texts"][run["result"]]


def test_a_page_is_written_where_it_is_asked_for(run_id: str, tmp_path: Path) -> None:
    """-o names the file, --json says what was written, and a bad place is an error."""
    seen = command("view", run_id, "-o", "my page.html", "--no-open", "--json")
    assert seen.data == {"file": "my page.html", "screen": "run", "opened": False}
    assert data_of(tmp_path / "my page.html")["runs"]
    refused = command("view", run_id, "-o", "nowhere/page.html")
    assert refused.code == 2
    assert "Can't write nowhere/page.html" in refused.err


def test_every_command_of_a_page_works_as_printed(run_id: str) -> None:
    """The commands that a page offers for a run are those that work in the same folder."""
    command("view", run_id)
    commands = data_of(Path("runs/one/view.html"))["runs"][0]["commands"]
    assert set(commands) == {"show", "view", "run again"}
    for line in commands.values():
        name, *arguments = shlex.split(line)
        assert name == "mergepoint"
        assert command(*arguments).code == 0, line


def test_a_page_says_what_was_paid_now_and_what_was_reused(run_id: str) -> None:
    """The page of a run that reuses all answers of another says that nothing was paid."""
    command("run", "essay.py", "-i", "topic=rivers", "--run-id", "two", "--reuse", run_id)
    assert command("view", "two").code == 0
    (run,) = data_of(Path("runs/two/view.html"))["runs"]
    assert (run["paid"]["calls"], run["reused"]["calls"]) == (0, 4)
    assert run["verdict"].startswith("Done: 4 of 4 calls answered, 4 of them reused, in ")


def test_a_page_offers_to_resume_a_run_that_failed() -> None:
    """A failed run's page names the failure, where it was, and the command that resumes it."""
    command("run", "breaking.py", "--run-id", "broken")
    assert command("view", "broken").code == 0
    (run,) = data_of(Path("runs/broken/view.html"))["runs"]
    assert run["status"] == "failed"
    assert run["failure"]["path"] == "breaking/stage/title"
    assert run["verdict"].startswith("Failed at breaking/stage/title: ")
    assert run["commands"]["resume"].startswith("mergepoint resume broken")
    nodes = {node["path"]: node["status"] for node in run["nodes"]}
    assert nodes == {
        "breaking": "failed",
        "breaking/draft": "done",
        "breaking/stage": "failed",
        "breaking/stage/more": "done",
        "breaking/stage/title": "failed",
        "breaking/end": "not_reached",
    }


def test_a_run_in_a_database_has_its_page_in_the_current_directory(tmp_path: Path) -> None:
    """A run without a folder has a page named after it, and stderr says where it is."""
    store = "sqlite:///runs.db"
    command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one", "--store", store)
    seen = command("view", "one", "--store", store)
    assert seen.code == 0
    assert seen.out == "one.html\n"
    assert "the page is in the current directory" in seen.err
    (run,) = data_of(tmp_path / "one.html")["runs"]
    assert run["commands"]["show"] == f"mergepoint show one --store {store}"


def test_without_a_run_the_page_is_the_list(run_id: str) -> None:
    """The list has every run, links to the pages that exist, and the command for the others."""
    command("run", "breaking.py", "--run-id", "broken")
    command("view", run_id)
    seen = command("view")
    assert seen.code == 0
    assert seen.out == "runs/view.html\n"
    page = data_of(Path("runs/view.html"))
    assert page["screen"] == "runs"
    rows = {row["id"]: (row["href"], row["command"]) for row in page["list"]}
    assert rows == {
        "one": ("one/view.html", "mergepoint view one"),
        "broken": ("", "mergepoint view broken"),
    }


def test_an_unknown_run_is_an_error_that_names_near_ones(run_id: str) -> None:
    """A run that doesn't exist is refused, and no page is written."""
    refused = command("view", "onee")
    assert refused.code == 2
    assert "Did you mean" in refused.err or "one" in refused.err
    assert not list(Path().rglob("*.html"))


def test_what_is_left_of_a_damaged_run_is_shown(run_id: str) -> None:
    """A journal with a bad line is shown as far as it can be read, with its place."""
    journal = Path("runs/one/journal.jsonl")
    lines = journal.read_bytes().splitlines(keepends=True)
    lines[-2] = lines[-2].replace(b"essay", b"assay", 1)
    journal.write_bytes(b"".join(lines))
    assert command("view", run_id).code == 0
    (run,) = data_of(Path("runs/one/view.html"))["runs"]
    assert run["status"] == "damaged"
    assert any(f"line {len(lines) - 1}" in note for note in run["notes"])
    assert 0 < len(run["calls"]) < 4


def test_two_runs_are_compared(run_id: str) -> None:
    """With two runs, the page has both, and the first call that differs."""
    command("run", "essay.py", "-i", "topic=seas", "--run-id", "two")
    seen = command("view", "one", "two")
    assert seen.code == 0
    page = data_of(Path("runs/two/compare-one.html"))
    assert seen.out == "runs/two/compare-one.html\n"
    assert page["screen"] == "compare"
    assert [run["id"] for run in page["runs"]] == ["one", "two"]
    assert page["comparison"]["first_divergence"] == "essay/draft"


def test_a_list_elsewhere_leads_to_the_same_pages(run_id: str, tmp_path: Path) -> None:
    """Addresses in the list are relative to its file, and safe in an address."""
    assert command("run", "essay.py", "-i", "topic=x", "--run-id", "50% #1").code == 0
    for run in (run_id, "50% #1"):
        assert command("view", run).code == 0
    (tmp_path / "pages").mkdir()
    assert command("view", "-o", "pages/all.html").code == 0
    hrefs = {row["id"]: row["href"] for row in data_of(tmp_path / "pages" / "all.html")["list"]}
    assert hrefs == {
        "one": "../runs/one/view.html",
        "50% #1": "../runs/50%25%20%231/view.html",
    }


@pytest.mark.parametrize("sessions", ["sessions", "sqlite:///sessions.db"])
def test_a_session_is_shown_and_listed(tmp_path: Path, sessions: str) -> None:
    """A session in files or a database has a page, by its id or `last`, whose commands work."""
    memory, turns = talk(sessions_at(sessions))
    said(memory, turns, "Sum the sales.", "approve", "approve", "approve")
    place = () if sessions == "sessions" else ("--sessions", sessions)
    file = "sessions/trip/view.html" if sessions == "sessions" else "trip.html"
    for words in (["trip"], ["--session", "last"]):
        seen = command("view", *words, *place)
        assert (seen.code, seen.out.splitlines()[-1]) == (0, file)
    page = data_of(Path(file))
    assert page["screen"] == "session"
    assert [turn["status"] for turn in page["session"]["turns"]] == ["done"]
    for commands in (page["session"]["commands"], page["runs"][0]["commands"]):
        for line in commands.values():
            assert command(*shlex.split(line)[1:]).code == 0, line
    assert command("view", *place).code == 0
    [row] = data_of(Path("runs.html"))["list"]
    assert (row["id"], row["kind"], row["result"]) == ("trip", "session", "The sales are 42.")
    assert row["href"] == ("sessions/trip/view.html" if sessions == "sessions" else "")
    assert command(*shlex.split(row["command"])[1:]).code == 0


def test_a_failed_turn_names_the_command_that_resumes_it() -> None:
    """The page of a session whose last turn waits has the command that continues it."""
    memory, turns = talk(Path("sessions"))
    said(memory, turns, "Sum the sales.", "approve")
    assert command("view", "trip").code == 0
    page = data_of(Path("sessions/trip/view.html"))
    assert page["session"]["commands"]["resume"] == "mergepoint chat --resume trip"


@pytest.mark.campaign
def test_the_page_of_a_session_loads_no_engine() -> None:
    """LangGraph takes a quarter of a second, which a command that only looks does without."""
    memory, turns = talk(Path("sessions"))
    said(memory, turns, "Sum the sales.", "approve")
    code = (
        "import sys\n"
        "from mergepoint.apps.cli import main\n"
        "sys.argv = ['mergepoint', 'view', '--no-open', 'trip']\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        "sys.exit(any(name.startswith('langgraph') for name in sys.modules))\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0  # noqa: S603


@pytest.mark.parametrize("kind", ["sqlite", "postgresql"])
def test_a_run_in_a_database_has_the_page_of_a_file(here: Path, kind: str) -> None:
    """Run, list and comparison are written from SQL, also beside a damaged run."""
    with place_of(kind, here) as place:
        store = ("--store", place.address)
        for name in ("a", "b", "bad"):
            ran = command("run", "flat_chat", "-i", "topic=rain", "-q", "--run-id", name, *store)
            assert ran.code == 0, ran.err
        place.damage("bad", "format")
        for words, screen in ((["a"], "run"), ([], "runs"), (["a", "b"], "compare")):
            seen = command("view", *words, *store, "--no-open", "-o", f"{screen}.html")
            assert seen.code == 0, seen.err
            assert data_of(here / f"{screen}.html")["screen"] == screen
        rows = data_of(here / "runs.html")["list"]
        assert {row["id"]: row["status"] for row in rows} == {
            "a": "done",
            "b": "done",
            "bad": "damaged",
        }
