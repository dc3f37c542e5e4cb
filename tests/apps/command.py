"""The command as tests run it: in this process, as a process of its own, or on a terminal."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from mergepoint.apps.cli.app import app

ESSAY = '''\
"""An essay in four calls."""

from mergepoint import Block, Step, Template


def critic(name):
    return Step("Criticise the last response.", name=name, merge="none", capture_key=name)


tree = Block(
    [
        Step(Template("Write about {{ topic }}, in a {{ tone }} tone."), name="draft"),
        Block([critic("first"), critic("second")], name="threads", merge="none"),
        Step(
            Template("Revise it by {{ first }} and {{ second }}."),
            name="consensus",
            merge="last_response",
            capture_key="essay",
        ),
    ],
    name="essay",
    inputs=("topic", ("tone", "plain")),
)


def build():
    return tree


def build_with(count):
    return tree


number = 7
'''

BREAKING = '''\
"""A tree whose third prompt breaks."""

from mergepoint import Block, Step


def title(ctx):
    raise ValueError("the brief has no title")


tree = Block(
    [
        Step("Write a line.", name="draft"),
        Block([Step("Write another.", name="more"), Step(title, name="title")], name="stage"),
        Step("Never asked.", name="end"),
    ],
    name="breaking",
)
'''

INTERRUPTING = '''\
"""A tree whose second prompt is Ctrl-C."""

import os
import signal

from mergepoint import Block, Step


def stop(ctx):
    os.kill(os.getpid(), signal.SIGINT)
    return "Go on."


tree = Block([Step("Write a line.", name="draft"), Step(stop, name="stop")], name="stopping")
'''


SILENT = 60.0
"""Seconds after which a command that shows nothing new on its terminal counts as hanging."""


@dataclass(frozen=True)
class Outcome:
    """What a command left: its exit code and what it wrote."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Return stdout as the JSON that all of it has to be."""
        return json.loads(self.out)


def command(*args: str, given: str | None = None) -> Outcome:
    """Run the command in this process."""
    result = CliRunner().invoke(app, args, input=given, prog_name="mergepoint")
    assert result.exception is None or isinstance(result.exception, SystemExit)
    return Outcome(result.exit_code, result.stdout, result.stderr)


def line(*args: str) -> list[str]:
    """Return the words that start the command as a process."""
    return [sys.executable, "-m", "mergepoint.apps.cli", *args]


def process(*args: str, env: Mapping[str, str] | None = None) -> Outcome:
    """Run the command as a process of its own."""
    done = subprocess.run(  # noqa: S603  (this interpreter, on this package)
        line(*args),
        capture_output=True,
        text=True,
        encoding="utf-8",
        env={**os.environ, **(env or {})},
        check=False,
        timeout=120,
        stdin=subprocess.DEVNULL,
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def transcripts(folder: str = "runs") -> Sequence[Path]:
    """Return the transcripts below a folder."""
    return sorted(Path(folder).glob("*/transcript.json"))


def only_transcript(folder: str = "runs") -> Any:
    """Return the data of the only transcript below a folder."""
    (file,) = transcripts(folder)
    return json.loads(file.read_text(encoding="utf-8"))


def paths(transcript: Any) -> list[str]:
    """Return the paths of the answered calls."""
    return [step["path"] for step in transcript["steps"]]


def on_terminal(
    *args: str, typed: str = "", then: Sequence[tuple[str, str]] = ()
) -> tuple[int, str]:
    """Run the command on a terminal of 24 lines; give its exit code and what was shown.

    What is `typed` is there from the start; what comes `then` waits for words to be shown.

    Raises AssertionError with what was shown where nothing more comes for SILENT seconds.
    """
    child, terminal = pty.fork()
    if child == 0:
        os.environ.update(TERM="xterm-256color", COLUMNS="80", LINES="24")
        os.execv(sys.executable, line(*args))  # noqa: S606  (this interpreter)
    shown, seen = b"", 0
    waiting = [(words.encode(), keys.encode()) for words, keys in then]
    with contextlib.suppress(OSError):  # the end of a terminal is an error on Linux
        os.write(terminal, typed.encode())
        while True:
            if not select.select([terminal], [], [], SILENT)[0]:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                raise AssertionError(f"waited for {waiting[:1]}, shown was:\n{shown.decode()}")
            if not (data := os.read(terminal, 65536)):
                break
            shown += data
            if waiting and waiting[0][0] in shown[seen:]:
                seen = len(shown)
                os.write(terminal, waiting.pop(0)[1])
    os.close(terminal)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status), shown.decode()


def plain(shown: str) -> str:
    """Return what was shown without control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", shown).replace("\r", "")


def completions(words: str) -> list[str]:
    """Return what bash would be offered at the end of some words."""
    env = {
        "_MERGEPOINT_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "import sys; sys.argv[0] = 'mergepoint'\nfrom mergepoint.apps.cli import main; main()",
        ],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        check=False,
    )
    return done.stdout.split()
