"""Play: a page's blocks are run in order, as a reader would type them."""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from tests.docs.pages import SHELLS, Fence, Page

from mergepoint.tree.tree_yaml import from_yaml

Shell = Callable[[Fence, str], str | None]
"""Runs a block of commands and returns what was printed, None where nothing was run."""


@dataclass(frozen=True)
class Shown:
    """A block's output as the page shows it, and as it was printed."""

    fence: Fence
    printed: str

    @property
    def fits(self) -> bool:
        """Return whether they are the same; `...` on the page stands for anything."""
        checker = doctest.OutputChecker()
        return checker.check_output(self.fence.text, self.printed, doctest.ELLIPSIS)

    @property
    def leaves_out(self) -> bool:
        """Return whether the page leaves out a part."""
        return doctest.ELLIPSIS_MARKER in self.fence.text


def reason_not_to_run(fence: Fence, where: str) -> str | None:
    """Return the reason of a block that is marked, or None. Raises ValueError for a blank one."""
    reason = fence.marks.get("not run")
    if reason is not None and len(reason.split()) < 3:
        raise ValueError(f"{where}: a block that is not run says why")
    return reason


def environment() -> dict[str, str]:
    """Return the environment of a user whose shell finds `mergepoint` and `python`.

    Python may keep what it compiled: else most of a command's time goes into that, each time.
    """
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    unset = ("COLUMNS", "LINES", "MERGEPOINT_STORE", "PYTHONDONTWRITEBYTECODE")
    return {name: value for name, value in os.environ.items() if name not in unset} | {"PATH": path}


def in_bash(fence: Fence, where: str) -> str | None:
    """Run a block that is marked to run, without a terminal. Raises AssertionError if it fails."""
    if "runs" not in fence.marks:
        return None
    done = subprocess.run(  # noqa: S603  (our own pages)
        ["bash", "-euo", "pipefail", "-c", fence.text],  # noqa: S607
        env=environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=120,
    )
    if done.returncode:
        raise AssertionError(f"{where}: exit code {done.returncode}\n{done.stdout}")
    return done.stdout


def play(page: Page, shell: Shell = in_bash) -> Iterator[Shown]:
    """Run a page's blocks in the current folder, and give each output that it shows.

    All python blocks of a page share one namespace; `shell` runs the commands. Raises what a block
    raises; ValueError for an output that follows nothing that was run.
    """
    module = ModuleType("page")
    printed: str | None = None
    with _importable(module):
        for fence in page.fences():
            where = f"{page.name}:{fence.line}"
            if "output" in fence.marks:
                if printed is None:
                    raise ValueError(f"{where}: this output follows no block that was run")
                yield Shown(fence, printed)
                printed = None
                continue
            if "file" in fence.marks:
                file = Path(fence.marks["file"])
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(fence.text, encoding="utf-8")
            printed = _run(fence, where, module, shell)


def _run(fence: Fence, where: str, module: ModuleType, shell: Shell) -> str | None:
    """Return what a block prints, or None where it is nothing that runs."""
    if "tree" in fence.marks:
        from_yaml(fence.text, source=where)
    if fence.language == "python" and reason_not_to_run(fence, where) is None:
        # Lines are those of the page, so that a traceback shows the place.
        code = compile("\n" * (fence.line - 1) + fence.text, where, "exec", dont_inherit=True)
        with contextlib.redirect_stdout(io.StringIO()) as said:
            exec(code, module.__dict__)  # noqa: S102  (that is the test)
        return said.getvalue()
    return shell(fence, where) if fence.language in SHELLS else None


@contextlib.contextmanager
def _importable(module: ModuleType) -> Iterator[None]:
    """Let libraries that look up a class's module find the page's namespace."""
    sys.modules[module.__name__] = module
    try:
        yield
    finally:
        del sys.modules[module.__name__]
