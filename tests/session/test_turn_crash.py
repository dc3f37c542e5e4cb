"""kill -9 in the middle of turns: they are taken up, and nothing is paid or said twice."""

from __future__ import annotations

import json
import multiprocessing
import random
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from tests.session.turns import SESSION, STEPS, take

from mergepoint import open_session
from mergepoint.session.session_store import check_session
from mergepoint.testing.server import ModelServer

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.session.turns"])

SLOW = 120.0
"""Seconds after which a turn that has not ended counts as hanging."""


class Asked:
    """What the server was asked, in order; it answers by what was said."""

    def __init__(self) -> None:
        self.bodies: list[str] = []
        self.lock = threading.Lock()

    def answer(self, body: dict[str, Any]) -> str:
        """Answer a request."""
        said = json.dumps(body["messages"])
        with self.lock:
            self.bodies.append(said)
        return f"answer to {len(body['messages'])} messages"


def taken(folder: Path, turns: int, chance: random.Random) -> tuple[int, Counter[str]]:
    """Take turns, each killed twice at random moments; give the kills, and what was asked."""
    asked, kills = Asked(), 0
    with ModelServer(asked.answer) as server:
        for turn in range(turns):
            for doomed in (True, True, False):
                ready = CONTEXT.Event()
                given = (server.url, str(folder), f"turn {turn}", ready)
                process = CONTEXT.Process(target=take, args=given)
                process.start()
                assert ready.wait(60)
                until = len(asked.bodies) + chance.randrange(STEPS)
                while doomed and len(asked.bodies) < until and process.exitcode is None:
                    process.join(0.001)
                if doomed:
                    process.join(chance.uniform(0.0, 0.05))
                    kills += process.exitcode is None
                    process.kill()
                process.join(SLOW)
                assert process.exitcode is not None, f"turn {turn} hangs"
            assert process.exitcode == 0
    return kills, Counter(asked.bodies)


def looked_at(folder: Path, turns: int, kills: int, asked: Counter[str]) -> None:
    """Each turn has one message and one answer, and at most calls in flight were paid twice."""
    memory = open_session(SESSION, sessions=folder)
    said = [(one.role, one.turn) for one in memory.get_messages()]
    assert said == [(role, turn) for turn in range(1, turns + 1) for role in ("user", "assistant")]
    steps = [(one.type.value, one.turn) for one in memory.get_steps()]
    assert steps == [(kind, turn) for turn in range(1, turns + 1) for kind in ("plan", "response")]
    assert memory.unfinished is None
    assert len(asked) == turns * STEPS
    assert asked.total() - len(asked) <= kills
    assert check_session(SESSION, sessions=folder) == []


@pytest.mark.campaign
def test_a_killed_turn_is_taken_up(tmp_path: Path) -> None:
    """Two turns that are killed twice each come to their one answer."""
    kills, asked = taken(tmp_path, 2, random.Random(3))  # noqa: S311  (moments, no secrets)
    looked_at(tmp_path, 2, kills, asked)


@pytest.mark.campaign
def test_many_killed_turns_are_taken_up(tmp_path: Path) -> None:
    """Fifty turns that are killed twice each come to their fifty answers."""
    kills, asked = taken(tmp_path, 15, random.Random(4))  # noqa: S311  (moments, no secrets)
    print(f"{kills} kills, {asked.total()} calls for {len(asked)}")
    looked_at(tmp_path, 15, kills, asked)
