"""Bubblewrap: what its sandbox gives and takes, and what it leaves when somebody is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.agent.conftest import Machine
from tests.agent.running import ran

import mergepoint
from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, Limits, MadeFile


def becomes(wanted: bool, found: Callable[[], bool]) -> None:  # noqa: FBT001
    """Wait until something is so, for at most half a minute."""
    for _ in range(600):
        if found() is wanted:
            return
        time.sleep(0.05)
    pytest.fail(f"it does not become {wanted}")


def test_each_stream_comes_as_it_was_written(bubblewrap: Bubblewrap) -> None:
    """One output holds both streams; each is in order, with what children print."""
    code = """
import subprocess, sys
print("one"); print("two", file=sys.stderr); print("three")
subprocess.run(["/usr/bin/echo", "four"])
print("five")
"""
    lines = ran(bubblewrap, code).output.splitlines()
    assert [one for one in lines if one != "two"] == ["one", "three", "four", "five"]
    assert "two" in lines


@pytest.mark.parametrize(
    ("code", "status"),
    [
        ("raise SystemExit", 0),
        ("raise SystemExit(3)", 3),
        ("raise SystemExit('no')", 1),
        ("import os; os._exit(7)", 7),
        ("import os; os.abort()", 128 + signal.SIGABRT),
        ("import ctypes; ctypes.string_at(0)", 128 + signal.SIGSEGV),
    ],
)
def test_the_status_is_that_of_the_code(bubblewrap: Bubblewrap, code: str, status: int) -> None:
    """What the code exits with is its exit code, and a signal counts from 128 on."""
    run = ran(bubblewrap, code)
    assert (run.exit_code, run.ok, run.stopped) == (status, status == 0, None)


def test_a_tracebacks_frames_are_named_after_the_code(bubblewrap: Bubblewrap) -> None:
    """A traceback that the code prints itself shows its lines, and classes find their module."""
    code = """
import dataclasses, pickle, traceback
@dataclasses.dataclass
class P:
    x: int
assert pickle.loads(pickle.dumps(P(1))) == P(1)
try:
    1 / 0
except ZeroDivisionError:
    traceback.print_exc()
"""
    said = ran(bubblewrap, code).output
    assert '  File "code.py", line 8, in <module>\n    1 / 0\n' in said


def test_data_that_only_root_can_read_is_given_as_a_copy(
    bubblewrap: Bubblewrap, tmp_path: Path
) -> None:
    """A file in a private folder reaches the code, which cannot change it."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "data.txt").write_text("private", encoding="utf-8")
    (private / "data.txt").chmod(0o600)
    code = "import os\nprint(open('data.txt').read(), os.access('data.txt', os.W_OK))"
    run = ran(bubblewrap, code, data={"data.txt": private / "data.txt"})
    assert run.output == "private False\n"


def test_a_folder_is_no_data(bubblewrap: Bubblewrap, tmp_path: Path) -> None:
    """Data are plain files; anything else is refused with its name."""
    with pytest.raises((ValueError, IsADirectoryError), match="data"):
        ran(bubblewrap, "print()", data={"data": tmp_path})


def test_what_cannot_be_taken_is_told(bubblewrap: Bubblewrap, machine: Machine) -> None:
    """Links, pipes and names that cannot be read are left out, with the reason."""
    code = machine.aimed("""
import os
os.symlink("@FOLDER@/secret.txt", "a-link")
os.symlink("/proc/self/environ", "b-link")
os.mkfifo("c-pipe")
os.makedirs("d/e")
open("d/e/kept.txt", "w").write("kept")
open("f\\x1b[0m", "w").write("x")
open("g", "w").close(); os.chmod("g", 0)
os.symlink(".", "h-loop")
""")
    run = ran(bubblewrap, code)
    assert [file for file in run.made if file.name != "g"] == [MadeFile("d/e/kept.txt", 4, b"kept")]
    told = dict(one.split(": ", 1) for one in run.left_out)
    assert told["a-link"] == told["b-link"] == told["h-loop"] == "a symbolic link"
    assert told["c-pipe"] == "not a plain file"
    assert "cannot be seen" in told["f\\x1b[0m"]


def test_made_files_are_bounded(bubblewrap: Bubblewrap) -> None:
    """No more files and bytes are taken than the limits say."""
    code = "for n in range(30):\n    open(f'{n:02}', 'w').write('x' * 1000)"
    run = ran(bubblewrap, code, files=8192 * 30, file_count=20)
    assert run.stopped in (None, "files")
    assert len(run.made) <= 20


def test_the_line_to_the_tools_takes_what_it_knows_only(bubblewrap: Bubblewrap) -> None:
    """Code that writes to the line itself reaches allowed tools alone, and breaks nothing."""
    called = []

    def tool(*given: Any) -> int:
        called.append(given)
        return 1

    code = """
import json, os, stat
line = next(fd for fd in range(3, 256) if os.path.exists(f"/proc/self/fd/{fd}")
            and stat.S_ISSOCK(os.fstat(fd).st_mode))
def say(data):
    os.write(line, data + b"\\n")
    print(json.loads(os.read(line, 65536)))
call = {"tool": "open", "arguments": ["/etc/passwd"], "keywords": {}}
say(json.dumps(call).encode())
say(b"no json")
say(b"[" * 10000)
say(b'{"tool": ["tool"], "arguments": [], "keywords": {}}')
say(b'{"tool": "tool", "arguments": {}, "keywords": {}}')
say(b"\\xff\\xfe")
print(tool(5))
"""
    run = ran(bubblewrap, code, tools={"tool": tool})
    lines = run.output.splitlines()
    assert "no tool 'open'; known tools: tool" in lines[0]
    assert all("not a call of a tool" in line for line in lines[1:6])
    assert lines[6:] == ["1"]
    assert called == [(5,)]
    assert len(run.tool_calls) == 1


def test_a_message_without_end_closes_the_line(bubblewrap: Bubblewrap) -> None:
    """Whoever writes more than a message may have loses the line, and we keep no more of it."""
    code = """
import os, stat
line = next(fd for fd in range(3, 256) if os.path.exists(f"/proc/self/fd/{fd}")
            and stat.S_ISSOCK(os.fstat(fd).st_mode))
try:
    while True:
        os.write(line, b"x" * 65536)
except OSError as error:
    print(type(error).__name__)
"""
    said = ran(bubblewrap, code, tools={"tool": int}).output
    assert said in ("BrokenPipeError\n", "ConnectionResetError\n")


def test_a_child_has_no_tools(bubblewrap: Bubblewrap) -> None:
    """A forked process that calls a tool gets an error, so that answers are never mixed up."""
    code = """
import os
if os.fork() == 0:
    try:
        tool()
    except RuntimeError as error:
        print(error)
    os._exit(0)
os.wait()
print(tool())
"""
    run = ran(bubblewrap, code, tools={"tool": int})
    assert run.output == "tool() can be called by the first process only\n0\n"


def marked(mark: str) -> str:
    """Give code that becomes a process whose command holds a mark, prints, and goes on for ever."""
    code = f"import time; print('here', flush=True); time.sleep(600) # {mark}"
    return f"import os, sys\nos.execv(sys.executable, [sys.executable, '-c', {code!r}])"


def test_limits_hold_while_the_loop_is_busy(bubblewrap: Bubblewrap, machine: Machine) -> None:
    """A run that takes too long is ended though nobody turns the event loop."""
    mark = f"busy-{machine.canary[7:]}"

    async def busy() -> str | None:
        begun = asyncio.Event()
        job = CodeJob(code=marked(mark), limits=Limits(wall=2.5))
        task = asyncio.create_task(bubblewrap.run(job, on_output=lambda _: begun.set()))
        first = asyncio.create_task(begun.wait())
        await asyncio.wait((task, first), return_when=asyncio.FIRST_COMPLETED)
        first.cancel()
        becomes(False, lambda: bool(machine.processes_of(mark)))
        return (await task).stopped

    assert asyncio.run(busy()) == "wall"


def test_a_cancelled_run_leaves_nothing(bubblewrap: Bubblewrap, machine: Machine) -> None:
    """When the task has ended so has every process of the code."""
    mark = f"cancelled-{machine.canary[7:]}"

    async def cancelled() -> None:
        begun = asyncio.Event()
        run = bubblewrap.run(CodeJob(code=marked(mark)), on_output=lambda _: begun.set())
        task = asyncio.create_task(run)
        await begun.wait()
        assert machine.processes_of(mark)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not machine.processes_of(mark)

    asyncio.run(cancelled())


HOST = """
import asyncio, sys
from mergepoint.sandbox import CodeJob, Limits
from mergepoint.sandbox.job import Limits
from mergepoint.sandbox.bubblewrap import Bubblewrap
job = CodeJob(code=sys.argv[1], limits=Limits(wall=600))
asyncio.run(Bubblewrap().run(job, on_output=lambda text: print(text, flush=True)))
"""


@pytest.mark.first_case
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_host_that_ends_leaves_nothing(
    bubblewrap: Bubblewrap, machine: Machine, how: signal.Signals
) -> None:
    """Ctrl-C, a termination and a kill of the process that runs code end the code too."""
    assert bubblewrap.name == "bubblewrap"
    mark = f"{how.name}-{machine.canary[7:]}"
    source = str(Path(str(mergepoint.__file__)).parents[1])
    with subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", HOST, marked(mark)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "PYTHONPATH": source},
    ) as host:
        assert host.stdout is not None
        assert host.stdout.readline() == b"here\n"
        host.send_signal(how)
        host.wait()
    becomes(False, lambda: len(machine.processes_of(mark)) > 0)


def pretending(folder: Path, script: str) -> dict[str, str]:
    """Return an environment in which bwrap is a script of ours."""
    bwrap = folder / "bwrap"
    bwrap.write_text(f"#!/bin/sh\n{script}\n", encoding="utf-8")
    bwrap.chmod(0o755)
    for one in (folder, *folder.parents):
        if one.stat().st_uid == os.geteuid() and one != Path("/"):
            one.chmod(one.stat().st_mode | 0o011)
    return {"PATH": f"{folder}:/usr/bin:/bin"}


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ("echo 'bwrap: No permissions to create new namespace' >&2; exit 1", "No permissions"),
        ("exit 3", "it ended with 3 without any output"),
        ('while [ "$1" != -- ]; do shift; done; shift; exec "$@"', "it does not start|not tight"),
    ],
)
def test_a_sandbox_that_does_not_work_is_none(
    memory: Path, monkeypatch: pytest.MonkeyPatch, script: str, told: str
) -> None:
    """What bwrap says is in the error; one that confines nothing is found out by the probe."""
    for name, value in pretending(memory, script).items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SandboxMissing, match=told):
        Bubblewrap().probe()


def test_without_bwrap_nothing_runs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no bwrap a run is an error, and no plain process."""
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(SandboxMissing, match="bwrap is not installed"):
        ran(Bubblewrap(), "print('it ran')")


def test_an_interpreter_that_is_not_there_is_told(bubblewrap: Bubblewrap) -> None:
    """The interpreters that were looked for are named."""
    assert bubblewrap.python is None
    with pytest.raises(SandboxMissing, match="no interpreter that it could see: /nowhere"):
        ran(Bubblewrap(python=Path("/nowhere")), "print()")
