"""`--store`: runs in a database, by every command that names a run."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.apps.command import Outcome, command, completions, process
from tests.journal.places import Place, place_of

from mergepoint.core.errors import install_command
from mergepoint.journal.sql_journal import SqlStore

PATHS = ["essay/draft", "essay/threads/first", "essay/threads/second", "essay/consensus"]

LATE = '''\
"""A tree whose second prompt kills, or fails, as long as there is no file `ready`."""

import os
import signal
from pathlib import Path

from mergepoint import Block, Step


def late(ctx):
    if Path("kill").exists():
        os.kill(os.getpid(), signal.SIGKILL)
    if not Path("ready").exists():
        raise RuntimeError("not ready")
    return "Critique it."


tree = Block([Step("Describe a harbour.", name="one"), Step(late, name="two")])
'''


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    """Yield an empty database of each kind."""
    with place_of(request.param, tmp_path) as found:
        yield found


def essay(place: Place, *args: str) -> Outcome:
    """Run the essay into the database."""
    given = ["essay.py", "-i", "topic=rivers", "--run-id", "one"]
    return command("run", *given, "--store", place.address, *args)


def late(place: Place, *, kill: bool) -> None:
    """Leave a run in the database that was killed, or that failed, at its second call."""
    Path("late.py").write_text(LATE, encoding="utf-8")
    if kill:
        Path("kill").touch()
    run = process("run", "late.py", "--run-id", "r", "--store", place.address)
    assert run.code == (-signal.SIGKILL if kill else 1)
    Path("kill").unlink(missing_ok=True)
    Path("ready").touch()
    show = ("show", "r", "--store", place.address, "--json")
    while kill and command(*show).data["state"] == "running":  # until a server sees that it is gone
        time.sleep(0.02)


def test_a_run_is_kept_in_a_database(place: Place) -> None:
    """Nothing is written beside it, and the summary says where it is and how to look into it."""
    run = essay(place)
    assert run.code == 0
    assert not Path("runs").exists()
    assert [record.path for record in SqlStore(place.address).read("one")[1]] == PATHS
    told = {line[:13].strip(): line[13:] for line in run.err.splitlines()}
    assert told["stored as"].startswith("one in ")
    assert told["look inside"].startswith("mergepoint show one --store ")
    assert "transcript" not in told


def test_json_names_the_database(place: Place) -> None:
    """A program is told the run's id and the store, and no file."""
    data = essay(place, "--json", "--quiet").data
    assert (data["status"], data["run_id"]) == ("done", "one")
    assert data["store"] == str(SqlStore(place.address))
    assert "transcript" not in data


def test_runs_are_seen_in_a_database(place: Place) -> None:
    """List, show, tail, check, export and the x-ray of a call work as they do on files."""
    essay(place)
    where = ("--store", place.address)
    (run,) = command("runs", "list", *where, "--json").data
    assert (run["run_id"], run["state"], run["calls"], run["of"]) == ("one", "done", 4, 4)
    (row,) = command("runs", "list", *where).out.splitlines()[1:]
    assert row.split()[:4] == ["one", "essay.py:tree", "done", "4/4"]
    assert "mergepoint:offline" in row
    shown = command("show", "last", *where)
    assert "stored in " in shown.out
    assert command("show", "one", *where, "--json").data["folder"] is None
    tail = command("runs", "tail", "one", *where, "-f", "--json").out.splitlines()
    assert [json.loads(line)["path"] for line in tail] == PATHS
    assert len(command("runs", "tail", "one", *where, "-n", "2").out.splitlines()) == 2
    assert command("runs", "check", "--all", *where).out == "one: OK\n"
    exported = command("runs", "export", "one", *where).data
    assert [step["path"] for step in exported["steps"]] == PATHS
    assert command("runs", "export", "one", *where, "--to", "t.json").code == 0
    assert json.loads(Path("t.json").read_text(encoding="utf-8")) == exported
    assert "It answered" in command("show", "one", "first", *where).out
    assert "essay/draft" in command("show", "t.json", *where).out


@pytest.mark.campaign
@pytest.mark.parametrize("kill", [True, False])
def test_a_run_in_a_database_goes_on(place: Place, *, kill: bool) -> None:
    """What it was started with is in its header, so that a resume need not repeat it."""
    late(place, kill=kill)
    where = ("--store", place.address)
    shown = command("show", "r", *where, "--json").data
    assert shown["state"] == "unfinished"
    assert shown["resume"].startswith("mergepoint resume r --store ")
    done = command("resume", "last", *where, "--json", "--quiet")
    assert (done.code, done.data["status"]) == (0, "done")
    records = SqlStore(place.address).read("r")[1]
    assert [one.path for one in records if one.answered] == ["pipeline/one", "pipeline/two"]


@pytest.mark.first_case
def test_a_run_in_a_database_is_reused_and_replayed(place: Place) -> None:
    """No answer is paid twice, wherever the run is that it comes from."""
    essay(place)
    for way in ("--reuse", "--replay"):
        given = ["essay.py", "-i", "topic=rivers", way, "one", "--store", place.address]
        assert command("run", *given, "--quiet").code == 0
    assert command("run", "essay.py", "-i", "topic=rivers", "--run-id", "f").code == 0
    given = ["essay.py", "-i", "topic=rivers", "--replay", "runs/f", "--store", place.address]
    assert command("run", *given, "--quiet").code == 0
    runs = command("runs", "list", "--store", place.address, "--json").data
    assert len(runs) == 4


@pytest.mark.campaign
def test_the_environment_names_a_database(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where MERGEPOINT_STORE is set it need not be given, and --out is a folder all the same."""
    monkeypatch.setenv("MERGEPOINT_STORE", place.address)
    run = command("run", "essay.py", "-i", "topic=x", "--run-id", "one")
    assert "look inside  mergepoint show one PATH" in run.err
    assert len(command("runs", "list", "--json").data) == 1
    assert command("runs", "list", "--out", "runs", "--json").data == []
    assert completions("mergepoint show o") == ["one"]
    assert completions("mergepoint show one essay/t") == PATHS[1:3]


def test_an_id_that_is_taken_is_refused(place: Place) -> None:
    """The second run of an id is told, and nothing is called."""
    essay(place)
    again = essay(place)
    assert again.code == 2
    assert "Run 'one' already exists in" in again.err


@pytest.mark.first_case
def test_what_is_wrong_in_a_database_is_told_by_row(place: Place) -> None:
    """Each row that was changed is a problem, with the run and the number."""
    essay(place)
    place.damage("one", "checksum")
    checked = command("runs", "check", "one", "--store", place.address)
    assert checked.code == 3
    assert ", row 3: its checksum does not fit what it holds" in checked.out
    repaired = command("runs", "repair", "one", "--store", place.address)
    assert repaired.code == 2
    assert "Restore it from a backup" in repaired.err
    assert command("runs", "list", "--store", place.address, "--json").data[0]["state"] == "damaged"


def test_a_missing_row_is_told(place: Place) -> None:
    """A record that was taken out is found by the gap that it leaves."""
    essay(place)
    place.damage("one", "gone")
    checked = command("runs", "check", "one", "--store", place.address, "--json")
    assert checked.code == 3
    assert "is missing" in checked.data[0]["problems"][0]["problem"]


def test_a_run_that_is_being_written_is_running(place: Place) -> None:
    """The state is that of the lock, in a database too."""
    essay(place)
    with SqlStore(place.address).open("one"):
        listed = command("runs", "list", "--store", place.address, "--json").data
        assert listed[0]["state"] == "running"
    listed = command("runs", "list", "--store", place.address, "--json").data
    assert listed[0]["state"] == "done"


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("--store", "runs"), "--store 'runs' isn't a database URL. Use sqlite:///runs.db"),
        (("--store", "sqlite:///x.db", "--out", "runs"), "Can't use --out and --store together"),
        (("--store", "mysql://host/db"), "SQLite or PostgreSQL"),
        (("--store", "sqlite://"), "a database in memory ends with its process"),
    ],
)
def test_what_is_no_database_is_refused(args: tuple[str, ...], said: str) -> None:
    """Every command says what to give in its place, with code 2."""
    for words in (["runs", "list"], ["show", "last"], ["run", "essay.py", "-i", "topic=x"]):
        refused = command(*words, *args)
        assert refused.code == 2
        assert said in refused.err


def test_an_empty_database_has_no_runs() -> None:
    """A file is not made by asking."""
    listed = command("runs", "list", "--store", "sqlite:///x.db")
    assert (listed.code, listed.out) == (0, "")
    assert "There are no runs in sqlite:///x.db" in listed.err
    assert command("resume", "last", "--store", "sqlite:///x.db").code == 2
    assert not Path("x.db").exists()


def test_a_password_is_not_told() -> None:
    """What is said of a database holds its address without it."""
    url = "postgresql://ann:hunter22@127.0.0.1:1/db"
    refused = command("runs", "list", "--store", url)
    assert refused.code == 2
    assert "hunter22" not in refused.err
    assert "postgresql://ann:[masked]@127.0.0.1:1/db" in refused.err


@pytest.mark.parametrize(
    ("missing", "url", "extra"),
    [
        ("sqlalchemy", "sqlite:///x.db", "sql"),
        ("psycopg", "postgresql://u@127.0.0.1:1/db", "postgres"),
    ],
)
def test_an_extra_that_is_not_installed_is_named(missing: str, url: str, extra: str) -> None:
    """One message says what to install, and nothing was run."""
    program = (
        f"import sys; sys.modules[{missing!r}] = None\n"
        f"sys.argv = ['mergepoint', 'runs', 'list', '--store', {url!r}]\n"
        "from mergepoint.apps.cli import main; main()"
    )
    done = subprocess.run(  # noqa: S603  (this interpreter)
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert install_command(extra) in done.stderr
    assert "Traceback" not in done.stderr


def test_a_header_from_elsewhere_has_no_command(place: Place) -> None:
    """A run that Python began in the database has to be told how it goes on."""
    from mergepoint import RunContext, Step, run_generation
    from mergepoint.testing.scripted_model import ScriptedModel

    stop: Any = ScriptedModel([TimeoutError("slow")])
    with pytest.raises(TimeoutError):
        run_generation(
            Step("x", name="x"), model=stop, runs=place.address, ctx=RunContext(run_id="p")
        )
    shown = command("show", "p", "--store", place.address, "--json").data
    assert shown["resume"].endswith("TARGET --model PROVIDER:NAME")
    refused = command("resume", "p", "--store", place.address)
    assert refused.code == 2
    assert "doesn't have the options of the run" in refused.err
