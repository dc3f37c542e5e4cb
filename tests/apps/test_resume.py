"""`mergepoint resume`: a run goes on as it was started, without being told again how."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest
from tests.apps.command import Outcome, command, process

from mergepoint.apps.cli.invocation import Invocation, read_invocation
from mergepoint.apps.cli.run_store import RunStore
from mergepoint.journal.checked_lines import decode, encode

KEY = "sk-proj-Ab1Cd2Ef3Gh4Ij5Kl6Mn7Op8"

LATE = '''\
"""A tree whose second prompt fails, or kills, as long as there is no file `ready`."""

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


tree = Block([Step("Describe a harbour.", name="one"), Step(late, name="two"), Step("End.")])
'''


CALLING = '''\
"""A prompt function, a function, and a prompt that fails as long as there is no file `ready`."""

from pathlib import Path

from mergepoint import Block, Call, Step


def ask(ctx):
    return "Describe a harbour."


def count(ctx):
    return len(ctx.messages)


def end(ctx):
    if not Path("ready").exists():
        raise RuntimeError("not ready")
    return "End."


tree = Block(
    [Step(ask, name="ask"), Call(count, name="count", capture_key="n"), Step(end, name="end")],
    name="p",
)
'''


@pytest.fixture(autouse=True)
def late(here: Path) -> None:
    """Write the tree that fails at first."""
    (here / "late.py").write_text(LATE, encoding="utf-8")


def begun(*args: str) -> Path:
    """Return the folder of a run that failed at its second call."""
    assert command("run", "late.py", "--run-id", "r", *args).code == 1
    return Path("runs/r")


def resumed(*args: str) -> Outcome:
    """Resume the run, ready by now."""
    Path("ready").touch()
    return command("resume", "r", *args)


def forget(command: object = None) -> None:
    """Put another command, or none, into the header of the run's journal."""
    journal = Path("runs/r/journal.jsonl")
    first, *others = journal.read_bytes().splitlines(keepends=True)
    header = decode(first)
    header["meta"] = {} if command is None else {"command": command}
    journal.write_bytes(b"".join([encode(header), *others]))


def on_record(folder: Path) -> list[str]:
    """Return the paths of the records in a journal."""
    lines = (folder / "journal.jsonl").read_bytes().splitlines()[1:]
    return [json.loads(line[9:])["path"] for line in lines]


def test_a_failed_run_says_how_to_go_on_and_does() -> None:
    """The command at the end of a failed run ends it, and pays no call again."""
    failed = command("run", "late.py", "--run-id", "r")
    assert failed.err.splitlines()[-1] == "  resume: mergepoint resume r"
    run = resumed("--json")
    assert (run.code, run.data["status"], run.data["run_id"]) == (0, "done", "r")
    assert on_record(Path("runs/r")) == ["pipeline/one", "pipeline/two", "pipeline/step_03"]
    again = resumed("--json")
    assert (again.code, len(on_record(Path("runs/r")))) == (0, 3)


def test_a_killed_run_goes_on() -> None:
    """After kill -9 the run's command is on record, and a resume ends it."""
    Path("kill").touch()
    assert process("run", "late.py", "--run-id", "r").code == -signal.SIGKILL
    Path("kill").unlink()
    assert resumed("--quiet").code == 0
    assert len(on_record(Path("runs/r"))) == 3


def test_what_was_changed_for_the_run_is_changed_again() -> None:
    """--set and --without need not be repeated; else the tree would be another."""
    begun("--set", "one:temperature=0.2", "--without", "step_03", "--form", "fused", "--seed", "3")
    assert resumed().code == 0
    assert on_record(Path("runs/r")) == ["pipeline/one", "pipeline/two"]


def test_a_run_goes_on_from_another_folder(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are named from the run's folder, and not from where one stands."""
    begun()
    (here / "elsewhere").mkdir()
    monkeypatch.chdir("elsewhere")
    Path("ready").touch()
    assert command("resume", str(Path("../runs/r"))).code == 0


def test_a_run_goes_on_in_a_project_that_was_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of runs and the tree may move together."""
    assert command("run", "essay.py", "-i", "topic=x", "--run-id", "r").code == 0
    journal = Path("runs/r/journal.jsonl")
    journal.write_bytes(b"".join(journal.read_bytes().splitlines(keepends=True)[:2]))
    here.rename(here.with_name("moved"))
    monkeypatch.chdir(here.with_name("moved"))
    assert command("resume", "r").code == 0
    assert len(on_record(Path("runs/r"))) == 4


def test_functions_are_known_in_a_project_that_was_moved(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are on record by the name of their file, wherever it lies, so nothing is made again."""
    (here / "calling.py").write_text(CALLING, encoding="utf-8")
    assert command("run", "calling.py", "--run-id", "r").code == 1
    there = here.with_name(f"{here.name}_moved")
    here.rename(there)
    monkeypatch.chdir(there)
    assert resumed("-q").code == 0
    assert on_record(Path("runs/r")) == ["p/ask", "p/count", "p/end"]


def test_a_target_that_is_given_wins(here: Path) -> None:
    """A tree that lies elsewhere now is named; one that is another is refused by path."""
    begun()
    (here / "late.py").rename(here / "later.py")
    gone = resumed()
    assert (gone.code, "there is no file 'late.py'" in gone.err) == (2, True)
    drawing = Path("runs/r/graph.svg").read_bytes()
    other = resumed("essay.py")
    assert other.code == 2
    assert "essay/draft: is new since the run began" in other.err
    assert Path("runs/r/graph.svg").read_bytes() == drawing


def test_a_model_that_is_given_wins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another model is another request, which a resume refuses with the paths."""
    begun()
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    refused = resumed("--model", "openai:gpt-5-mini", "--yes")
    assert refused.code == 2
    assert "pipeline/one: is another step than the run began with" in refused.err


def test_a_run_from_python_has_to_be_told() -> None:
    """Where no command began it, it says so, and target and model do."""
    begun()
    forget()
    refused = resumed()
    assert refused.code == 2
    assert "mergepoint resume r TARGET --model PROVIDER:NAME" in refused.err
    assert resumed("late.py").code == 2
    assert resumed("late.py", "--model", "offline").code == 0


def test_a_command_that_cannot_be_read_is_refused() -> None:
    """The error names the run and the way out."""
    begun()
    unknown: tuple[object, ...] = (
        [],
        {"format": "mergepoint.command/9"},
        {"format": "mergepoint.command/2"},
    )
    for command_ in unknown:
        forget(command_)
        refused = resumed()
        assert refused.code == 2
        assert "Can't read the options that runs/r was started with" in refused.err
        assert "mergepoint resume r " in refused.err


def test_no_run_and_no_journal_are_refused() -> None:
    """What is not there is answered with what is."""
    begun()
    refused = command("resume", "q", "--json")
    assert (refused.code, refused.data["status"]) == (2, "refused")
    assert "Run 'q' not found in runs. Most recent runs: r." in refused.data["message"]


@pytest.mark.parametrize(
    ("command", "left_out"),
    [
        (Invocation(target="x", model="m:n", base_url=("https://me:pw@host/v1",)), ("--base-url",)),
        (
            Invocation(target="x", model="m:n", base_url=("https://host/v1?key=k9",)),
            ("--base-url",),
        ),
        (Invocation(target="x", set=('a:params={"api_key": "k9"}',)), ("--set a:params",)),
        (Invocation(target="x", set=(f"a:system={KEY}",)), ("--set a:system",)),
        (Invocation(target="x", model="m:n", base_url=("http://localhost:8080/v1",)), ()),
        (Invocation(target="x", set=("a:params={'max_tokens': 7}",), without=("b",)), ()),
    ],
)
def test_keys_are_not_written(command: Invocation, left_out: tuple[str, ...]) -> None:
    """An address or a setting with a key is left out and named; the rest comes back as it was."""
    folder = begun()
    text = json.dumps(kept := command.to_meta(folder))
    assert not any(secret in text for secret in ("pw", "k9", KEY))
    forget(kept["command"])
    read = read_invocation(RunStore.at(None, None).find("r"))
    assert read is not None
    assert read.hidden == left_out
    assert left_out or read == command


def test_what_was_left_out_has_to_be_given_again() -> None:
    """A run whose settings held a key says which, and that all are to be given."""
    folder = begun("--set", f"one:system={KEY}")
    refused = resumed()
    assert refused.code == 2
    assert "--set one:system: the value looked like a key" in refused.err
    assert "mergepoint resume r " in refused.err
    assert all(KEY.encode() not in file.read_bytes() for file in folder.iterdir())


def test_live_lines_tell_recorded_answers_from_calls() -> None:
    """What a resume takes from the record is shown as reused, and what it calls as done."""
    begun()
    lines = [line.split("]")[1].split()[:2] for line in resumed().err.splitlines() if "] " in line]
    assert lines == [
        ["reused", "pipeline/one"],
        ["done", "pipeline/two"],
        ["done", "pipeline/step_03"],
    ]
    Path("calling.py").write_text(CALLING, encoding="utf-8")
    assert command("run", "calling.py", "--run-id", "c", "-q").code == 0
    again = command("run", "calling.py", "--reuse", "c")
    lines = [line.split("]")[1].split()[:2] for line in again.err.splitlines() if "] " in line]
    assert lines == [["reused", "p/ask"], ["reused", "p/count"], ["reused", "p/end"]]
