"""Systems without POSIX modules: what works there, and what says what it needs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TREE = """\
from mergepoint import Block, Gate, Step

tree = Block([Gate(Step("Say something.", name="draft")), Step("Again.")], name="two")
"""
EVERYTHING = """\
import pkgutil
from importlib import import_module

import mergepoint

for found in pkgutil.walk_packages(mergepoint.__path__, "mergepoint."):
    if not found.name.startswith("mergepoint.apps.chainlit") and "__main__" not in found.name:
        import_module(found.name)
for name in mergepoint.__all__:
    getattr(mergepoint, name)
"""
LOCKS = """\
import os, sys
from pathlib import Path
from mergepoint.journal.checked_lines import is_locked, lock_file, open_lockable
from mergepoint.journal.checked_lines import open_locked, remove_locked
from mergepoint.journal.checked_lines import JournalError
path = Path("x")
first = open_locked(path)
assert is_locked(path)
try:
    open_locked(path)
except JournalError as error:
    assert "is being written by another process" in str(error)
else:
    sys.exit("held twice")
remove_locked(first, path)
assert not path.exists() and not is_locked(path)
path.touch()
with open_lockable(path, os.O_WRONLY) as file:
    lock_file(file, path)
    assert is_locked(path)
assert not is_locked(path)
"""
STORES = [("--out", "runs"), ("--store", "sqlite:///runs.db")]


def elsewhere(folder: Path, *arguments: str, ends: int = 0) -> str:
    """Run a module on such a system; give what it printed."""
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-m", "tests.apps.elsewhere", *arguments],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{folder}", "COLUMNS": "100"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    said = done.stdout + done.stderr
    assert done.returncode == ends, said
    assert "Traceback" not in said
    return said


def command(folder: Path, *arguments: str, ends: int = 0) -> str:
    """Run the command on such a system; give what it printed."""
    return elsewhere(folder, "mergepoint.apps.cli", *arguments, ends=ends)


@pytest.mark.campaign
def test_every_module_can_be_imported(tmp_path: Path) -> None:
    """No module needs POSIX to be imported, the sandbox's included."""
    (tmp_path / "everything.py").write_text(EVERYTHING, encoding="utf-8")
    elsewhere(tmp_path, "everything")


@pytest.mark.campaign
@pytest.mark.parametrize("store", STORES, ids=["files", "sqlite"])
def test_a_run_waits_and_goes_on(tmp_path: Path, store: tuple[str, str]) -> None:
    """Journals in files and in SQLite are written, locked and resumed there."""
    (tmp_path / "two.py").write_text(TREE, encoding="utf-8")
    command(tmp_path, "run", "two.py:tree", "-q", *store, ends=4)
    assert "offline model" in command(
        tmp_path, "resume", "last", "-q", "--answer", "**=approve", *store
    )
    assert list(tmp_path.rglob("*.lock")) == []


@pytest.mark.campaign
def test_recipes_and_turns_run(tmp_path: Path) -> None:
    """So do recipes, and turns of the agent whose programs monty confines."""
    command(tmp_path, "run", "best_of_n", "A title for a poster.", "-q")
    said = command(tmp_path, "chat", "-m", "Sum the sales by month.", "--ask", "nothing")
    assert "Total: 40546.40" in said


@pytest.mark.campaign
@pytest.mark.parametrize(
    ("runner", "needs"),
    [("bubblewrap", "bubblewrap needs Linux"), ("unsafe_subprocess", "needs Linux, macOS or WSL")],
)
def test_a_sandbox_says_what_it_needs(tmp_path: Path, runner: str, needs: str) -> None:
    """A runner that needs a system of another kind is refused by name, with that kind."""
    said = command(tmp_path, "chat", "-m", "Hello", "--ask", "nothing", "--runner", runner)
    assert f"{needs}, and this is win32" in " ".join(said.split())


@pytest.mark.campaign
def test_a_file_that_is_held_is_refused_there(tmp_path: Path) -> None:
    """The lock of such a system keeps a second writer out, and ends with the file."""
    (tmp_path / "locks.py").write_text(LOCKS, encoding="utf-8")
    elsewhere(tmp_path, "locks")
