"""The terminal of a chat: messages and decisions from a person, and the view of a turn."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any, Literal

import click
from rich.syntax import Syntax

from mergepoint.agent.turns import Pending
from mergepoint.apps.cli.gate_answers import can_ask, question_lines
from mergepoint.apps.cli.live import LiveTree, Screen, live_console
from mergepoint.apps.cli.output import (
    brief,
    clock,
    columns,
    count,
    printable,
    put_piece,
    put_prose,
    stderr_console,
    tell,
)
from mergepoint.apps.cli.progress import Progress
from mergepoint.core.paths import ITERATION
from mergepoint.core.strict_yaml import YamlError, dump, load
from mergepoint.engine.callbacks import Event
from mergepoint.journal.call_records import CallRecord
from mergepoint.tree.nodes import Node

PROMPT = "> "
_WORDS = "[a]pprove, [e]dit, [r]eject and say why, [c]ancel, [l]ater"
_CHOICES = {
    **dict.fromkeys(("a", "approve", "y", "yes"), "approve"),
    **dict.fromkeys(("e", "edit"), "edit"),
    **dict.fromkeys(("r", "reject"), "reject"),
    **dict.fromkeys(("c", "cancel"), "cancel"),
    **dict.fromkeys(("l", "later"), "later"),
}
_WIDE = 72
_STOPPING = "stopping: waiting for the call in progress (press Ctrl-C again to drop it)..."


# Input.


class ChatInput:
    """Messages and answers of a person.

    Args:
        messages: The messages, after which the input ends. Without them, lines are read: on a
            terminal with a prompt, keys and history; from a pipe, one message per line. Answers
            to questions are read in the same way, so that a pipe can contain them too.
    """

    def __init__(self, messages: Sequence[str] = ()) -> None:
        self.person = can_ask()
        self._messages = list(messages)
        self.is_scripted = bool(messages)  # no line is read
        if self.person:
            with contextlib.suppress(ImportError):
                import readline  # noqa: F401  (input() has keys and history with it)

    def next_message(self) -> str | None:
        """Return the next message, None at the end. Raises KeyboardInterrupt."""
        if self.is_scripted:
            return self._messages.pop(0) if self._messages else None
        return self._line(PROMPT)

    def answer(self, words: str) -> str | None:
        """Ask for an answer; None at the end of the input. Raises KeyboardInterrupt."""
        return self._line(f"{words}: ")

    def _line(self, prompt: str) -> str | None:
        try:
            if self.person and sys.stdout.isatty():
                return input(prompt).strip()
            if self.person:
                sys.stderr.write(prompt)
                sys.stderr.flush()
            # Not input() for a pipe: it would echo the prompt to stdout, which is for answers.
            line = sys.stdin.readline()
        except EOFError:
            tell()
            return None
        except UnicodeDecodeError as error:
            tell(f"That line isn't text: {error}", style="yellow")
            return ""
        return line.strip() if line else None


# Decisions.


@dataclass(frozen=True, slots=True)
class UserAnswer:
    """The answer of a person: a decision, or to cancel the turn, or to decide later."""

    act: Literal["decide", "cancel", "later"]
    decision: Any = None


def ask(pending: Pending, lines: ChatInput) -> UserAnswer:
    """Show a question and ask until there is an answer; the end of the input means "later"."""
    show(pending)
    while True:
        said = lines.answer(_WORDS)
        if said is None:
            return UserAnswer("later")
        word, _, rest = said.partition(" ")
        choice = _CHOICES.get(word.lower())
        if choice in ("cancel", "later"):
            return UserAnswer("cancel" if choice == "cancel" else "later")
        decision = _decision(choice, rest.strip(), pending, lines)
        if decision is not None:
            return UserAnswer("decide", decision)


def _decision(choice: str | None, rest: str, pending: Pending, lines: ChatInput) -> Any:
    """Return a decision, None if the question must be repeated."""
    if choice == "approve":
        return "approve"
    if choice == "reject":
        feedback = rest or lines.answer("What should be different? (may be empty)") or ""
        return {"decision": "reject", "feedback": feedback}
    if choice == "edit":
        text = _edited(pending)
        return None if text is None else {"decision": "edit", "text": text}
    tell(f"Use one of: {_WORDS}", style="yellow")
    return None


def show(pending: Pending) -> None:
    """Show a plan, program or question, in full."""
    tell()
    if pending.plan is not None:
        tell(f"Plan: {pending.plan.intent}", style="bold")
        skill = f" {pending.plan.skill}" if pending.plan.skill else ""
        tell(f"  {pending.plan.action.replace('_', ' ')}{skill}")
        for number, step in enumerate(pending.plan.steps, start=1):
            tell(f"  {number}. {step}")
    elif pending.asks == "code":
        tell("Program:", style="bold")
        show_code(pending.code)
    else:
        for line in question_lines(pending.question):
            tell(line)
    tell()


def show_code(code: str) -> None:
    """Show Python on stderr, in colours on a terminal."""
    console = stderr_console()
    shown = printable(code.rstrip().expandtabs(4))
    if not console.is_terminal:
        for line in shown.splitlines():
            tell(f"  {line}")
        return
    console.print(Syntax(shown, "python", theme="ansi_dark", line_numbers=True, word_wrap=True))


def _edited(pending: Pending) -> str | None:
    """Return the text changed in the person's editor; None without a change or an editor."""
    if not (os.environ.get("VISUAL") or os.environ.get("EDITOR")):
        tell("There is no editor. Set EDITOR, or reject with feedback.")
        return None
    is_code = pending.asks == "code"
    plan = "" if pending.plan is None else dump(pending.plan.model_dump())
    text = pending.code if is_code else plan
    try:
        found = click.edit(text, extension=".py" if is_code else ".yaml")
    except click.ClickException as error:
        tell(f"Can't start the editor: {error.format_message()}", style="yellow")
        return None
    if found is None or found.strip() == text.strip():
        tell("Nothing was changed.")
        return None
    return found if is_code else _plan_text(found)


def _plan_text(text: str) -> str | None:
    """Return an edited plan as JSON, None if it isn't YAML."""
    try:
        return json.dumps(load(text, source="plan").value, ensure_ascii=False)
    except YamlError as error:
        tell(str(error), style="yellow")
        return None


# Output.


class WrappedText:
    """Writes pieces of text to stdout; on a terminal, lines are wrapped between words.

    On a terminal, a word is written when it is complete; elsewhere, each piece at once.
    """

    def __init__(self, width: int | None = None) -> None:
        self._width = columns() if width is None else width
        self._column = 0
        self._blank = ""
        self._word = ""

    def put(self, text: str) -> None:
        """Write a piece."""
        if self._width is None:
            put_piece(text)
            return
        for character in text:
            if not character.isspace():
                self._word += character
                continue
            self._flush()
            if character == "\n":
                put_piece("\n")
                self._column, self._blank = 0, ""
            else:
                self._blank += character

    def end(self) -> None:
        """Write the last word, and end the line."""
        self._flush()
        put_piece("\n")
        self._column, self._blank = 0, ""

    def _flush(self) -> None:
        if not self._word:
            return
        # Blanks wait for the next word: at the end of a line they are dropped.
        needed = len(self._blank) + len(self._word)
        if self._column and self._column + needed > (self._width or 0):
            put_piece("\n")
            self._column, self._blank = 0, ""
        put_piece(self._blank + self._word)
        self._column += len(self._blank) + len(self._word)
        self._blank, self._word = "", ""


class TurnView:
    """The view of turns: the live tree of a turn and its steps on stderr, answers on stdout.

    Without a terminal, there is a line per step and no tree. `progress` is that of the last turn.
    """

    def __init__(self, tree: Node, *, quiet: bool) -> None:
        self._tree = tree
        self._quiet = quiet
        self.progress = Progress(tree)
        self._screen: Screen | None = None
        self._streamed = ""
        self._flow = WrappedText()
        self._pending = ""  # the line about the plan or program that a gate asks about
        self._began = 0.0
        self._stopping = False

    def new_turn(self, records: Sequence[CallRecord] = ()) -> None:
        """Begin the tree of another turn; `records` are its calls, if another process began it."""
        self.progress = Progress(self._tree)
        self.progress.note_records(records)

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Show a turn while it runs."""
        self._streamed, self._pending, self._flow = "", "", WrappedText()
        console = None if self._quiet else live_console()
        if console is None:
            yield
            return
        tree = LiveTree(self.progress, console)
        # Transient: the question or the answer that follows stands alone on the terminal.
        self._screen = Screen(console, lambda: tree, transient=True)
        try:
            with self._screen, self._show_stopping():
                yield
        finally:
            self._screen, self._stopping, self.progress.notice = None, False, ""

    @contextlib.contextmanager
    def _show_stopping(self) -> Iterator[None]:
        """Show after Ctrl-C that a call in progress is finishing, since that can take long."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        def stop(number: int, frame: FrameType | None) -> None:
            self._stopping, self.progress.notice = True, _STOPPING
            raise KeyboardInterrupt

        before = signal.signal(signal.SIGINT, stop)
        try:
            yield
        finally:
            signal.signal(signal.SIGINT, before)

    def event(self, event: Event) -> None:
        """Show an event of the turn."""
        self.progress.note(event)
        names = event.path.split("/")
        if event.kind == "start":
            self._began = time.monotonic()
        # Only this step streams the answer; other steps stream plans and programs.
        elif event.kind == "token" and len(names) == 2 and names[-1] == "respond":
            # Hide the tree for the rest of the turn: the answer streams where it is drawn.
            if self._screen is not None:
                self._screen.hide()
                self._screen = None
            self._flow.put(event.text)
            self._streamed += event.text
        elif event.kind == "end" and event.of == "call":
            self._pending = _step_line(names, event.text, clock(time.monotonic() - self._began))
            if names[-1] == "execute":
                self._line(self._pending)
        elif event.kind == "end" and event.of == "gate":  # a rule decided, without a person
            back = " - rejected" if event.text == "reject" else ""
            if not (back and names[1:2] == ["work"]):  # the line of the run has the reason
                self._line(self._pending and f"{self._pending}{back}")
        elif event.kind == "error" and event.text.strip():
            self._line(f"{names[-1]} failed: {brief(event.text, _WIDE)}")

    def output(self, path: str, text: str) -> None:
        """Show the output of a program."""
        lines = text.strip().splitlines()
        if lines and not self._stopping:
            self.progress.notice = printable(brief(lines[-1], _WIDE))

    def answered(self, text: str) -> None:
        """Write the answer, or the part of it that was not streamed."""
        if self._streamed and text.startswith(self._streamed.strip()):
            self._flow.put(text[len(self._streamed.lstrip()) :])
            self._flow.end()
            return
        self.interrupted()
        put_prose(text)

    def interrupted(self) -> None:
        """End the line of an incomplete answer."""
        if self._streamed:
            self._flow.end()

    def _line(self, text: str) -> None:
        if text and not self._quiet:
            with contextlib.nullcontext() if self._screen is None else self._screen.aside():
                tell(f"  {text}", style="dim")


def _attempt(names: list[str]) -> str:
    """Return the number of an attempt after the first."""
    numbers = [name.removeprefix(ITERATION) for name in names if name.startswith(ITERATION)]
    number = int(numbers[0]) if numbers and numbers[0].isdigit() else 1
    return f" (attempt {number})" if number > 1 else ""


def _step_line(names: list[str], text: str, seconds: str) -> str:
    try:
        value = json.loads(text) if names[-1] in ("plan", "execute") else text
    except ValueError:
        return ""
    tried = _attempt(names)
    if names[-1] == "plan" and isinstance(value, dict):
        if value.get("action") == "chat":
            return ""
        what = value.get("skill") or "a custom program"
        return f"plan{tried}: {what} - {brief(str(value.get('intent', '')), _WIDE)}"
    if names[-1] == "code":
        return f"code{tried}: {count(len(str(value).splitlines()), 'line')}"
    if names[-1] == "execute" and isinstance(value, dict):
        return _run_line(value, tried, seconds)
    return ""


def _run_line(run: dict[str, Any], tried: str, seconds: str) -> str:
    if run["output"] is None:
        return f"not run{tried}: {brief(str(run.get('refused')), _WIDE)}"
    end = f"stopped at the limit of {run['stopped']}" if run["stopped"] else ""
    end = end or f"exit code {run['exit_code']}"
    lines = run["output"].rstrip().splitlines()
    last = f": {brief(lines[-1], _WIDE)}" if lines and not run["ok"] else ""
    return f"run{tried}: {end}, {count(len(lines), 'line')}, {seconds}{last}"
