"""The list of attacks: each succeeds where nothing stops it, and fails in the sandbox."""

from __future__ import annotations

import asyncio
import platform
import re
import subprocess
import sys

import pytest
from tests.agent.attack import FULL, SEEN, UNSHOWN, Attack
from tests.agent.conftest import Machine
from tests.agent.throw_away import GUARD, REACHED, thrown_away

from mergepoint.sandbox.bubblewrap import Bubblewrap
from mergepoint.sandbox.job import CodeJob, CodeRun
from mergepoint.sandbox.seccomp import REFUSED


def named(attack: Attack) -> str:
    """Return a test's id."""
    return attack.name.replace(" ", "-")


def reached(output: str) -> bool:
    """Return whether the code printed that it succeeded; a traceback may quote that line."""
    return re.search(rf"^{REACHED}", output, re.MULTILINE) is not None


def attacked(bubblewrap: Bubblewrap, machine: Machine, attack: Attack) -> CodeRun:
    """Run an attack in the sandbox."""
    job = CodeJob(
        code=GUARD + machine.aimed(attack.code),
        limits=attack.limits,
        files={"given.txt": machine.folder / "secret.txt"},
    )
    return asyncio.run(bubblewrap.run(job))


def test_an_attack_refuses_to_run_outside_of_a_sandbox() -> None:
    """The lines that each attack begins with end it on this machine as it is."""
    done = subprocess.run(  # noqa: S603  (our own interpreter, on lines that end)
        [sys.executable, "-c", GUARD + "print('it went on')"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert "in a sandbox or not at all" in done.stderr


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("attack", SEEN, ids=named)
def test_an_attack_succeeds_where_nothing_stops_it(machine: Machine, attack: Attack) -> None:
    """In a throw-away namespace the code reaches what it is after."""
    said = thrown_away(
        machine.aimed(attack.before + attack.code + attack.after),
        root=attack.root,
        environment={"SECRET": machine.canary},
        files=attack.files,
    )
    assert reached(said), said


def stopped_as_told(bubblewrap: Bubblewrap, machine: Machine, attack: Attack) -> None:
    """Run an attack in the sandbox and look at what it did and left."""
    run = attacked(bubblewrap, machine, attack)
    assert not reached(run.output), run
    assert re.search(attack.told, run.output), run
    assert run.stopped == attack.stopped, run
    assert machine.canary.encode() not in b"".join(file.data for file in run.made)
    assert machine.victim.poll() is None
    assert len(machine.processes_of(machine.canary)) == 1
    assert (machine.folder / "secret.txt").read_text(encoding="utf-8") == machine.canary


@pytest.mark.parametrize("attack", SEEN + UNSHOWN, ids=named)
def test_an_attack_fails_in_the_sandbox(
    bubblewrap: Bubblewrap, machine: Machine, attack: Attack
) -> None:
    """The same code reaches nothing, ends as the list says, and leaves nothing that runs."""
    stopped_as_told(bubblewrap, machine, attack)


@pytest.mark.campaign
@pytest.mark.parametrize("attack", FULL, ids=named)
def test_an_attack_of_full_size_fails_in_the_sandbox(
    bubblewrap: Bubblewrap, machine: Machine, attack: Attack
) -> None:
    """What uses up a machine is stopped under the limits that hold unless others are set."""
    stopped_as_told(bubblewrap, machine, attack)


def test_the_list_is_long_enough() -> None:
    """More than twenty attacks have names of their own, and what is not shown says why."""
    names = [attack.name for attack in SEEN + UNSHOWN]
    assert len(set(names)) == len(names) > 20
    assert not [attack.name for attack in SEEN if attack.unsafe]
    assert not [attack.name for attack in UNSHOWN if not attack.unsafe]


def test_calls_of_the_kernel_that_are_refused_are_refused(bubblewrap: Bubblewrap) -> None:
    """Every system call of the list gives EPERM in there, before the kernel looks at it."""
    column = {"x86_64": 0, "aarch64": 1}[platform.machine()]
    numbers = {name: both[column] for name, both in REFUSED.items() if both[column] is not None}
    code = f"""{GUARD}
import ctypes, errno
libc = ctypes.CDLL(None, use_errno=True)
for name, number in {numbers!r}.items():
    got = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    if got != -1 or ctypes.get_errno() != errno.EPERM:
        print(name, got, ctypes.get_errno())
for number in (435, 451, 500, 0x40000000):
    got = libc.syscall(number, 0, 0, 0, 0, 0, 0)
    if got != -1 or ctypes.get_errno() != errno.ENOSYS:
        print(number, got, ctypes.get_errno())
print("looked at", len({numbers!r}))
"""
    run = asyncio.run(bubblewrap.run(CodeJob(code=code)))
    assert run.output == f"looked at {len(numbers)}\n"
