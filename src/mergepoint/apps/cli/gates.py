"""Gates: decisions given by `--answer`, or by a person at the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from select import select as select_ready
from typing import Any, Final

import click

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.output import count, printable, tell
from mergepoint.core.errors import GateOpen, StepError
from mergepoint.core.merge import last_response
from mergepoint.core.path import of_first_iterations, select
from mergepoint.core.state import State
from mergepoint.models.halt import HALT
from mergepoint.record.record import CallRecord
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.gate import Gate
from mergepoint.tree.node import Node, Order, root_path, walk

# What follows the last `=` that something allowed follows: a name may hold `=` too.
_ANSWER = re.compile(r"(?P<path>.+?)=(?P<value>[a-z]+|\{.*\})", re.DOTALL)
_MOMENT = 0.1  # seconds
_CHOICES: Final = {"a": "approve", "e": "edit", "r": "reject", "l": "later"}


def read_answers(given: Sequence[str], tree: Node) -> dict[str, Any]:
    """Give the decisions of `--answer path=approve`, by path.

    Raises CommandError for one that cannot be read, that decides nothing, or that fits no gate.
    """
    gates = [path for path, node in walk(tree) if isinstance(node, Gate)]
    answers: dict[str, Any] = {}
    for text in given:
        path, answer = _answer(text)
        try:
            select(of_first_iterations(path), gates)
        except LookupError as error:
            raise CommandError(f"--answer {text!r}: {error.args[0] if gates else _NONE}") from error
        answers[path] = answer
    return answers


_NONE = "there are no gates in the tree"


def _answer(text: str) -> tuple[str, Any]:
    found = _ANSWER.fullmatch(text)
    if found is None:
        raise CommandError(
            f"--answer {text!r}: write it as path=approve, path=reject, or with a JSON object: "
            '\'path={"decision": "reject", "feedback": "shorter"}\''
        )
    value = found["value"]
    try:
        answer = json.loads(value) if value.startswith("{") else value
        Decision.of(answer)
    except (ValueError, RecursionError) as error:  # a StepError is one
        raise CommandError(f"--answer {text!r}: {error}") from error
    return found["path"], answer


class Later(Exception):
    """A person who does not decide now."""


class Decider:
    """Answers gates: by what was given, else by asking the person at the terminal.

    What nobody answers raises GateOpen and is kept in `open`. Gates that are open at the same
    time are asked one after the other, each while `aside` is open.
    """

    def __init__(
        self,
        answers: Mapping[str, Any],
        *,
        asks: bool,
        aside: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self.open: list[Question] = []
        self.asking = False
        self._answers = answers
        self._asks = asks
        self._aside = aside
        self._one = threading.Lock()

    def __call__(self, question: Question) -> Any:
        """Give the answer to a question. Raises GateOpen where there is none."""
        found = self._given(question.path)
        if found is None and self._asks:
            found = self._asked(question)
        if found is None:
            self.open.append(question)
            raise GateOpen([question])
        return found

    def _asked(self, question: Question) -> Decision | None:
        halt = HALT.get()
        with self._one:
            if halt is not None and halt.stopped:
                return None
            self.asking = True
            try:
                with self._aside():
                    return ask(question)
            finally:
                self.asking = False

    def _given(self, path: str) -> Any:
        for selector in sorted(self._answers, key=lambda selector: selector != path):
            try:
                select(selector, [path])
            except LookupError:
                continue
            return self._answers[selector]
        return None


def in_order(questions: Sequence[Question], tree: Node) -> list[Question]:
    """Give questions in the order of the tree, each once."""
    order = Order(tree, root_path(tree))
    return sorted({one.path: one for one in questions}.values(), key=lambda one: order(one.path))


def can_ask() -> bool:
    """Say whether a person is there to be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: Question) -> Decision | None:
    """Ask at the terminal what is to happen; None where the person decides later."""
    for line in told_question(question):
        tell(line)
    try:
        while True:
            decision = _chosen(question)
            if decision is not None:
                return decision
    except Later:
        return None


def _chosen(question: Question) -> Decision | None:
    """Give what is chosen, None where it is to be asked again. Raises Later."""
    choice = _prompt("[a]pprove, [e]dit, [r]eject, or decide [l]ater")
    word = _CHOICES.get((choice or "l")[:1].lower())
    if word == "later":
        raise Later
    given = _edited(question) if word == "edit" else {"decision": word}
    if given is None or word is None:
        return None
    if word == "reject":
        given["feedback"] = _prompt("What should be different? (may be empty)")
    try:
        decision = Decision.of(given)
        question.settled(decision)
    except StepError as error:
        tell(str(error), style="yellow")
        return None
    return decision


def asked(record: CallRecord) -> Question:
    """Give the question that is on record of a gate."""
    return Question(
        record.path,
        str(record.prompt),
        State.of(record.messages, record.outputs),
        key=record.request,
        run=record.key.run,
    )


def told_question(question: Question) -> list[str]:
    """Give the lines that show what a gate asks, and exactly what would be kept."""
    kept = question.kept
    what = [count(len(kept.messages), "message")] if kept.messages else []
    what += [f"the output{'s' if len(kept.outputs) > 1 else ''} {', '.join(kept.outputs)}"] * bool(
        kept.outputs
    )
    lines = ["", f"Gate {question.path}"]
    lines += [f"  {line}" for line in question.text.splitlines()]
    lines.append(f"  would keep {' and '.join(what) or 'nothing'}:")
    for message in kept.messages:
        lines.append(f"  {message.type}")
        lines += [f"    {line}" for line in str(message.text).splitlines()]
    said = {str(message.text) for message in kept.messages}
    for key, value in kept.outputs.items():
        shown = "the text above" if value in said else _text(value)
        first, *others = shown.splitlines() or [""]
        lines.append(f"  {key}: {first}")
        lines += [f"    {line}" for line in others]
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _edited(question: Question) -> dict[str, Any] | None:
    """Give an edit: of the response, or of the outputs where there is none; None for no change."""
    outputs = dict(question.kept.outputs)
    response = last_response(question.kept.messages)
    captured = outputs.get(question.capture_key) if question.capture_key is not None else None
    if response is None and captured is None:
        found = _changed(_text(outputs), "the outputs as JSON", ".json")
        try:
            return None if found is None else {"decision": "edit", "outputs": json.loads(found)}
        except ValueError as error:
            tell(f"that is no JSON: {error}", style="yellow")
            return None
    text = str(response.text) if response is not None else _text(captured)
    found = _changed(text, "the new text", ".md")
    return None if found is None else {"decision": "edit", "text": found}


def _changed(text: str, what: str, extension: str) -> str | None:
    """Give a text as it was changed in the person's editor, else as it was typed on one line."""
    if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        found = click.edit(text, extension=extension)
        return None if found is None or found.strip() == text.strip() else found.rstrip("\n")
    return _prompt(f"Type {what} (empty: no change; $EDITOR opens an editor)") or None


def _prompt(words: str) -> str:
    """Ask for a line; the end of the input is an empty one. Raises Later in a run that is stopped.

    The line is waited for in small steps: a gate in a thread of its own would not hear of Ctrl-C.
    """
    halt = HALT.get()
    sys.stderr.write(f"{printable(words)}: ")
    sys.stderr.flush()
    while not _typed():
        if halt is not None and halt.stopped:
            tell()
            raise Later
    return sys.stdin.readline().strip()


def _typed() -> bool:
    """Say whether a line stands at the terminal, after a moment."""
    try:
        return bool(select_ready([sys.stdin], [], [], _MOMENT)[0])
    except (OSError, ValueError):  # no file that can be watched
        return True
