"""A smoke run of an installed mergepoint: `python -W error tests/smoke.py`, without pytest.

It imports every module and every public name, then runs the demo, a recipe, a chat turn with a
program, and a run that waits at a gate and is resumed, in a new folder. It needs the extras
`monty`, `sql` and `testing`. Warnings are errors, in its own process and in the commands.
"""

from __future__ import annotations

import os
import pkgutil
import subprocess
import sys
import tempfile
from importlib import import_module
from pathlib import Path

TREE = """\
from mergepoint import Block, Gate, Step

tree = Block([Gate(Step("Say something short.", name="draft")), Step("Again.")], name="smoke")
"""
OTHER_EXTRAS = ("mergepoint.apps.chainlit",)


def main() -> None:
    """Run all parts. Raises whatever a part raises, or SystemExit with what was unexpected."""
    if "error" not in sys.warnoptions:
        raise SystemExit("run it as `python -W error tests/smoke.py`")
    print(f"Python {sys.version.split()[0]}: {import_everything()} modules")
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("smoke.py").write_text(TREE, encoding="utf-8")
        command("demo", "--out", "runs")
        command("run", "best_of_n", "A title for a poster.")
        command("chat", "-m", "Sum the sales by month.", "--ask", "nothing", "--runner", "monty")
        for store in (("--out", "gated"), ("--store", "sqlite:///runs.db")):
            command("run", "smoke.py:tree", *store, ends=4)
            command("resume", "last", "--answer", "**=approve", *store)


def import_everything() -> int:
    """Import every module but those of other extras, and every name that one lists as public.

    Returns the number of modules.
    """
    package = import_module("mergepoint")
    names = (found.name for found in pkgutil.walk_packages(package.__path__, "mergepoint."))
    modules = [
        import_module(name)
        for name in names
        if not name.startswith(OTHER_EXTRAS) and not name.endswith("__main__")
    ]
    for module in (package, *modules):
        for name in getattr(module, "__all__", ()):
            getattr(module, name)
    return len(modules)


def command(*arguments: str, ends: int = 0) -> None:
    """Run the installed command. Raises SystemExit where it ends otherwise than it should."""
    environment = os.environ | {"PYTHONWARNINGS": "error", "COLUMNS": "100"}
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-m", "mergepoint.apps.cli", *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        encoding="utf-8",
        check=False,
    )
    told = done.stdout + done.stderr
    if done.returncode != ends or not told.strip() or "Traceback" in told:
        raise SystemExit(f"{arguments} ended with {done.returncode}, not {ends}:\n{told}")
    print("ok: mergepoint", *arguments)


if __name__ == "__main__":
    main()
