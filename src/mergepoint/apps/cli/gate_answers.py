"""Decisions at gates, from `--answer` or from a person at the terminal."""

from __future__ import annotations

import json
import os
import re
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from pathlib import Path
from select import select as select_ready
from typing import Any, Final

import click

from mergepoint.apps.cli.output import CommandError, count, printable, tell
from mergepoint.core.errors import GateOpen, StepError
from mergepoint.core.merge import State, last_response
from mergepoint.core.paths import ITERATION, SEPARATOR, of_first_iterations, select
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import check_answers, open_questions
from mergepoint.journal.stores import RunHeader
from mergepoint.models.timeouts import STOP_SIGNAL
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.nodes import Gate, Node, Order, find, root_path, walk
from mergepoint.tree.validate import feedback_read

# A name can contain "=" too, so the value starts at the last "=" with a valid value after it.
_ANSWER = re.compile(r"(?P<path>.+?)=(?P<value>[a-z]+|\{.*\})", re.DOTALL)
_ANSWER_FILE = re.compile(r"(?P<path>.+?)=@(?P<file>.+)", re.DOTALL)
_STDIN = "-"
_POLL_SECONDS = 0.1  # seconds
_CHOICES: Final = {"a": "approve", "e": "edit", "r": "reject", "l": "later"}


def with_files_read(given: Sequence[str]) -> tuple[str, ...]:
    """Return answers with `PATH=@FILE` replaced by the JSON object that the file contains.

    An edit can be longer than a command line takes. Raises CommandError for a file that can't be
    read or isn't JSON.
    """
    return tuple(map(_with_file_read, given))


def _with_file_read(text: str) -> str:
    # An edited text can contain "=@" itself.
    found = None if _ANSWER.fullmatch(text) else _ANSWER_FILE.fullmatch(text)
    if found is None:
        return text
    try:
        if found["file"] == _STDIN:
            content = sys.stdin.read()
        else:
            content = Path(found["file"]).read_text(encoding="utf-8")
        answer = json.loads(content)
    except (OSError, ValueError, RecursionError) as error:
        problem = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"Can't read --answer {text!r}: {problem}.") from error
    if not isinstance(answer, dict):
        raise CommandError(
            f"--answer {text!r}: the file must contain a JSON object, such as "
            '{"decision": "edit", "text": "..."}.'
        )
    return f"{found['path']}={json.dumps(answer)}"


def read_answers(given: Sequence[str], tree: Node) -> dict[str, Any]:
    """Return the decisions of `--answer path=approve`, by path.

    Raises CommandError for an invalid decision, and for a path that matches no gate.
    """
    gates = [path for path, node in walk(tree) if isinstance(node, Gate)]
    answers: dict[str, Any] = {}
    for text in given:
        path, answer = _answer(text)
        try:
            # The tree contains the body of a loop once, under its first iteration.
            select(of_first_iterations(path), gates)
        except LookupError as error:
            raise CommandError(f"--answer {text!r}: {error.args[0] if gates else _NONE}") from error
        answers[path] = answer
    return answers


def check_new_answers(
    answers: Mapping[str, Any], records: Sequence[CallRecord], tree: Node
) -> None:
    """Raise CommandError for answers that differ from recorded decisions.

    An answer that matches several paths is for the gates that are still open, if there can be any.
    """
    decided = {record.path: record for record in records if record.kind == "gate"}
    named: dict[str, Any] = {}
    for selector, answer in answers.items():
        try:
            paths = [selector] if selector in decided else select(selector, [*decided])
        except LookupError:
            continue
        gates = [path for path, node in walk(tree) if isinstance(node, Gate)]
        matching = select(of_first_iterations(selector), gates)
        if selector in decided or all(path in decided and _once(path) for path in matching):
            named |= dict.fromkeys(paths, answer)
    try:
        check_answers(records, named)
    except StepError as error:
        raise CommandError(f"--answer: {error}") from error


def check_edits(
    answers: Mapping[str, Any], header: RunHeader, records: Sequence[CallRecord], tree: Node
) -> None:
    """Raise CommandError for an edit that doesn't match what waits at the recorded gates.

    Otherwise the run would fail at the gate, where a person can't correct the edit anymore.
    """
    edits = {
        selector: decision
        for selector, answer in answers.items()
        if (decision := Decision.of(answer)).decision == "edit"
    }
    questions = {one.path: one for one in open_questions(header, records, tree)} if edits else {}
    for selector, decision in edits.items():
        with suppress(LookupError):  # an edit for a gate that isn't open yet
            for path in select(selector, [*questions]):
                try:
                    questions[path].settled(decision)
                except StepError as error:
                    raise CommandError(f"--answer {selector}: {error}") from error


def pending_answers(typed: Sequence[str], decided: Collection[str], tree: Node) -> list[str]:
    """Return the answers, as typed, that a resume still needs: those that no journal has.

    Args:
        typed: Answers as `PATH=DECISION`.
        decided: Paths of the gates whose decisions are recorded.
        tree: The tree of the run.
    """
    gates = [path for path, node in walk(tree) if isinstance(node, Gate)]
    needed = []
    for text in typed:
        path, _ = _answer(text)
        matching = select(of_first_iterations(path), gates)
        # A glob can match the gate of a later iteration too, so it stays while a loop has one.
        recorded = path in decided or all(one in decided and _once(one) for one in matching)
        if not recorded:
            needed.append(text)
    return needed


def _once(path: str) -> bool:
    """Return whether a gate is outside all loops, so that it opens at most once."""
    return not any(name.startswith(ITERATION) for name in path.split(SEPARATOR))


_NONE = "the tree has no gates"


def _answer(text: str) -> tuple[str, Any]:
    found = _ANSWER.fullmatch(text)
    if found is None:
        raise CommandError(
            f"Invalid --answer {text!r}. Use path=approve, path=reject, or a JSON object: "
            '\'path={"decision": "reject", "feedback": "shorter"}\''
        )
    value = found["value"]
    try:
        answer = json.loads(value) if value.startswith("{") else value
        Decision.of(answer)
    except (ValueError, RecursionError) as error:  # a StepError is one
        raise CommandError(f"--answer {text!r}: {error}") from error
    return found["path"], answer


class DecideLater(Exception):
    """A person decides later."""


class Decider:
    """Answers gates: by `answers`, or by asking the person at the terminal.

    A question without an answer raises GateOpen and is added to `open`. Gates that are open at
    the same time are asked one after the other, each while `aside` is open.
    """

    def __init__(
        self,
        answers: Mapping[str, Any],
        *,
        tree: Node,
        asks: bool,
        aside: Callable[[], AbstractContextManager[None]],
    ) -> None:
        self.open: list[Question] = []
        self.asking = False
        self._answers = answers
        self._tree = tree
        self._asks = asks
        self._aside = aside
        self._lock = threading.Lock()

    def __call__(self, question: Question) -> Any:
        """Return the answer to a question. Raises GateOpen if there is none."""
        found = self._find_answer(question.path)
        if found is None and self._asks:
            found = self._ask_person(question)
        if found is None:
            self.open.append(question)
            raise GateOpen([question])
        return found

    def given_for(self, path: str) -> Any:
        """Return the answer for the gate at a path and no other gate, or None.

        An answer that matches other gates too, or other iterations of a loop, may be for those.
        """
        if path in self._answers or not _once(path):
            return self._answers.get(path)
        gates = [at for at, node in walk(self._tree) if isinstance(node, Gate)]
        for selector, answer in self._answers.items():
            if select(of_first_iterations(selector), gates) == [path]:
                return answer
        return None

    def _ask_person(self, question: Question) -> Decision | None:
        stop_signal = STOP_SIGNAL.get()
        # Parallel gates ask from several threads, and the terminal has room for one question.
        with self._lock:
            # Ctrl-C at the question before this one can have come during the wait for the lock.
            if stop_signal is not None and stop_signal.stopped:
                return None
            self.asking = True
            try:
                gate = find(self._tree, of_first_iterations(question.path))
                key = gate.capture_key
                reads = key is not None and feedback_read(self._tree, key)
                with self._aside():
                    return ask(question, feedback=reads)
            finally:
                self.asking = False

    def _find_answer(self, path: str) -> Any:
        # The exact path first: it is more specific than a glob that matches too.
        for selector in sorted(self._answers, key=lambda selector: selector != path):
            try:
                select(selector, [path])
            except LookupError:
                continue
            return self._answers[selector]
        return None


def in_order(questions: Sequence[Question], tree: Node) -> list[Question]:
    """Return questions in the order of the tree, each once."""
    order = Order(tree, root_path(tree))
    return sorted({one.path: one for one in questions}.values(), key=lambda one: order(one.path))


def can_ask() -> bool:
    """Return whether stdin and stderr are a terminal, so that a person can be asked."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def ask(question: Question, *, feedback: bool = True) -> Decision | None:
    """Ask for a decision at the terminal; None if the person decides later.

    Feedback is asked for after a rejection if something in the tree reads it.
    """
    for line in question_lines(question):
        tell(line)
    try:
        while True:
            decision = _read_decision(question, feedback=feedback)
            if decision is not None:
                return decision
    except DecideLater:
        return None


def _read_decision(question: Question, *, feedback: bool) -> Decision | None:
    """Return the decision, None if the question must be repeated. Raises Later."""
    line = _prompt("[a]pprove, [e]dit, [r]eject, or decide [l]ater")
    choice, _, comment = line.strip().partition(" ")
    # An empty line, and the end of the input, mean "later": they must decide nothing.
    word = _CHOICES.get((choice or "l")[:1].lower())
    if comment and word != "reject":
        tell(f"Only a rejection has a comment, such as: r {comment.strip()}", style="yellow")
        return None
    if word == "later":
        raise DecideLater
    given = _edited(question) if word == "edit" else {"decision": word}
    if given is None or word is None:
        return None
    if word == "reject" and (comment or feedback):
        given["feedback"] = comment.strip() or _prompt("What should be different? (may be empty)")
    try:
        decision = Decision.of(given)
        # Check now, while the person can correct it: the run would fail on an invalid edit.
        question.settled(decision)
    except StepError as error:
        tell(str(error), style="yellow")
        return None
    return decision


def recorded_question(record: CallRecord) -> Question:
    """Return the recorded question of a gate."""
    return Question(
        record.path,
        str(record.prompt),
        State.of(record.messages, record.outputs),
        key=record.request,
        run=record.key.run,
    )


def question_lines(question: Question) -> list[str]:
    """Return the lines that show the question of a gate, and what an approval would merge."""
    kept = question.kept
    what = [count(len(kept.messages), "message")] if kept.messages else []
    what += [f"the output{'s' if len(kept.outputs) > 1 else ''} {', '.join(kept.outputs)}"] * bool(
        kept.outputs
    )
    lines = ["", f"Gate {question.path}"]
    lines += [f"  {line}" for line in question.text.splitlines()]
    lines.append(f"  would merge {' and '.join(what) or 'nothing'}:")
    for message in kept.messages:
        lines.append(f"  {message.type}")
        lines += [f"    {line}" for line in str(message.text).splitlines()]
    said = [str(message.text) for message in kept.messages]
    for key, value in kept.outputs.items():
        shown = "the text above" if _is_shown(value, said) else _text(value)
        first, *others = shown.splitlines() or [""]
        lines.append(f"  {key}: {first}")
        lines += [f"    {line}" for line in others]
    return lines


def _is_shown(value: Any, texts: Sequence[str]) -> bool:
    """Return whether one of the texts is the value, or the JSON of it that a step wrote.

    Values are compared, not hashed: an output can be any JSON.
    """
    if isinstance(value, str):
        return value in texts
    for text in texts:
        try:
            if json.loads(text) == value:
                return True
        except (ValueError, RecursionError):
            continue
    return False


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, indent=2)


def _edited(question: Question) -> dict[str, Any] | None:
    """Return an edit of the response, or of the outputs without one; None for no change."""
    outputs = dict(question.kept.outputs)
    response = last_response(question.kept.messages)
    captured = outputs.get(question.capture_key) if question.capture_key is not None else None
    if response is None and captured is None:
        found = _changed(_text(outputs), "the outputs as JSON", ".json")
        try:
            return None if found is None else {"decision": "edit", "outputs": json.loads(found)}
        except ValueError as error:
            tell(f"That isn't JSON: {error}", style="yellow")
            return None
    text = str(response.text) if response is not None else _text(captured)
    found = _changed(text, "the new text", ".md")
    return None if found is None else {"decision": "edit", "text": found}


def _changed(text: str, what: str, extension: str) -> str | None:
    """Return a text changed in the person's editor, or typed on one line without an editor."""
    # Without either variable, click would choose an editor that the person may not know.
    if os.environ.get("VISUAL") or os.environ.get("EDITOR"):
        found = click.edit(text, extension=extension)
        return None if found is None or found.strip() == text.strip() else found.rstrip("\n")
    return _prompt(f"Type {what} (empty: no change; $EDITOR opens an editor)") or None


def _prompt(words: str) -> str:
    """Ask for a line, empty at the end of the input. Raises Later if the run is being stopped.

    It waits in small steps, since Ctrl-C doesn't reach a gate in another thread.
    """
    stop_signal = STOP_SIGNAL.get()
    sys.stderr.write(f"{printable(words)}: ")
    sys.stderr.flush()
    while not _line_ready():
        if stop_signal is not None and stop_signal.stopped:
            tell()
            raise DecideLater
    return sys.stdin.readline().strip()


def _line_ready() -> bool:
    """Return whether the terminal has a line, after a moment."""
    try:
        return bool(select_ready([sys.stdin], [], [], _POLL_SECONDS)[0])
    except (OSError, ValueError):  # stdin isn't a file that select can watch
        return True
