"""Turns of sessions in a queue: decided in one process, carried out by workers in others."""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.scale.test_work import Shell

pytest.importorskip("procrastinate", reason="it is not installed: pip install 'mergepoint[queue]'")
import psycopg

from mergepoint.agent.turns import Pending, decide, pending, say
from mergepoint.apps.cli.chat_loop import new_setup
from mergepoint.apps.cli.options import ChatOptions
from mergepoint.apps.cli.turn_queue import TurnQueue, turn_queue
from mergepoint.session.session_memory import SessionMemory
from mergepoint.session.session_store import sessions_at
from mergepoint.session.turn_runner import TurnRunner

pytestmark = pytest.mark.scale

WAITING = '''\
"""A tree whose call after a gate waits until there is a file."""

import asyncio
from pathlib import Path

from mergepoint import Block, Call, Gate, Step


async def wait(ctx):
    Path("begun").touch()
    while not Path("go").exists():
        await asyncio.sleep(0.05)
    return "It went on."


draft = Gate(Step("Write a line.", name="draft"), name="ok")
tree = Block([draft, Call(wait, name="wait", merge="last_response")], name="t")
'''
WAIT = 120.0


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    """Yield a shell with a queue of its own."""
    with place_of("postgresql", tmp_path) as place:
        yield Shell(place.address, tmp_path)


class Chat:
    """A session whose turns go to the queue, as a page's server hands them over."""

    def __init__(self, shell: Shell, target: str | None = None, **options: Any) -> None:
        chosen = ChatOptions(sessions=shell.url, **options)
        self.memory: SessionMemory = sessions_at(shell.url).create()
        self.turns: TurnRunner = new_setup(chosen).turns(target)
        self.queue: TurnQueue = turn_queue(chosen, target)

    def say(self, text: str) -> None:
        """Begin a turn, up to its first gate."""
        assert isinstance(asyncio.run(say(self.turns, self.memory, text)), Pending)

    def approve(self) -> None:
        """Approve what is asked, and hand the turn over."""
        asked = pending(self.turns, self.memory)
        assert asked is not None
        decide(self.turns, self.memory, "approve", to=asked.key)
        asyncio.run(self.queue.put(self.memory))

    def asks(self) -> str | None:
        """Return what the turn asks about now."""
        asked = pending(self.turns, self.memory)
        return None if asked is None else asked.asks

    def state(self) -> str:
        """Return where the turn is."""
        self.memory.refresh()
        return self.queue.state(self.memory)

    def answers(self) -> list[str]:
        """Return the answers of the session."""
        self.memory.refresh()
        return [one.content for one in self.memory.get_messages() if one.role == "assistant"]


def worked(shell: Shell) -> list[dict[str, Any]]:
    """Let a worker empty the queue, and return its events."""
    lines = shell.run("mergepoint work --until-empty --json").stdout.splitlines()
    events = [json.loads(line) for line in lines]
    return [one for one in events if one["event"] not in ("ready", "started", "ended")]


def until(found: Callable[[], object]) -> None:
    """Wait until something is there."""
    end = time.monotonic() + WAIT
    while not found():
        assert time.monotonic() < end, "it did not come"
        time.sleep(0.05)


def waiting_tree(shell: Shell) -> str:
    """Write the tree that waits, and return its target."""
    file = shell.folder / "waits.py"
    file.write_text(WAITING)
    return f"{file}:tree"


def test_a_worker_carries_a_turn_to_its_next_gate_and_to_its_answer(shell: Shell) -> None:
    """Plan and program are approved here; all else of the agent is done by two other processes."""
    chat = Chat(shell, runner="unsafe_subprocess")
    chat.say("Which region sold most?")
    assert chat.asks() == "plan"
    chat.approve()
    asyncio.run(chat.queue.put(chat.memory))  # a second click adds no second job
    assert chat.state() == "queued"
    run = f"{chat.memory.session_id}.1"
    (event,) = worked(shell)
    assert (event["event"], event["run_id"]) == ("waiting", run)
    assert event["gates"] == [pending(chat.turns, chat.memory).path]  # type: ignore[union-attr]
    assert chat.asks() == "code"
    assert chat.state() == ""
    chat.approve()
    assert [
        one["state"] for one in json.loads(shell.run("mergepoint runs list --json").stdout)
    ] == ["queued"]
    (event,) = worked(shell)
    assert event["event"] == "done"
    assert event["calls"] > 0
    assert len(chat.answers()) == 1


def test_a_turn_survives_the_death_and_the_stop_of_its_workers(shell: Shell) -> None:
    """One worker is killed with the turn, one is stopped: the third ends it, and pays only once."""
    chat = Chat(shell, waiting_tree(shell))
    chat.say("Say a line.")
    chat.approve()
    begun = shell.folder / "begun"
    with shell.begun("mergepoint work --json") as worker:
        until(begun.exists)
        assert chat.state() == "running"
        assert not asyncio.run(chat.queue.take_back(chat.memory))
        worker.kill()
    begun.unlink()
    with psycopg.connect(shell.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "UPDATE procrastinate_workers SET last_heartbeat = now() - interval '1 hour'"
        )
    assert chat.state() == "queued"
    with shell.begun("mergepoint work --json --grace 0") as worker:
        until(begun.exists)
        worker.send_signal(signal.SIGTERM)
        said, _ = worker.communicate(timeout=WAIT)
        assert b'"returned"' in said
    chat.memory.refresh()
    assert chat.memory.unfinished is not None
    assert chat.state() == "queued"
    (shell.folder / "go").touch()
    assert [one["event"] for one in worked(shell)] == ["done"]
    assert chat.answers() == ["It went on."]
    records = chat.memory.runs().read(f"{chat.memory.session_id}.1")[1]
    assert [one.path for one in records if one.answered and one.kind == "step"] == ["t/ok/draft"]


def test_a_turn_that_is_over_is_not_resumed(shell: Shell) -> None:
    """A worker that died after the end of a turn leaves nothing to do, and nothing fails."""
    (shell.folder / "go").touch()
    chat = Chat(shell, waiting_tree(shell))
    chat.say("Say a line.")
    chat.approve()
    with psycopg.connect(shell.url.replace("+psycopg", ""), autocommit=True) as connection:
        connection.execute(
            "INSERT INTO procrastinate_jobs (queue_name, task_name, lock, args) "
            "SELECT queue_name, task_name, lock, args FROM procrastinate_jobs"
        )
    events = worked(shell)
    assert [one["event"] for one in events] == ["done", "done"]
    assert events[1]["calls"] == 0
    assert chat.answers() == ["It went on."]


def test_a_turn_that_no_worker_can_carry_out_fails_with_the_reason(shell: Shell) -> None:
    """The session gets the error of a worker that doesn't find the tree."""
    target = waiting_tree(shell)
    chat = Chat(shell, target)
    chat.say("Say a line.")
    chat.approve()
    Path(target.partition(":")[0]).unlink()
    (event,) = worked(shell)
    assert event["event"] == "failed"
    told: list[str] = []
    asyncio.run(chat.queue.follow(chat.memory, lambda state, _: told.append(state)))
    end = chat.memory.past.ended(1)
    assert told == []
    assert end is not None
    assert end.error is not None
    assert end.error["type"] == event["error"]["type"] == "TargetError"
    assert "waits.py" in end.error["message"]


def test_a_turn_is_taken_back(shell: Shell) -> None:
    """A turn that no worker has taken leaves the queue, and can be handed over again."""
    chat = Chat(shell, waiting_tree(shell))
    chat.say("Say a line.")
    chat.approve()
    assert asyncio.run(chat.queue.take_back(chat.memory))
    assert chat.state() == ""
    assert worked(shell) == []
    asyncio.run(chat.queue.put(chat.memory))
    (shell.folder / "go").touch()
    assert [one["event"] for one in worked(shell)] == ["done"]
