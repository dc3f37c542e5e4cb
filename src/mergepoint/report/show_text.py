"""Text of a CallView: plain, wrapped and aligned, for a terminal or a file."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mergepoint.report.call_view import CallView, Decided, Exit, Fate, Inside, Read, Seen
from mergepoint.report.lettering import cells, shown, wrap
from mergepoint.tree.template import as_text

_ORIGINS = {
    "given": "given to the run",
    "system": "this call only",
    "example": "an example, this call only",
    "prompt": "its own prompt",
}
_LEAST = 40
_WORDS = {"step": "call", "call": "call", "gate": "gate"}
_READER = {"step": "Its prompt", "call": "It"}


def to_text(view: CallView, *, width: int = 88, lines: int | None = None) -> str:
    """Give a call as text of at most `width` cells (40 or more).

    With `lines`, each message is cut after so many; by default all is shown. Characters that
    could steer a terminal are written as escapes.
    """
    page = _Page(max(width, _LEAST), lines)
    page.table("", _about(view))
    if view.decided is not None:
        _decided(page, view.decided)
    else:
        _called(page, view)
    return "\n".join(page.lines) + "\n"


def _called(page: _Page, view: CallView) -> None:
    page.messages("It would have seen" if view.left_out else "It saw", view.seen)
    if view.reads:
        page.head(f"{_READER[view.kind]} read {_count(len(view.reads), 'key')}")
        widest = max(cells(shown(read.key)) for read in view.reads)
        for read in view.reads:
            page.read(read, widest)
    if view.error is not None:
        page.head("It was left out" if view.left_out else "It failed")
        what = "" if view.left_out else f"{view.error['type']}: "
        page.text(f"{what}{view.error['message']}", 2)
        if view.unusable and view.unusable.strip():
            page.text("The answer that was refused:", 2)
            page.text(view.unusable, 4)
    for inside in view.inside:
        page.head(f"Inside, it called {inside.model or 'a model'}")
        page.table("  ", [("asked", inside.prompt), ("said", _told_inside(inside))])
    if view.answer is not None:
        page.head("It answered")
        page.text(view.answer, 2)
    elif view.kind == "call" and view.error is None:
        page.head("It gave the value")
        page.text(as_text(view.value), 2)
    if view.fate is not None:
        page.head("What became of the answer")
        page.table("  ", _became(view.fate))


def _told_inside(inside: Inside) -> str:
    error = inside.error
    return inside.answer if error is None else f"{error['type']}: {error['message']}"


def _decided(page: _Page, gate: Decided) -> None:
    page.messages("It held back", gate.held)
    page.values(gate.held_outputs)
    if gate.question:
        page.head("It asked")
        page.text(gate.question, 2)
    if not gate.decision:
        page.head("Nobody has decided yet")
        return
    page.head("It was decided to")
    page.text(gate.decision, 2)
    if gate.feedback:
        page.table("  ", [("feedback", gate.feedback)])
    if gate.decision == "edit":
        page.messages("It let on", gate.kept)
        page.values(gate.kept_outputs)


class _Page:
    """Lines of text, wrapped as they come."""

    def __init__(self, width: int, most: int | None) -> None:
        self.lines: list[str] = []
        self._width = width
        self._most = most

    def head(self, words: str) -> None:
        self.lines += ["", words]

    def text(self, words: str, indent: int) -> None:
        """Add a text of many lines, cut to the most that is wanted."""
        plain = shown(words.replace("\r\n", "\n").expandtabs(4), keep="\n").rstrip()
        found = wrap(plain, self._width - indent)
        if self._most is not None and len(found) > self._most:
            left_out = len(found) - self._most
            found = [*found[: self._most], f"… {_count(left_out, 'line')} more"]
        self.lines += [(" " * indent + line).rstrip() for line in found]

    def table(self, indent: str, rows: Sequence[tuple[str, str]], *, least: int = 0) -> None:
        """Add rows of a word, of `least` cells or more, and what it says, aligned."""
        stem = max([least, *(cells(word) for word, _ in rows)]) + 2
        room = self._width - len(indent) - stem
        for word, says in rows:
            first, *others = wrap(shown(says), room)
            gap = " " * (stem - cells(word))
            self.lines.append(f"{indent}{word}{gap}{first}".rstrip())
            self.lines += [f"{indent}{' ' * stem}{line}" for line in others]

    def messages(self, words: str, seen: Sequence[Seen]) -> None:
        """Add messages under a heading."""
        self.head(f"{words} {_count(len(seen), 'message')}")
        for number, message in enumerate(seen, start=1):
            self.message(number, message)

    def values(self, outputs: Mapping[str, Any]) -> None:
        """Add outputs with their keys."""
        for key, value in outputs.items():
            self.lines.append("")
            self.table("  ", [(shown(key), "captured")])
            self.text(as_text(value), 4)

    def message(self, number: int, seen: Seen) -> None:
        if number > 1:
            self.lines.append("")
        origin = f"made by {seen.path}" if seen.path else _ORIGINS[seen.origin]
        self.table("  ", [(str(number), f"{seen.role}, {origin}")])
        indent = 4 + len(str(number))
        if seen.through:
            self.table(" " * indent, list(_listed("through", map(_exit, seen.through))))
        self.text(seen.text, indent)

    def read(self, read: Read, widest: int) -> None:
        if read.source == "input":
            origin = "an input"
        elif read.source == "default":
            origin = "not there: its default stood"
        else:
            origin = f"captured at {read.path}"
            if read.made_by not in (None, read.path):
                origin += f", the answer of {read.made_by}"
        self.table("  ", [(shown(read.key), origin)], least=widest)
        if read.value is not None:
            self.text(as_text(read.value), 4 + widest)


def _about(view: CallView) -> list[tuple[str, str]]:
    when = datetime.fromtimestamp(view.started, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    rows = [(_WORDS[view.kind], view.path), ("run", view.run_id)]
    if view.kind != "gate":
        rows.append(("model" if view.kind == "step" else "function", view.model or "unknown"))
    if view.params:
        rows.append(("params", ", ".join(_param(*pair) for pair in view.params.items())))
    again = f", attempt {view.attempt}" if view.attempt > 1 else ""
    rows.append(("time", f"{when}, {view.seconds:.3f} s, {view.source}{again}"))
    if view.usage:
        rows.append(("tokens", _tokens(view.usage)))
    if view.view != "as_is":
        rows.append(("sent", f"{view.view}: neighbours of one role joined"))
    rows += [
        ("earlier", f"{error.get('type')}: {error.get('message')}") for error in view.earlier_errors
    ]
    return rows


def _became(fate: Fate) -> list[tuple[str, str]]:
    rows = list(_listed("passed", map(_exit, fate.passed)))
    rows += _listed("edited", (f"at {path}" for path in fate.edited))
    rows.append(("ended", _end(fate)))
    for captured in fate.captured:
        readers = ", ".join(captured.read_by) or "no call that declares it"
        rows.append(("captured", f"as {captured.key} at {captured.path}, read by {readers}"))
    if fate.end == "value":
        return rows
    return [*rows, *_listed("seen by", fate.seen_by or ["no other call"])]


def _end(fate: Fate) -> str:
    if fate.end == "value":
        return "as a value; it made no message"
    if fate.at is None:
        return "kept in the conversation"
    if fate.end == "superseded":
        return f"superseded at {_exit(fate.at)} by the answer of {fate.by}"
    if fate.end == "rejected":
        return f"rejected at {fate.at.path}"
    if fate.end == "left_out":
        return f"left out with {_exit(fate.at)}, for want of budget"
    if fate.end == "dropped":
        return f"dropped at {_exit(fate.at)}"
    return f"the run ended before the exit of {_exit(fate.at)}"


def _listed(word: str, items: Sequence[str] | Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, item in enumerate(items):
        yield ("" if number else word, item)


def _exit(exit_: Exit) -> str:
    return f"{exit_.path} ({exit_.mode})"


def _param(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value, ensure_ascii=False)}"


def _tokens(usage: Mapping[str, Any]) -> str:
    return f"{usage.get('input_tokens', 0):,} in, {usage.get('output_tokens', 0):,} out"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"
