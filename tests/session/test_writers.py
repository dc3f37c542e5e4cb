"""Many writers of one session, killed at random moments: nothing acknowledged is lost."""

from __future__ import annotations

import multiprocessing
import random
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

import pytest
from tests.journal.places import place_of
from tests.session.writers import SESSION, write

from mergepoint.journal.checked_lines import read_lines
from mergepoint.session.session_store import check_session, sessions_at

CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["tests.session.writers"])

SLOW = 120.0
"""Seconds after which processes that tell nothing count as hanging."""


@dataclass
class Writer:
    """A process that writes, and the number of its next append that it has not told of."""

    name: str
    address: str
    count: int
    told: int = 0
    process: Any = None
    hears: Any = field(default=None, repr=False)

    def start(self) -> None:
        """Start the process where the last one was heard of."""
        self.hears, tells = CONTEXT.Pipe(duplex=False)
        given = (self.address, self.name, self.told, self.count, tells)
        self.process = CONTEXT.Process(target=write, args=given)
        self.process.start()
        tells.close()

    def hear(self) -> bool:
        """Take in one acknowledgement; say whether there was any."""
        try:
            self.told = int(self.hears.recv_bytes()) + 1
        except EOFError:
            self.hears.close()
            self.process.join()
            return False
        return True

    def kill(self) -> None:
        """Kill the process, hear what it had told, and start it again."""
        self.process.kill()
        while self.hear():
            pass
        self.start()


def surveyed(address: str, *, writers: int, appends: int, kills: int) -> None:
    """Let writers write, kill them at random moments, and look at what is there."""
    rng = random.Random(f"{writers} {kills}")  # noqa: S311  (moments, no secrets)
    everyone = [Writer(f"w{number}", address, appends) for number in range(writers)]
    for writer in everyone:
        writer.start()
    pauses = sorted(rng.sample(range(1, writers * appends - writers), kills))
    going, heard = {writer.name: writer for writer in everyone}, 0
    while going:
        pipes: dict[Connection, Writer] = {one.hears: one for one in going.values()}
        ready = wait(list(pipes), timeout=SLOW)
        assert ready, f"no writer told anything in {SLOW:.0f} s: {going}"
        for pipe in ready:
            writer = pipes[pipe]  # type: ignore[index]
            if not writer.hear():
                assert writer.process.exitcode == 0
                del going[writer.name]
                continue
            heard += 1
            if pauses and heard >= pauses[0]:
                pauses.pop(0)
                rng.choice(list(going.values())).kill()
                break
    checked(address, everyone, appends)


def checked(address: str, everyone: list[Writer], appends: int) -> None:
    """Every append is there once, in each writer's order, and nothing is torn."""
    sessions = sessions_at(address)
    memory = sessions.open(SESSION)
    ids = list(memory.past.by_id)
    assert len(ids) == len(set(ids)) == len(everyone) * appends
    for writer in everyone:
        assert writer.told == appends
        own = [name for name in ids if name.startswith(f"{writer.name}-")]
        assert own == [f"{writer.name}-{number}" for number in range(appends)]
    assert check_session(SESSION, sessions=sessions) == []
    journal = Path(address) / SESSION / "journal.jsonl"
    if journal.exists():
        lines = read_lines(journal)
        assert (len(lines.values), lines.torn) == (1 + len(ids), 0)


@pytest.mark.campaign
@pytest.mark.parametrize("kind", ["files", "sqlite", "postgresql"])
def test_writers_that_are_killed_lose_nothing(tmp_path: Path, kind: str) -> None:
    """Of 3 writers with 20 appends each, killed 6 times, everything acknowledged is there once."""
    with place_of(kind, tmp_path) as place:
        surveyed(place.address, writers=3, appends=20, kills=6)


@pytest.mark.campaign
@pytest.mark.parametrize(("kind", "kills"), [("files", 100), ("sqlite", 20), ("postgresql", 20)])
def test_many_writers_that_are_killed_lose_nothing(tmp_path: Path, kind: str, kills: int) -> None:
    """Of 8 writers, killed at many moments, everything that was acknowledged is there once."""
    with place_of(kind, tmp_path) as place:
        surveyed(place.address, writers=8, appends=5 * kills, kills=kills)
