"""The commands of docs/how-to/scale/workers.md, and other runs of a queue, as processes."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.pages import Page
from tests.journal.places import place_of

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")

pytestmark = pytest.mark.scale

PAGE = "docs/how-to/scale/workers.md"
STORE = "--store postgresql://postgres@localhost/runs"


@dataclass(frozen=True)
class Shell:
    """Runs commands with a queue of their own, in an empty folder."""

    url: str
    folder: Path

    def run(self, command: str, *, code: int = 0) -> subprocess.CompletedProcess[str]:
        """Run a command with an exit code, and return its output."""
        words = [sys.executable, "-m", "mergepoint.apps.cli", *shlex.split(command)[1:]]
        environment = {**os.environ, "MERGEPOINT_STORE": self.url}
        ended = subprocess.run(  # noqa: S603  (our own words)
            words,
            cwd=self.folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            stdin=subprocess.DEVNULL,
        )
        assert ended.returncode == code, f"{command}\n{ended.stdout}\n{ended.stderr}"
        return ended


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell with a queue of its own."""
    with place_of("postgresql", tmp_path) as place:
        yield Shell(place.address, tmp_path)


def test_the_commands_of_the_page(shell: Shell) -> None:
    """Each command of the page works as printed, in its order, with a worker after each."""
    commands = [one for fence in Page.read(PAGE).fences() for one in fence.commands()]
    assert all(one.endswith(STORE) or f"{STORE} " in one for one in commands)
    states = []
    for command in commands:
        # The store is the variable here; a worker that waits for more would never end.
        ends = " --until-empty" if " work " in command and "--until-empty" not in command else ""
        shell.run(command.replace(STORE, "") + ends)
        if "--enqueue" in command:
            shell.run("mergepoint work --until-empty")
            (run,) = json.loads(shell.run("mergepoint runs list --json").stdout)
            states.append(run["state"])
    assert states == ["waiting", "done"]


def test_a_run_waits_until_a_worker_takes_it(shell: Shell) -> None:
    """--enqueue prints the id of the run; tail says that it waits, and shows it once it ran."""
    queued = shell.run("mergepoint run flat_chat -i topic=rivers --enqueue --json")
    plain = json.loads(queued.stdout)
    run_id = plain["run_id"]
    waiting = shell.run(f"mergepoint runs tail {run_id}")
    assert f"Run {run_id} waits in the queue" in waiting.stderr
    again = shell.run(f"mergepoint run flat_chat -i topic=a --run-id {run_id} --enqueue", code=2)
    assert "waits in the queue already" in again.stderr
    ended = shell.run("mergepoint work --until-empty --json")
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [one["event"] for one in events] == ["ready", "started", "done", "ended"]
    assert "pipeline/outline" in shell.run(plain["follow"]).stdout


def test_a_recipe_and_a_run_that_fails(shell: Shell) -> None:
    """A recipe's items reach the worker, and a target that it can't find fails with the reason."""
    shell.run("mergepoint run best_of_n 'A title for a poster.' --run-id titles --enqueue")
    tree = shell.folder / "gone.yaml"
    tree.write_text("name: gone\nnodes:\n  - {name: a, prompt: Say a word.}\n")
    shell.run("mergepoint run gone.yaml --run-id gone --enqueue --quiet")
    tree.unlink()
    ended = shell.run("mergepoint work --until-empty")
    assert "done      titles" in ended.stderr
    assert "failed    gone: TargetError" in ended.stderr
    assert "couldn't begin" in shell.run("mergepoint runs tail -f gone", code=1).stderr
    assert shell.run("mergepoint show titles").stdout


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("mergepoint run flat_chat -i topic=a --enqueue --out runs", "needs a PostgreSQL database"),
        ("mergepoint run flat_chat --enqueue", "topic"),
        ("mergepoint run flat_chat -i topic=a --enqueue --reuse last", "--reuse"),
        (
            "mergepoint run flat_chat -i topic=sk-abcdefghijklmnopqrstuvwx0123456789 --enqueue",
            "key",
        ),
        ("mergepoint work --store sqlite:///runs.db", "needs the URL of a PostgreSQL database"),
    ],
)
def test_what_a_queue_refuses(command: str, message: str, shell: Shell) -> None:
    """An invalid run isn't added to the queue, and the message says why."""
    assert message in shell.run(command, code=2).stderr
    idle = shell.run("mergepoint work --until-empty")
    assert "no run was taken" in idle.stderr
