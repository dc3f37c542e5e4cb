"""`run --resume`, `--reuse`, `--replay`: no answer is paid twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.apps.command import command
from typer.testing import CliRunner, Result

from mergepoint.apps.cli.app import app

TREE = """\
from mergepoint import Block, Step
from pathlib import Path

def second(ctx):
    if not Path("ready").exists():
        raise RuntimeError("not ready")
    return "Critique it."

tree = Block([Step("Describe a harbour."), Step(second)])
"""


@pytest.fixture
def failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of runs in which a run failed at its second step."""
    monkeypatch.chdir(tmp_path)
    Path("pipe.py").write_text(TREE, encoding="utf-8")
    result = invoked("run", "pipe.py:tree", "--run-id", "r1")
    assert result.exit_code == 1
    return tmp_path / "runs"


def invoked(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, [*arguments])


def sources(file: Path) -> list[str]:
    """Return where the answers of a transcript came from."""
    return [step["source"] for step in json.loads(file.read_text())["steps"]]


def test_a_failed_run_goes_on(failed: Path) -> None:
    """A resumed run ends under its own id, and its journal holds each call once."""
    Path("ready").touch()
    result = invoked("resume", "last", "--json")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (0, "done")
    lines = (failed / "r1" / "journal.jsonl").read_text().splitlines()
    assert sum('"path":"pipeline/step_01"' in line and '"prompt"' in line for line in lines) == 1
    assert len(sources(failed / "r1" / "transcript.json")) == 2


def test_a_new_run_reuses_answers(failed: Path) -> None:
    """With --reuse what was answered is taken over, and the rest is called."""
    Path("ready").touch()
    result = invoked("run", "pipe.py:tree", "--reuse", "r1", "--run-id", "r2")
    assert result.exit_code == 0
    assert sources(failed / "r2" / "transcript.json") == ["replayed", "live"]


def test_a_replay_that_misses_fails(failed: Path) -> None:
    """With --replay a call that is not on record fails the run, and says at which path."""
    Path("ready").touch()
    result = invoked("run", "pipe.py:tree", "--replay", "r1", "--run-id", "r3")
    assert result.exit_code == 1
    assert "no call at pipeline/step_02 is on record" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["run", "pipe.py", "--replay", "r1", "--reuse", "r1"], "Can't use --reuse and --replay"),
        (["resume", "r1", "--input", "a=b"], "has its inputs"),
        (["resume", "r1", "--items", "a.txt"], "No such option: --items"),
        (["resume", "r1", "--wanted", "2"], "--wanted: only for recipes"),
        (["resume", "r9"], "Run 'r9' not found"),
    ],
)
def test_what_cannot_go_on_is_refused(failed: Path, arguments: list[str], said: str) -> None:
    """A wish that cannot be met ends with code 2 before anything runs."""
    result = invoked(*arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert [folder.name for folder in failed.iterdir()] == ["r1"]


KEY = "sk-" + "a1b2c3d4" * 4
LOOK = """\
from mergepoint import Block, Gate, Step, Template

look = Step(Template("Look at {{ notes }}."), name="look")
tree = Block([Gate(look, name="gate"), Step("End.", name="end")], name="p", inputs=["notes"])
"""


def test_inputs_that_look_like_keys_are_announced_and_given_again(here: Path) -> None:
    """Before the first call the command says so, and the printed line goes on with the value."""
    (here / "look.py").write_text(LOOK, encoding="utf-8")
    run = command("run", "look.py", "--input", f"notes=use {KEY}", "--run-id", "r")
    assert run.code == 4
    said = "A resume needs it again: --input notes=VALUE."
    assert said in run.err
    assert run.err.index(said) < run.err.index("p/gate/look")
    printed = "mergepoint resume r --answer p/gate=approve --input notes=VALUE"
    assert run.err.splitlines()[-1] == f"  resume: {printed}"
    words = printed.split()[1:]
    other = command(*words)
    assert other.code == 2
    assert "the fingerprint in the journal differs" in other.err
    left_out = command("resume", "r", "--answer", "p/gate=approve")
    assert left_out.code == 2
    assert "Pass the same values again: --input notes=VALUE" in left_out.err
    words[-1] = f"notes=use {KEY}"
    assert command(*words).code == 0
    assert KEY not in (here / "runs" / "r" / "journal.jsonl").read_text(encoding="utf-8")
