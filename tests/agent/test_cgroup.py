"""CPU time of a run: in a cgroup where one can be made, else added up by the supervisor."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from tests.agent.attack import UNSHOWN, Attack
from tests.agent.running import ran
from tests.agent.throw_away import GUARD

import mergepoint
from mergepoint.core.errors import SandboxMissing
from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, CpuCounted, Limits
from mergepoint.sandbox.resource_usage import Cgroup, new_cgroup, own_group

SELF = Path("/proc/self")
OWN_PREFIX = f"mergepoint-sandbox-{os.getpid()}-"
CPU_ATTACKS = [attack for attack in UNSHOWN if attack.stopped == "cpu"]
SOURCE = str(Path(str(mergepoint.__file__)).parents[1])


def left() -> list[str]:
    """Return the groups that this process has made and not removed."""
    parent = own_group(SELF)
    return [] if parent is None else [one.name for one in parent.glob(f"{OWN_PREFIX}*")]


@pytest.fixture
def group() -> Iterator[Cgroup]:
    """Make a real group, and remove it."""
    made = new_cgroup()
    if made is None:
        pytest.skip("no cgroup2 here in which this process may make a group")
    try:
        yield made
    finally:
        made.remove()
    assert not made.path.exists()


@pytest.fixture(params=["cgroup", "supervisor"])
def counted(request: pytest.FixtureRequest, bubblewrap: Bubblewrap) -> tuple[Bubblewrap, str]:
    """Return the sandbox with each way to count, and its name."""
    if request.param == "supervisor":
        return Bubblewrap(cgroup=False), "supervisor"
    request.getfixturevalue("group")
    return bubblewrap, "cgroup"


def in_group(group: Cgroup, code: str) -> None:
    """Run Python in a group, to its end."""
    command = group.joined([sys.executable, "-I", "-c", code])
    subprocess.run(command, check=True)  # noqa: S603  (our own interpreter)


@pytest.mark.first_case
@pytest.mark.parametrize("attack", CPU_ATTACKS, ids=lambda one: cast("Attack", one).name)
def test_cpu_time_is_limited_both_ways(counted: tuple[Bubblewrap, str], attack: Attack) -> None:
    """Code that uses up the processor is stopped for that, whoever counts, and leaves no group."""
    sandbox, way = counted
    before = left()
    run = asyncio.run(sandbox.run(CodeJob(code=GUARD + attack.code, limits=attack.limits)))
    assert (run.stopped, run.cpu_counted) == ("cpu", way), run
    assert left() == before


def test_code_within_its_limit_is_not_stopped(counted: tuple[Bubblewrap, str]) -> None:
    """What is spent before the code begins takes nothing from a small limit that it stays below."""
    sandbox, way = counted
    code = "import time\nwhile time.process_time() < 0.2:\n    pass\nprint('done')"
    run = ran(sandbox, code, cpu=0.6, wall=20)
    assert (run.output, run.stopped, run.cpu_counted) == ("done\n", None, way)


def test_time_of_children_that_nobody_waited_for_is_exact(group: Cgroup) -> None:
    """The kernel counts children of a parent that ignores SIGCHLD, to the millisecond."""
    code = """
import os, signal, time
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for _ in range(20):
    if os.fork() == 0:
        while time.process_time() < 0.01:
            pass
        os._exit(0)
    time.sleep(0.01)
try:
    os.wait()
except ChildProcessError:
    pass
"""
    in_group(group, "pass")
    assert group.begin()
    in_group(group, "pass")
    start = group.look((), 0.0)
    in_group(group, code)
    spent = group.look((), 0.0) - start
    assert 0.2 <= spent <= 0.2 + 20 * start


def test_what_was_spent_before_does_not_count(group: Cgroup) -> None:
    """Counting begins with the code: what the sandbox took to start is not the code's."""
    assert not group.begin()  # nothing has joined
    in_group(group, "import time\nwhile time.process_time() < 0.2:\n    pass")
    assert group.begin()
    assert group.look((), 0.0) == 0


def test_a_process_that_cannot_join_runs_all_the_same(group: Cgroup, tmp_path: Path) -> None:
    """Where joining fails the command is run, says nothing of it, and the group counts nothing."""
    elsewhere = Cgroup(tmp_path / "nowhere", os.open(tmp_path, os.O_RDONLY))
    command = elsewhere.joined(["/bin/sh", "-c", 'echo "$1"', "sh", "a 'b' \"$c\" *"])
    done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603  (a shell)
    assert (done.stdout, done.stderr) == (b"a 'b' \"$c\" *\n", b"")
    assert not elsewhere.begin()
    assert not group.begin()
    elsewhere.remove()


def test_a_command_that_env_would_misread_is_left_as_it_is(group: Cgroup) -> None:
    """A program whose path has an equals sign is started as before, outside of the group."""
    assert group.joined(["/opt/a=b/bwrap", "--x"]) == ["/opt/a=b/bwrap", "--x"]


def test_the_command_has_no_environment(group: Cgroup) -> None:
    """What the shell sets is not handed on: bwrap's environment can be read in the sandbox."""
    command = group.joined(["/usr/bin/env"])
    done = subprocess.run(command, capture_output=True, check=True, env={"A": "b"})  # noqa: S603
    assert done.stdout == b""


def test_every_process_of_a_group_is_ended(group: Cgroup) -> None:
    """Processes that left their session die with the group where the kernel has cgroup.kill."""
    if not (group.path / "cgroup.kill").exists():
        pytest.skip("this kernel has no cgroup.kill (Linux 5.14)")
    code = "import os, time\nos.fork()\nos.setsid() if os.fork() == 0 else None\ntime.sleep(60)"
    command = group.joined([sys.executable, "-I", "-c", code])
    with subprocess.Popen(command) as process:  # noqa: S603  (our own interpreter)
        procs = group.path / "cgroup.procs"
        end = time.monotonic() + 20
        while len(procs.read_text().split()) < 4 and time.monotonic() < end:
            time.sleep(0.01)
        assert len(procs.read_text().split()) == 4
        group.kill()
        assert process.wait(20) == -9


def test_a_group_that_is_left_is_removed_by_the_next(group: Cgroup) -> None:
    """A group that nobody holds goes when the next one is made; one that is in use stays."""
    leftover = group.path.with_name(f"{OWN_PREFIX}{'0' * 16}")
    other = group.path.with_name("mergepoint-sandbox-of-somebody-else")
    leftover.mkdir()
    other.mkdir()
    try:
        made = new_cgroup()
        assert made is not None
        assert not leftover.exists()
        assert group.path.exists()
        assert other.exists()
        made.remove()
    finally:
        other.rmdir()
        if leftover.exists():
            leftover.rmdir()


HOST = """
import asyncio, sys
from mergepoint.sandbox.job import CodeJob
from mergepoint.sandbox.job import Limits
from mergepoint.sandbox.bubblewrap import Bubblewrap
code = "import time; print('here', flush=True); time.sleep(600)"
job = CodeJob(code=code, limits=Limits(wall=600))
asyncio.run(Bubblewrap().run(job, on_output=lambda text: print(text, flush=True)))
"""


@pytest.mark.usefixtures("group")
def test_a_supervisor_that_is_killed_leaves_a_group_for_one_run(bubblewrap: Bubblewrap) -> None:
    """The group of a process that was killed is there until another process runs code."""
    parent = own_group(SELF)
    assert parent is not None
    with subprocess.Popen(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", HOST],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": SOURCE},
    ) as host:
        assert host.stdout is not None
        mine = f"mergepoint-sandbox-{host.pid}-*"
        try:
            assert host.stdout.readline() == b"here\n"
            assert len(list(parent.glob(mine))) == 1
            assert ran(bubblewrap, "pass").ok
            assert len(list(parent.glob(mine))) == 1  # it is in use
        finally:
            host.kill()
    assert ran(bubblewrap, "pass").ok
    assert list(parent.glob(mine)) == []


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize("end", ["ended", "raised", "stopped", "cancelled", "not started"])
def test_a_run_leaves_no_group(bubblewrap: Bubblewrap, end: str) -> None:
    """However a run ends its group is removed."""
    before = left()
    if end == "ended":
        assert ran(bubblewrap, "pass").cpu_counted == "cgroup"
    elif end == "raised":
        assert ran(bubblewrap, "1 / 0").exit_code == 1
    elif end == "stopped":
        assert ran(bubblewrap, "import time\ntime.sleep(60)", wall=2).stopped == "wall"
    elif end == "not started":
        with pytest.raises(SandboxMissing, match="it does not start"):
            ran(Bubblewrap(python=Path("/usr/bin/false")), "pass")
    else:
        asyncio.run(cancelled(bubblewrap))
    assert left() == before


async def cancelled(bubblewrap: Bubblewrap) -> None:
    """Cancel a run that has begun."""
    begun = asyncio.Event()
    job = CodeJob(code="print('here', flush=True)\nimport time\ntime.sleep(60)", limits=Limits())
    task = asyncio.create_task(bubblewrap.run(job, on_output=lambda _: begun.set()))
    await begun.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


@pytest.mark.usefixtures("group")
def test_the_code_sees_no_cgroup(bubblewrap: Bubblewrap) -> None:
    """The code finds neither the file system of cgroups, nor a way to mount it, nor its name."""
    code = """
import ctypes, os
print([one for one in ("/sys", "/sys/fs/cgroup") if os.path.exists(one)])
print([line for line in open("/proc/self/mountinfo") if "cgroup" in line])
print("mergepoint" in open("/proc/self/cgroup").read(), open("/proc/1/environ").read() == "")
for number in os.listdir("/proc/self/fd"):
    try:
        assert "cgroup" not in os.readlink(f"/proc/self/fd/{number}")
    except FileNotFoundError:
        pass
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir("here")
print(libc.mount(b"none", b"here", b"cgroup2", 0, None), os.strerror(ctypes.get_errno()))
"""
    run = ran(bubblewrap, code)
    assert run.output == "[]\n[]\nFalse True\n-1 Operation not permitted\n"
    assert run.cpu_counted == "cgroup"


def described(folder: Path, *, cgroup: str, mountinfo: str) -> Path:
    """Write the files of /proc/self that say where a process's group is."""
    (folder / "cgroup").write_text(cgroup, encoding="utf-8")
    (folder / "mountinfo").write_text(mountinfo, encoding="utf-8")
    return folder


V1 = "3:cpu:/somewhere\n"
V1_MOUNT = "32 31 0:29 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"


@pytest.mark.parametrize(
    ("cgroup", "mount", "found"),
    [
        ("0::/", "38 31 0:31 / /sys/u rw - cgroup2 none rw", "/sys/u"),
        ("0::/a/b.scope", "38 31 0:31 / /sys/u rw shared:4 - cgroup2 none rw", "/sys/u/a/b.scope"),
        ("0::/box/a", r"38 31 0:31 /box /sys/an\040u rw - cgroup2 none rw", "/sys/an u/a"),
        ("0::/other", "38 31 0:31 /box /sys/u rw - cgroup2 none rw", None),
        ("0::/../other", "38 31 0:31 / /sys/u rw - cgroup2 none rw", None),
        ("", "38 31 0:31 / /sys/u rw - cgroup2 none rw", None),
        ("0::/", "", None),
    ],
)
def test_the_own_group_is_found(tmp_path: Path, cgroup: str, mount: str, found: str | None) -> None:
    """Of what is mounted the file system of v2 counts, from the group that is its root."""
    proc = described(tmp_path, cgroup=f"{V1}{cgroup}\n", mountinfo=f"{V1_MOUNT}{mount}\n")
    assert own_group(proc) == (None if found is None else Path(found))


@pytest.mark.parametrize("mounted", ["read-only", "none"])
def test_without_a_group_there_is_none(tmp_path: Path, mounted: str) -> None:
    """Where no group can be made, or none is found, the supervisor counts."""
    assert new_cgroup(tmp_path) is None  # it says nothing
    mount = f"38 31 0:31 / {tmp_path / mounted} rw - cgroup2 none rw\n"
    if mounted == "read-only":
        mount = "38 31 0:31 / /proc/sys rw - cgroup2 none rw\n"  # where nobody makes folders
    assert new_cgroup(described(tmp_path, cgroup="0::/\n", mountinfo=mount)) is None


COUNTED = """
import asyncio
from mergepoint.sandbox.job import CodeJob
from mergepoint.sandbox.bubblewrap import Bubblewrap
run = asyncio.run(Bubblewrap().run(CodeJob(code="print('ran')")))
print(run.output.strip(), run.stderr, run.cpu_counted)
"""


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("failing", ["nothing", "making", "joining"])
def test_where_a_group_fails_the_supervisor_counts(group: Cgroup, failing: str) -> None:
    """A run whose group cannot be made or joined goes on without, and says who counted."""
    inner = group.path / "inner"
    inner.mkdir()
    if failing == "making":
        (inner / "cgroup.max.descendants").write_text("0")
    elif failing == "joining":  # groups below a threaded one take no processes
        (inner / "cgroup.type").write_text("threaded")
    try:
        words = [f"PYTHONPATH={SOURCE}", "PATH=/usr/bin:/bin", sys.executable, "-c", COUNTED]
        command = Cgroup(inner, -1).joined(["/usr/bin/env", *words])
        done = subprocess.run(command, capture_output=True, check=True)  # noqa: S603
        assert list(inner.glob("mergepoint-*")) == []
    finally:
        inner.rmdir()
    way = "cgroup" if failing == "nothing" else "supervisor"
    assert done.stdout.decode().split() == ["ran", way]
    assert done.stderr == b""


def test_the_supervisor_counts_where_it_is_told_to(bubblewrap: Bubblewrap) -> None:
    """Without a cgroup the run says that its supervisor counted."""
    assert bubblewrap.cgroup
    way: CpuCounted | None = ran(Bubblewrap(cgroup=False), "pass").cpu_counted
    assert way == "supervisor"
