"""`mergepoint diff`: two runs in the terminal."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.apps.command import command, completions, on_terminal

from mergepoint.report.word_diff import Piece, shortened, word_diff

CRITIC = "threads/first:prompt=Criticise the last response harshly."


@pytest.fixture(autouse=True)
def runs() -> None:
    """Make two runs, of which the second has another critic."""
    assert command("run", "essay.py", "-i", "topic=rivers", "--run-id", "one").code == 0
    again = command("run", "essay.py", "-i", "topic=rivers", "--run-id", "two", "--set", CRITIC)
    assert again.code == 0


def test_the_first_divergence_comes_first() -> None:
    """The output begins with the runs and the divergence, with the words that differ in it."""
    shown = command("diff", "one", "two")
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    assert lines[0].startswith("A  one  essay.py:tree  ")
    assert lines[1].startswith("B  two  essay.py:tree  ")
    assert lines[3:6] == [
        "First divergence: essay/threads/first has another prompt.",
        "  prompt:",
        "    Criticise the last [-response.-] {+response harshly.+}",
    ]
    assert "Changed: 1" in lines
    assert f"       B  {CRITIC}" in lines
    assert any(line.endswith("essay/threads/first  (prompt)") for line in lines)
    assert lines[-1].split()[0] in ("cost", "time", "paid", "tokens")


def test_json_names_the_divergence_and_what_follows() -> None:
    """With --json, first_divergence is a path, changed and freed are lists of paths."""
    data = command("diff", "one", "two", "--json").data
    assert data["first_divergence"] == "essay/threads/first"
    assert data["changed"] == ["essay/threads/first"]
    assert data["settings"] == {"set": {"a": None, "b": [CRITIC]}}
    assert {row["path"]: row["kind"] for row in data["calls"]}["essay/draft"] == "same"


def test_equal_runs_are_said_to_be_equal() -> None:
    """A run compared with itself has no divergence: null in JSON."""
    data = command("diff", "one", "one", "--json").data
    assert data["first_divergence"] is None
    assert (data["changed"], data["freed"], data["settings"]) == ([], [], {})
    shown = command("diff", "one", "one")
    assert "No call differs." in shown.out
    assert "First divergence" not in shown.out


def test_exit_code_tells_scripts_whether_runs_differ() -> None:
    """A comparison succeeds; only with --exit-code is a difference an exit code of its own."""
    assert command("diff", "one", "two").code == 0
    assert command("diff", "one", "two", "--exit-code").code == 3
    assert command("diff", "one", "one", "--exit-code").code == 0
    assert command("diff", "one", "two", "--exit-code", "--json").code == 3


@pytest.mark.parametrize("name", ["last", "runs/two", "runs/two/transcript.json"])
def test_runs_are_found_as_by_show(name: str) -> None:
    """A run is named by its id, as the last one, by its folder, or by its transcript."""
    assert command("diff", "one", name, "--json").data["changed"] == ["essay/threads/first"]


def test_a_run_that_is_not_there_is_refused() -> None:
    """The message lists the runs that there are."""
    shown = command("diff", "one", "thre")
    assert shown.code == 2
    assert "Run 'thre' not found in runs." in shown.err
    assert command("diff", "one", "three", "--json").data["status"] == "refused"


def test_runs_of_different_workflows_are_compared(here: Path) -> None:
    """Of a tree and a recipe, everything is only in one of the two."""
    assert command("run", "best_of_n", "Name a color.", "--run-id", "recipe").code == 0
    shown = command("diff", "one", "recipe")
    assert shown.code == 0
    assert "A ran essay.py:tree, B ran best_of_n. They are runs of different trees." in shown.out


def test_hostile_text_is_shown_and_not_obeyed(here: Path) -> None:
    """Escapes and marks of direction in prompts are printed as visible text."""
    hostile = "draft:prompt=\x1b[2JGone \u202eback"
    command("run", "essay.py", "-i", "topic=rivers", "--run-id", "bad", "--set", hostile)
    shown = command("diff", "one", "bad").out
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert "\\x1b[2JGone" in shown


@pytest.mark.campaign
def test_a_terminal_has_colors_beside_the_marks() -> None:
    """On a terminal, what was removed is red and what was added is green, and both have marks."""
    code, shown = on_terminal("diff", "one", "two")
    assert code == 0
    assert "\x1b[31m[-response.-]" in shown
    assert "\x1b[32m{+response harshly.+}" in shown


def test_both_runs_are_completed() -> None:
    """The shell completes the names of runs."""
    assert completions("mergepoint diff ") == ["last", "two", "one"]
    assert completions("mergepoint diff one t") == ["two"]


def test_runs_in_a_database_are_compared() -> None:
    """With --store, both runs are looked up in the database."""
    for name, topic in (("x", "rivers"), ("y", "seas")):
        given = ("-i", f"topic={topic}", "--store", "sqlite:///runs.db", "--run-id", name)
        assert command("run", "essay.py", *given).code == 0
    data = command("diff", "x", "y", "--store", "sqlite:///runs.db", "--json").data
    assert data["first_divergence"] == "essay/draft"
    assert data["settings"] == {"input topic": {"a": "rivers", "b": "seas"}}


@pytest.mark.campaign
def test_comparing_loads_no_engine() -> None:
    """LangGraph takes a quarter of a second, which a command that only looks does without."""
    program = (
        "import atexit, sys\n"
        "from mergepoint.apps.cli.app import main\n"
        "atexit.register(lambda: print('langgraph' in sys.modules, file=sys.stderr))\n"
        "sys.argv[1:] = ['diff', 'one', 'two']\n"
        "main()"
    )
    ended = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert ended.stderr.splitlines()[-1:] == ["False"]


def test_words_of_a_diff_add_up_to_both_texts() -> None:
    """Without what was added it is the first text, without what was removed the second."""
    one, other = "The quick brown fox\njumps over", "The slow brown fox jumps  over it"
    pieces = word_diff(one, other)
    first = "".join(piece.text for piece in pieces if piece.change != "added")
    second = "".join(piece.text for piece in pieces if piece.change != "removed")
    assert first.split() == one.split()
    assert second.split() == other.split()


def test_a_long_equal_passage_is_cut() -> None:
    """Only the words beside a difference are left, and the beginning of a long new passage."""
    words = " ".join(f"w{number}" for number in range(40))
    pieces = shortened(word_diff(f"{words} old", f"{words} new"), around=2)
    assert [piece.text for piece in pieces] == ["… w38 w39 ", "old", "new"]
    long = shortened(word_diff("", words), most=3)
    assert long == [Piece("added", "w0 w1 w2 …")]


def test_huge_texts_are_replaced_as_a_whole() -> None:
    """Texts of many thousand words are not matched word by word."""
    one, other = ("a b " * 20_000).strip(), ("c d " * 20_000).strip()
    assert [piece.change for piece in word_diff(one, other)] == ["removed", "added"]
