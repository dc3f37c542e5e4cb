"""`run --resume`, `--reuse`, `--replay`: no answer is paid twice."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
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
    """Give the folder of runs in which a run failed at its second step."""
    monkeypatch.chdir(tmp_path)
    Path("pipe.py").write_text(TREE, encoding="utf-8")
    result = invoked("pipe.py:tree", "--run-id", "r1")
    assert result.exit_code == 1
    return tmp_path / "runs"


def invoked(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(app, ["run", *arguments])


def sources(file: Path) -> list[str]:
    """Give where the answers of a transcript came from."""
    return [step["source"] for step in json.loads(file.read_text())["steps"]]


def test_a_failed_run_goes_on(failed: Path) -> None:
    """With --resume the run ends under its own id, and its journal holds each call once."""
    Path("ready").touch()
    result = invoked("pipe.py:tree", "--resume", "last", "--json")
    assert (result.exit_code, json.loads(result.stdout)["status"]) == (0, "done")
    lines = (failed / "r1" / "journal.jsonl").read_text().splitlines()
    assert sum('"path":"pipeline/step_01"' in line and '"prompt"' in line for line in lines) == 1
    assert len(sources(failed / "r1" / "transcript.json")) == 2


def test_a_new_run_reuses_answers(failed: Path) -> None:
    """With --reuse what was answered is taken over, and the rest is called."""
    Path("ready").touch()
    result = invoked("pipe.py:tree", "--reuse", "r1", "--run-id", "r2")
    assert result.exit_code == 0
    assert sources(failed / "r2" / "transcript.json") == ["replayed", "live"]


def test_a_replay_that_misses_fails(failed: Path) -> None:
    """With --replay a call that is not on record fails the run, and says at which path."""
    Path("ready").touch()
    result = invoked("pipe.py:tree", "--replay", "r1", "--run-id", "r3")
    assert result.exit_code == 1
    assert "no call at pipeline/step_02 is on record" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--resume", "r1", "--reuse", "r1"], "exclude each other"),
        (["--resume", "r1", "--input", "a=b"], "has its inputs"),
        (["--resume", "r9"], "no journal of a run 'r9'"),
    ],
)
def test_what_cannot_go_on_is_refused(failed: Path, arguments: list[str], said: str) -> None:
    """A wish that cannot be met ends with code 2 before anything runs."""
    result = invoked("pipe.py:tree", *arguments)
    assert result.exit_code == 2
    assert said in result.stderr
    assert [folder.name for folder in failed.iterdir()] == ["r1"]
