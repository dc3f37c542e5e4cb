"""The commands of docs/how-to/scale/workers.md, and other runs of a queue, as processes."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.docs.pages import Page
from tests.journal.places import place_of

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")
import psycopg

from mergepoint.scale.job_queue import open_queue

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

    @contextmanager
    def begun(self, command: str) -> Iterator[subprocess.Popen[bytes]]:
        """Yield the process of a command, which is killed at the end."""
        words = [sys.executable, "-m", "mergepoint.apps.cli", *shlex.split(command)[1:]]
        environment = {**os.environ, "MERGEPOINT_STORE": self.url}
        pipe = subprocess.PIPE
        with subprocess.Popen(  # noqa: S603  (our own words)
            words, cwd=self.folder, env=environment, stdout=pipe, stderr=pipe
        ) as process:
            try:
                yield process
            finally:
                process.kill()

    def state(self) -> str:
        """Return the state of the only run."""
        (run,) = json.loads(self.run("mergepoint runs list --json").stdout)
        return str(run["state"])


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell with a queue of its own."""
    with place_of("postgresql", tmp_path) as place:
        yield Shell(place.address, tmp_path)


def test_the_commands_of_the_page(shell: Shell) -> None:
    """Each command of the page works as printed, in its order, with a worker after each."""
    commands = [one for fence in Page.read(PAGE).fences() for one in fence.commands()]
    commands = [one for one in commands if " pip install " not in one]
    assert all(one.endswith(STORE) or f"{STORE} " in one for one in commands)
    # Answers in a browser have a test of their own: tests/view/browser/test_queued_answers.py.
    commands = [one for one in commands if " --serve " not in one]
    (shell.folder / "topics.jsonl").write_text('{"topic": "rain"}\n{"topic": "fog"}\n')
    states = []
    for command in commands:
        if " batch " in command:
            with shell.begun("mergepoint work"):
                shell.run(command.replace(STORE, ""))
            continue
        # The store is the variable here; a worker that waits for more would never end.
        ends = " --until-empty" if " work " in command and "--until-empty" not in command else ""
        shell.run(command.replace(STORE, "") + ends)
        if "--enqueue" in command:
            states.append(shell.state())
            shell.run("mergepoint work --until-empty")
            states.append(shell.state())
    assert states == ["queued", "waiting", "queued", "done"]


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


def test_a_run_in_the_queue_is_listed_and_shown(shell: Shell) -> None:
    """A run is queued until a worker has it, also if that worker dies, and after an answer."""
    assert json.loads(shell.run("mergepoint runs list --json").stdout) == []
    shell.run("mergepoint run plan_approve -i topic=rain --run-id rain --enqueue")
    (row,) = json.loads(shell.run("mergepoint runs list --json").stdout)
    assert (row["run_id"], row["state"], row["graph"]) == ("rain", "queued", "plan_approve")
    assert row["inputs"] == {"topic": "rain"}
    assert "plan_approve  queued" in shell.run("mergepoint runs list").stdout
    shown = shell.run("mergepoint show rain").stdout
    assert "state       queued" in shown
    assert "input topic rain" in shown

    async def taken() -> None:
        async with open_queue(shell.url) as queue:
            worker = await queue.jobs.register_worker()
            assert await queue.jobs.fetch_job(["mergepoint"], worker)
            await asyncio.to_thread(states.append, shell.state())
            await queue.jobs.connector.execute_query_async(
                "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
            )

    states: list[str] = []
    asyncio.run(taken())
    assert states == ["running"]
    assert shell.state() == "queued"
    shell.run("mergepoint work --until-empty")
    assert shell.state() == "waiting"
    shell.run("mergepoint resume rain --enqueue --answer '**/approval=approve'")
    assert shell.state() == "queued"
    assert json.loads(shell.run("mergepoint show rain --json").stdout)["resume"] is None
    assert "waits in the queue" in shell.run("mergepoint runs tail rain").stderr


def test_a_followed_run_is_waited_for_at_each_start(shell: Shell) -> None:
    """`tail --follow` of a queued run waits for a worker, also after an answer at a gate."""
    shell.run("mergepoint run plan_approve -i topic=rain --run-id rain --enqueue")
    for ending, answer in (("waiting", True), ("done", False)):
        with shell.begun("mergepoint runs tail rain --follow") as tail:
            assert tail.stderr is not None
            assert b"waits in the queue" in tail.stderr.readline()
            shell.run("mergepoint work --until-empty")
            _, said = tail.communicate(timeout=60)
            assert tail.returncode == 0, said
            assert shell.state() == ending
        if answer:
            # Its whole path, as printed: the question at the gate is recorded under it.
            gate = "pipeline/planning/iteration_01/approval"
            shell.run(f"mergepoint resume rain --enqueue --answer {gate}=approve")


def test_commands_that_read_need_no_queue(shell: Shell) -> None:
    """Without procrastinate, runs of a queue are listed; reading creates no tables of a queue."""
    shell.run("mergepoint run flat_chat -i topic=rivers --run-id rivers --quiet")
    absent = "mergepoint runs tail other"
    assert "not found" in shell.run(absent, code=2).stderr
    with psycopg.connect(shell.url.replace("+psycopg", "")) as connection:
        found = connection.execute("SELECT to_regclass('procrastinate_jobs')").fetchone()
    assert found == (None,)
    shell.run("mergepoint run flat_chat -i topic=lakes --run-id lakes --enqueue")
    program = (
        "import sys; sys.modules['procrastinate'] = None; sys.argv = ['mergepoint', *sys.argv[1:]];"
        "from mergepoint.apps.cli import main; main()"
    )
    listed = subprocess.run(  # noqa: S603  (our own words)
        [sys.executable, "-c", program, "runs", "list", "--json", "--store", shell.url],
        capture_output=True,
        check=True,
    )
    rows = json.loads(listed.stdout)
    assert [(one["run_id"], one["state"]) for one in rows] == [
        ("lakes", "queued"),
        ("rivers", "done"),
    ]


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
    rows = json.loads(shell.run("mergepoint runs list --json").stdout)
    assert [(one["run_id"], one["state"]) for one in rows] == [
        ("gone", "failed"),
        ("titles", "done"),
    ]
    assert "gone.yaml" in rows[0]["problem"]
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
        ("mergepoint view --enqueue", "Add --serve"),
        ("mergepoint view --serve --enqueue --out runs", "needs a PostgreSQL database"),
        ("mergepoint work --store sqlite:///runs.db", "needs the URL of a PostgreSQL database"),
    ],
)
def test_what_a_queue_refuses(command: str, message: str, shell: Shell) -> None:
    """An invalid run isn't added to the queue, and the message says why."""
    assert message in shell.run(command, code=2).stderr
    idle = shell.run("mergepoint work --until-empty")
    assert "no run was taken" in idle.stderr
