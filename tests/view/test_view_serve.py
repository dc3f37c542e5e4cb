"""`mergepoint view --serve`: stored and live runs, answers that resume, and its end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.apps.command import command
from tests.view.serving import events
from tests.view.view_process import GATED, WAIT, WAITING, ViewProcess, started, viewing

# Each starts the command and runs in processes of their own, for some seconds.
pytestmark = pytest.mark.campaign

GATE = "pipeline/planning/iteration_01/approval"
SECOND = "pipeline/planning/iteration_02/approval"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder that the test stands in."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("MERGEPOINT_STORE", raising=False)
    return tmp_path


def waiting_run(*args: str) -> None:
    """Run a tree up to its gate."""
    ended = command("run", "plan_approve", "-i", "topic=rain", "--run-id", "r 1", "-q", *args)
    assert ended.code == 4


def data_of(server: ViewProcess) -> dict[str, Any]:
    """Return the data of the first page."""
    found: dict[str, Any] = httpx.get(f"{server.address}/data.json", timeout=WAIT).json()
    return found


def answered(server: ViewProcess, **answer: Any) -> httpx.Response:
    """Answer at a gate, as the page does."""
    live = data_of(server)["live"]
    return httpx.post(
        server.origin + live["answers"],
        json=answer,
        headers={"x-mergepoint-token": live["token"], "origin": server.origin},
        timeout=WAIT,
    )


def gates_of(server: ViewProcess) -> dict[str, str]:
    """Return the status of each gate."""
    calls = data_of(server)["runs"][0]["calls"]
    return {call["path"]: call["status"] for call in calls if call["kind"] == "gate"}


@pytest.mark.parametrize("store", [(), ("--store", "sqlite:///runs.db")])
def test_answers_resume_a_run_to_its_end(here: Path, store: tuple[str, ...]) -> None:
    """A rejection, an edit that can't be, and an edit: each is followed until the run is done."""
    waiting_run(*store)
    with viewing("r 1", *store, cwd=here) as server:
        assert gates_of(server) == {GATE: "waiting"}
        with httpx.stream("GET", f"{server.address}/events", timeout=WAIT) as response:
            told = events(response)
            assert next(told)[0] == "changed"
            assert answered(server, path=GATE, decision="reject", feedback="Shorter.").json() == {
                "taken": True
            }
            while gates_of(server) != {GATE: "rejected", SECOND: "waiting"}:
                assert next(told)[0] == "changed"
            refused = answered(server, path=SECOND, decision="edit", outputs={"plans": "x"})
            assert refused.status_code == 409
            assert "cannot add the output 'plans'" in refused.json()["message"]
            assert answered(server, path=GATE, decision="approve").status_code == 409
            taken = answered(server, path=SECOND, decision="edit", text="One step. " * 40_000)
            assert taken.status_code == 200
            assert [name for name, _ in told][-1] == "ended"
        found = data_of(server)
        assert found["runs"][0]["status"] == "done"
        assert "One step. " * 40_000 in found["texts"]
        assert server.interrupt() == (0, "")


def test_a_run_is_followed_while_it_runs(here: Path) -> None:
    """A running call is shown as running, and the events end with the run that is watched."""
    (here / "slow.py").write_text(WAITING, encoding="utf-8")
    run = started("run", "slow.py", "--run-id", "s", "-q", cwd=here)
    while not (here / "runs/s/journal.jsonl").exists():
        assert run.poll() is None
    with viewing("s", cwd=here) as server:
        with httpx.stream("GET", f"{server.address}/events", timeout=WAIT) as response:
            told = events(response)
            while len(data_of(server)["runs"][0]["calls"]) < 2:
                next(told)
            page = data_of(server)
            calls = {call["path"]: call["status"] for call in page["runs"][0]["calls"]}
            assert page["runs"][0]["status"] == "running"
            assert calls == {"t/draft": "answered", "t/wait": "running"}
            refused = answered(server, path="t/wait", decision="approve")
            assert "Another process is writing the run" in refused.json()["message"]
            (here / "go").touch()
            assert [name for name, _ in told][-1] == "ended"
        assert data_of(server)["runs"][0]["status"] == "done"
        assert run.wait(WAIT) == 0
    run.communicate(timeout=WAIT)


def test_the_list_leads_to_every_page(here: Path) -> None:
    """Runs, sessions and comparisons are served from the list, and a new run is an event."""
    command("run", "flat_chat", "-i", "topic=x", "-q", "--run-id", "f")
    command("run", "flat_chat", "-i", "topic=y", "-q", "--run-id", "#g?")
    command("chat", "-m", "Hello", "--ask", "nothing", "-q")
    with viewing(cwd=here) as server:
        page = httpx.get(f"{server.origin}/data.json", timeout=WAIT).json()
        hrefs = {row["id"]: row["href"] for row in page["list"]}
        assert len(hrefs) == 3
        assert hrefs["#g?"] == "/run/%23g%3F"
        compare = page["live"]["compare"] + "?a=f&b=%23g%3F"
        for path in (*hrefs.values(), compare):
            assert httpx.get(server.origin + path, timeout=WAIT).status_code == 200
        for path in ("/run/none", "/session/none", "/run/%2E%2E", "/compare?a=f&b=none"):
            assert httpx.get(server.origin + path, timeout=WAIT).status_code == 404
        with httpx.stream("GET", f"{server.origin}/events", timeout=WAIT) as response:
            told = events(response)
            assert next(told) == (
                "changed",
                json.dumps({"etag": page["live"]["etag"]}, separators=(",", ":")),
            )
            command("run", "flat_chat", "-i", "topic=z", "-q", "--run-id", "h")
            assert next(told)[0] == "changed"


def test_ctrl_c_ends_it_at_once_also_with_viewers(here: Path) -> None:
    """The exit code is 0, nothing is on stderr, and the stream of a viewer ends."""
    waiting_run()
    with (
        viewing("r 1", cwd=here) as server,
        httpx.stream("GET", f"{server.address}/events", timeout=WAIT) as response,
    ):
        told = events(response)
        assert next(told)[0] == "changed"
        assert server.interrupt() == (0, "")
        with pytest.raises((StopIteration, httpx.RemoteProtocolError)):
            next(told)


def test_ctrl_c_interrupts_a_run_that_was_resumed_here(here: Path) -> None:
    """It isn't left running unseen: the run can be resumed, and the command is told."""
    (here / "gated.py").write_text(GATED, encoding="utf-8")
    assert command("run", "gated.py", "--run-id", "g", "-q").code == 4
    with viewing("g", cwd=here) as server:
        assert answered(server, path="t/ok", decision="approve").status_code == 200
        while data_of(server)["runs"][0]["calls"][-1]["status"] != "running":
            pass
        code, err = server.interrupt()
        assert code == 0
        assert err.splitlines()[-1] == "  resume: mergepoint resume g"
    (here / "go").touch()
    resumed = command("resume", "g", "-q")
    # Its process may still finish the call in progress.
    while "is being written" in resumed.err or "another process" in resumed.err:
        resumed = command("resume", "g", "-q")
    assert resumed.code == 0, resumed.err


def test_what_cannot_be_served_is_refused(here: Path) -> None:
    """An unknown run, a file, a port that is taken or without --serve: each with its way out."""
    waiting_run()
    for args, said in (
        (("none", "--serve"), "Most recent runs: r 1"),
        (("last", "--serve", "-o", "x.html"), "Can't use --serve and -o together"),
        (("last", "--port", "1"), "--port is for --serve"),
        (("--session", "none", "--serve"), "no sessions here"),
    ):
        refused = command("view", *args)
        assert (refused.code, said in refused.err) == (2, True), refused.err
    with viewing("r 1", cwd=here) as server:
        refused = command("view", "--serve", "--port", server.origin.rpartition(":")[2])
        assert refused.code == 2
        assert "set another --port" in refused.err


def test_a_missing_extra_names_its_command(here: Path) -> None:
    """Without the packages of the extra, the message says what to install."""
    waiting_run()
    code = "import sys; sys.modules['uvicorn'] = None; import mergepoint.apps.cli.__main__ as m; "
    code += "m.main()"
    ended = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", code, "view", "last", "--serve"],
        cwd=here,
        capture_output=True,
        text=True,
        check=False,
        timeout=WAIT,
    )
    assert ended.returncode == 2
    assert "--serve needs uvicorn, which is not installed: pip install" in ended.stderr
