"""The line that is printed when a run ended early can be pasted, and goes on with it."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.apps.command import Outcome, command

LATE = '''\
"""A tree whose second prompt is Ctrl-C, as long as there is no file `ready`."""

import os
import signal
from pathlib import Path

from mergepoint import Block, Gate, Step


def late(ctx):
    if not Path("ready").exists():
        os.kill(os.getpid(), signal.SIGINT)
    return "Critique it."


steps = [Step("Describe a harbour.", name="one"), Step(late, name="two"), Step("End.", name="end")]
tree = Block(steps, name="t")
gated = Block([*steps[:2], Gate(steps[2], name="gate")], name="t")
'''

ODD = """\
name: odd
knobs: {n: 1}
stages:
  - type: generate
    params: {n: "{{ n }}"}
  - type: set
    params: {props: {score: high}}
  - type: filter
    params: {where: {score: {at_least: 3}}}
"""


@pytest.fixture(autouse=True)
def late(here: Path) -> None:
    """Write a tree that is interrupted at first, and a recipe that fails."""
    (here / "late.py").write_text(LATE, encoding="utf-8")
    (here / "odd one.yaml").write_text(ODD, encoding="utf-8")


def interrupted(*words: str) -> str:
    """Return the line that a run prints that was ended by Ctrl-C."""
    run = command(*words)
    assert run.code == 130
    printed = run.err.splitlines()[-1].removeprefix("  resume: ")
    assert printed.startswith("mergepoint ")
    return printed


def pasted(line: str) -> Outcome:
    """Run a line as a shell would read it, ready by now."""
    Path("ready").touch()
    first, *words = shlex.split(line)
    assert first == "mergepoint"
    return command(*words)


def calls(folder: Path | str) -> int:
    """Return how many records a run's journal has, without those of begun calls."""
    lines = (Path(folder) / "journal.jsonl").read_bytes().splitlines()[1:]
    return sum(b'"begun":true' not in line.replace(b" ", b"") for line in lines)


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--out", "my runs"),
        ("--out", "."),
        ("--out", "{here}/else"),
        ("--store", "sqlite:///my runs.db"),
        ("--set", "one:temperature=0.2", "--without", "end", "--form", "fused"),
        ("--budget", "calls=9", "--seed", "4", "--max-concurrency", "2", "--sequential"),
    ],
    ids=" ".join,
)
def test_the_line_finds_the_run_wherever_it_is(here: Path, options: Sequence[str]) -> None:
    """Folders, databases and changes of the tree are found again by what was printed."""
    given = [one.format(here=here) for one in options]
    line = interrupted("run", "late.py", "--run-id", "r", *given)
    done = pasted(f"{line} --json -q")
    assert (done.code, done.data["run_id"]) == (0, "r")


def test_numbers_are_printed_as_they_were_given() -> None:
    """A number of many digits is not rounded: the resumed call would be another one."""
    given = ("--temperature", "0.12345678", "--timeout", "1234567.5")
    line = interrupted("run", "late.py", "--run-id", "r", *given)
    assert line == "mergepoint resume r --temperature 0.12345678 --timeout 1234567.5"
    assert pasted(line).code == 0


def test_a_run_in_the_usual_folder_is_found_beside_a_database_that_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """--out wins over the variable; the line says the folder, since the variable would win."""
    monkeypatch.setenv("MERGEPOINT_STORE", "sqlite:///other.db")
    line = interrupted("run", "late.py", "--run-id", "r", "--out", "runs")
    assert line == "mergepoint resume runs/r"
    assert pasted(line).code == 0
    assert calls("runs/r") == 3


def test_what_a_resume_was_told_is_said_again() -> None:
    """The record knows how the run began; what another command changed is in the line."""
    command("run", "late.py", "--run-id", "r", "--budget", "calls=1")
    Path("moved").mkdir()
    Path("late.py").rename("moved/late.py")
    again = interrupted("resume", "r", "moved/late.py", "--budget", "calls=9", "--price", "m:*=1,2")
    assert again == "mergepoint resume r moved/late.py:tree --budget calls=9 --price 'm:*=1,2'"
    assert pasted(again).code == 0
    assert calls("runs/r") == 3


def test_what_a_resume_cannot_be_told_is_said_to_run() -> None:
    """A run that continues without a recorded budget has all its options in the line."""
    interrupted("run", "late.py", "--run-id", "r", "--budget", "calls=3")
    options = ["--ignore-recorded", "--form", "fused", "--set", "end:meta={}"]
    line = interrupted("resume", "r", "late.py", *options)
    assert line == (
        "mergepoint resume r late.py:tree --model offline --set 'end:meta={}' --form fused "
        "--ignore-recorded"
    )
    assert pasted(line).code == 0


def test_answers_that_were_given_are_given_again() -> None:
    """A gate that was not come to yet is decided as was said."""
    line = interrupted("run", "late.py:gated", "--run-id", "r", "--answer", "**/gate=approve")
    assert line == "mergepoint resume r --answer '**/gate=approve'"
    assert pasted(line).code == 0


def test_a_run_from_python_is_resumed_by_what_it_was_told(here: Path) -> None:
    """Nothing is on record of how it began, so the line names the tree again."""
    from mergepoint import RunContext, run_generation
    from mergepoint.targets import find_target

    tree = find_target("late.py").tree
    assert tree is not None
    with pytest.raises(KeyboardInterrupt):
        run_generation(tree, model="offline", ctx=RunContext(run_id="p"), runs="runs")
    shown = command("show", "p", "--json").data["resume"]
    assert shown == "mergepoint resume p TARGET --model PROVIDER:NAME"
    line = interrupted("resume", "p", "late.py", "--model", "offline")
    assert line == "mergepoint resume p late.py:tree --model offline"
    assert pasted(line).code == 0


def test_a_key_is_no_part_of_the_line() -> None:
    """What holds a key is asked for in capitals; the key is not printed."""
    run = command("run", "late.py", "--run-id", "r", "--set", 'one:params={"api_key": "k9"}')
    assert run.code == 130
    line = run.err.splitlines()[-1]
    assert line == "  resume: mergepoint resume r --set one:params=VALUE"
    assert "k9" not in line


@pytest.mark.parametrize(
    "options", [("--out", "my runs"), ("--store", "sqlite:///my runs.db"), ()], ids=" ".join
)
def test_the_line_of_a_recipe_has_all_that_it_needs(options: Sequence[str]) -> None:
    """Place, file, knobs, budget and how many Things are wanted: pasted, it comes to the same."""
    given = ["-k", "n=2", "-n", "3", "--budget", "calls=5", "--price", "m:*=1,2", *options]
    first = command("run", "odd one.yaml", "Is it wet?", "--run-id", "r1", "-q", *given)
    assert first.code == 1
    line = first.err.splitlines()[-1].removeprefix("  resume: ")
    assert line.startswith("mergepoint resume ")
    assert line.endswith(" --budget calls=5 --price 'm:*=1,2'")
    again = pasted(f"{line} -q")
    assert again.code == 1
    assert again.err == first.err
    text = Path("odd one.yaml").read_text(encoding="utf-8")
    Path("odd one.yaml").write_text(text.replace("high", "7"), encoding="utf-8")
    assert "set: is another than the run began with" in pasted(line).err


def test_the_model_of_a_recipe_is_said_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """The line names the model and hides the key of an address, which is not on record."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    where = ["--model", "openai:none", "--base-url", "http://k9:k9@127.0.0.1:9/v1"]
    done = command("run", "step_back", "x", "--run-id", "r1", "-q", *where)
    line = done.err.splitlines()[-1].removeprefix("  resume: ")
    assert line == "mergepoint resume r1 --model openai:none --base-url URL"
    assert "looked like a key and was not recorded" in command("resume", "r1").err


def test_runs_show_tells_how_a_recipe_goes_on() -> None:
    """From its record alone: by the name of one that comes along, or by its file."""
    command("run", "best_of_n", "x", "--run-id", "r1", "-q")
    journal = Path("runs/r1/journal.jsonl")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:-2]))
    line = command("show", "r1", "--json").data["resume"]
    assert line == "mergepoint resume r1"
    assert pasted(line).code == 0
    command("run", "odd one.yaml", "x", "--run-id", "r2")
    assert command("show", "r2", "--json").data["resume"] == "mergepoint resume r2"


@pytest.mark.parametrize("run_id", ["last", "-r"])
def test_an_id_by_which_nothing_could_be_found_is_refused(run_id: str) -> None:
    """An id that a command takes for something else is refused by trees and recipes alike."""
    for words in (("run", "late.py"), ("run", "best_of_n", "x")):
        done = command(*words, f"--run-id={run_id}")
        assert (done.code, "can't be the ID of a run" in done.err) == (2, True)


def test_a_resume_can_set_zero_and_sequential() -> None:
    """A value that Python takes for false overrides the recorded one, and is printed again."""
    interrupted("run", "late.py", "--run-id", "r", "--temperature", "0")
    line = interrupted("resume", "r", "--temperature", "0", "--sequential")
    assert line == "mergepoint resume r --temperature 0 --sequential"
    assert pasted(line).code == 0
