"""The command as a process: help, version, pipes, terminals, completion."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
from tests.apps.command import (
    command,
    completions,
    line,
    on_terminal,
    only_transcript,
    paths,
    plain,
    process,
    transcripts,
)

COMMANDS = ("demo", "run", "resume", "graph", "show", "list")
RUNS = ("list", "tail", "check", "repair", "export")


def test_help_names_every_command_and_the_exit_codes() -> None:
    """The first thing people and scripts need is on one page."""
    text = process("--help").out
    for name in (*COMMANDS, "runs"):
        assert re.search(rf"^  {name} +\w.*[^.][.]$", text, re.MULTILINE), name
    assert "Exit codes:\n    0    The command succeeded.\n" in text


@pytest.mark.parametrize("name", [*COMMANDS, *(f"runs {name}" for name in RUNS)])
def test_every_command_has_examples(name: str) -> None:
    """Help ends with lines that can be copied whole."""
    run = command(*name.split(), "--help")
    assert run.code == 0
    _, _, rest = run.out.partition("Examples:\n")
    examples = [text.strip() for text in rest.partition("\n\n")[0].splitlines()]
    assert examples
    assert all(text.startswith(f"mergepoint {name}") for text in examples)


def test_help_needs_no_engine() -> None:
    """Help and completion are quick because nothing heavy is imported for them."""
    program = (
        "import sys\nfrom mergepoint.apps.cli import main\nsys.argv = ['mergepoint', '--help']\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'langgraph', 'langchain_core', 'pydantic', 'rich', 'yaml'} & set(sys.modules)\n"
        "print('heavy', heavy)\n"
    )
    done = subprocess.run(  # noqa: S603  (this interpreter)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert done.stdout.endswith("heavy set()\n")


def test_version_is_the_packages() -> None:
    """The version is that of the installed distribution."""
    assert process("--version").out == version("mergepoint") + "\n"


def test_no_command_is_answered_with_help() -> None:
    """Who types only the name is shown what there is, and a script hears that it was wrong."""
    run = process()
    assert run.code == 2
    assert run.out == ""
    assert run.err.startswith("Usage: ")


def test_an_unknown_command_is_answered_with_a_near_one() -> None:
    """A typo gets the nearest command and the way to help."""
    run = process("rnu")
    assert run.code == 2
    assert "No such command 'rnu'" in run.err
    assert "Did you mean 'run'" in run.err


def test_an_error_of_ours_is_told_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fault of the command itself is one message too, with code 1 and the way to see more."""

    def broken(*_: object, **__: object) -> object:
        raise ZeroDivisionError("by nought")

    monkeypatch.setattr("mergepoint.tree.load.graph_names", broken)
    run = command("runs", "list", "--out", "runs")
    assert run.code == 0
    monkeypatch.setattr("mergepoint.apps.cli.run_store.run_folders", broken)
    run = command("runs", "list")
    assert run.code == 1
    assert "\nerror: ZeroDivisionError: by nought\n" in run.err  # behind the frames of this test
    assert "--traceback" in run.err


@pytest.mark.campaign
@pytest.mark.parametrize("args", [("list",), ("run", "essay.py", "-i", "topic=x", "-q")])
def test_a_reader_that_goes_away_is_no_error(args: tuple[str, ...]) -> None:
    """Nothing is said about a closed pipe; the code is that of SIGPIPE, the transcript is there."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(  # noqa: S603  (this interpreter)
            line(*args), stdout=closed, stderr=subprocess.PIPE, check=False
        )
    assert done.returncode == 141
    assert done.stderr == b""
    assert len(transcripts()) == (args[0] == "run")


@pytest.mark.campaign
def test_a_run_outlives_the_reader_of_its_progress() -> None:
    """With stderr closed the run goes on: its result and transcript are whole."""
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "wb") as closed:
        done = subprocess.run(  # noqa: S603  (this interpreter)
            line("run", "essay.py", "-i", "topic=x"),
            stdout=subprocess.PIPE,
            stderr=closed,
            check=False,
        )
    assert done.returncode == 0
    assert len(paths(only_transcript())) == 4
    assert done.stdout.decode().strip() == only_transcript()["text"]


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_a_terminal_gets_the_live_tree() -> None:
    """Every path ends with a mark, and the cursor is given back."""
    code, shown = on_terminal("run", "essay.py", "-i", "topic=rivers")
    assert code == 0
    text = plain(shown)
    for name in ("essay", "draft", "first", "second", "consensus"):
        assert f"✓ {name}" in text
    assert "4 of 4 calls" in text
    assert "[4/4]" not in text
    assert text.index("Result") < text.index("words sent") < text.index("graph.svg")
    assert shown.rfind("\x1b[?25h") > shown.rfind("\x1b[?25l")


@pytest.mark.campaign
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
@pytest.mark.parametrize(("typed", "code"), [("n\n", 130), ("y\n", 0)])
def test_on_a_terminal_a_person_is_asked(here: Path, typed: str, code: int) -> None:
    """A no makes no call and writes nothing; a yes goes on."""
    text = (
        "from langchain_core.language_models import FakeListChatModel\n"
        "from mergepoint import Step\n\n"
        "tree = Step('x', model=FakeListChatModel(responses=['Yes.']))\n"
    )
    (here / "own.py").write_text(text, encoding="utf-8")
    left, shown = on_terminal("run", "own.py", typed=typed)
    assert left == code
    assert "1 model call coming" in shown
    assert "Continue?" in shown
    assert len(transcripts()) == (code == 0)
    if code:
        assert "No call was made" in shown


@pytest.mark.campaign
def test_the_shell_completes_graphs_runs_and_paths() -> None:
    """Names of graphs, ids of runs, and the paths of the run that was named."""
    command("run", "essay.py", "-i", "topic=x", "--run-id", "one")
    assert completions("mergepoint run ima") == ["image_prompt"]
    assert completions("mergepoint run es") == ["essay.py"]
    assert completions("mergepoint show ")[:2] == ["last", "one"]
    assert completions("mergepoint show one essay/th") == [
        "essay/threads/first",
        "essay/threads/second",
    ]
    assert completions("mergepoint show none es") == []
