"""`image_prompt`, 42 calls: killed in the middle, resumed by the printed command, counted."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import time
from pathlib import Path

import pytest
from tests.apps.command import line, process

from mergepoint.journal.file_journal import FileStore
from mergepoint.testing.server import Body, ModelServer, ServerReply

CALLS = 42


def answer(body: Body) -> ServerReply:
    """Answer after a moment, so that calls side by side are in flight when the run is killed."""
    return ServerReply(f"Answer to {len(body['messages'])} messages.", delay=0.01)


def answered() -> set[str]:
    """Return the paths that are answered on record."""
    return {one.path for one in FileStore(Path("runs")).read("r")[1] if one.answered}


@pytest.mark.campaign
def test_a_killed_run_makes_each_of_its_42_calls_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server counts: no answered call is asked again, and all others once."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ModelServer(answer) as server:
        options = ("--model", "openai:test", "--base-url", server.url, "--max-tokens", "200")
        brief = ("--input", "brief=A poster of a night market, for families")
        command = line("run", "image_prompt", *brief, *options, "--yes", "--run-id", "r")
        with subprocess.Popen(  # noqa: S603  (this interpreter, on this package)
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ) as running:
            while len(server.log) < CALLS // 2 and running.poll() is None:
                time.sleep(0.005)
            running.send_signal(signal.SIGKILL)
        before, asked = answered(), len(server.log)
        assert 0 < len(before) < CALLS
        shown = process("show", "r")
        (way_on,) = re.findall(r"mergepoint (resume .*)", shown.out + shown.err)
        done = process(*shlex.split(way_on), "--yes")
        assert done.code == 0, done.err
        made = len(server.log) - asked
        assert {one.body.get("max_completion_tokens") for one in server.log} == {200}
    assert made == CALLS - len(before)
    assert len(answered()) == CALLS
