"""Views of calls as plain text, wrapped and aligned, for a terminal or a file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from mergepoint.core.paths import SEPARATOR
from mergepoint.core.text import cells, money, shown, wrap
from mergepoint.journal.call_records import SHOWN_SOURCES
from mergepoint.journal.transcript import Transcript
from mergepoint.report.transcript_index import TranscriptIndex as TranscriptIndex
from mergepoint.report.views import (
    AnswerOutcome,
    CallView,
    GateOutcome,
    InRecipe,
    MergePoint,
    Read,
    SeenMessage,
    StageWrites,
    ToolRound,
)
from mergepoint.tree.prompts import as_text

_ORIGINS = {
    "given": "given to the run",
    "system": "this call only",
    "example": "an example, this call only",
    "prompt": "its own prompt",
}
_LEAST = 40
_WORDS = {"step": "call", "call": "call", "tool": "tool", "gate": "gate"}
_ANSWERER = {"step": "model", "call": "function", "tool": "function"}
_READER = {"step": "Its prompt", "call": "It"}


def to_text(view: CallView, *, width: int = 88, lines: int | None = None) -> str:
    """Return a call as text of at most `width` cells (40 or more).

    `lines` limits each message; by default, all lines are shown. Characters that could control a
    terminal are written as escapes.
    """
    page = _Page(max(width, _LEAST), lines)
    page.table("", _about(view))
    if view.decided is not None:
        _decided(page, view.decided)
    else:
        _called(page, view)
    return "\n".join(page.lines) + "\n"


def _called(page: _Page, view: CallView) -> None:
    for number, error in enumerate(view.earlier_errors, start=1):
        page.head(f"Failed attempt {number}")
        page.text(f"{error.get('type')}: {error.get('message')}", 2)
        page.refused(error, error.get("answer"))
    if view.kind != "tool":
        page.messages("It would have seen" if view.left_out else "It saw", view.seen)
    if view.reads:
        page.head(f"{_READER[view.kind]} read {_count(len(view.reads), 'key')}")
        widest = max(cells(shown(read.key)) for read in view.reads)
        for read in view.reads:
            page.read(read, widest)
    _ended(page, view)
    if view.fate is not None:
        page.head("Outcome of the answer")
        page.table("  ", _became(view.fate))
    if view.kind == "tool":
        page.head("Outcome of the answer")
        page.table("  ", [("read by", f"the model of {view.path.rpartition(SEPARATOR)[0]}")])
    if view.in_recipe is not None:
        _in_recipe(page, view.in_recipe)


def _ended(page: _Page, view: CallView) -> None:
    """Add the inner calls of a call, and its answer or error."""
    if view.rounds:
        page.head(f"It called tools in {_count(len(view.rounds), 'round')}")
        for number, found in enumerate(view.rounds, start=1):
            page.round(number, found)
    if view.error is not None:
        page.head("It was skipped" if view.left_out else "It failed")
        what = "" if view.left_out else f"{view.error['type']}: "
        page.text(f"{what}{view.error['message']}", 2)
        page.refused(view.error, view.unusable)
    for inside in view.inside:
        page.head(f"Inside, it called {inside.model or 'a model'}")
        error = inside.error
        told = inside.answer if error is None else f"{error['type']}: {error['message']}"
        page.table("  ", [("asked", inside.prompt), ("said", told)])
    if view.answer is not None:
        page.head("It answered")
        page.text(view.answer, 2)
    elif view.kind == "call" and view.error is None:
        page.head("It gave the value")
        page.text(as_text(view.value), 2)


def _in_recipe(page: _Page, about: InRecipe) -> None:
    page.head("Item")
    place = f"{about.thing} at {about.around}" if about.thing else f"within {about.around}"
    made_by = list(_listed("made by", map(_passage, about.before)))
    page.table("  ", [("Thing" if about.thing else "place", place), *made_by])
    if about.thing:
        page.head("Outcome of the answer")
        page.table("  ", list(_used(about)))


def _used(about: InRecipe) -> Iterator[tuple[str, str]]:
    if not about.known:
        yield "unknown", "the run hasn't ended"
        return
    if about.made is None:
        yield "unused", "no Thing that left the stage holds it"
        return
    yield "wrote", _passage(about.made)
    yield from _listed("then", map(_passage, about.after))
    yield "result", ", ".join(about.results) or "nothing came out of it"


def _passage(made: StageWrites) -> str:
    wrote = ", ".join(made.wrote) or "nothing"
    by = f" by {', '.join(made.calls)}" if made.calls else ""
    return f"{made.stage}: {wrote} of {made.thing}{by}"


def _decided(page: _Page, gate: GateOutcome) -> None:
    page.messages("Messages awaiting approval", gate.held)
    page.values(gate.held_outputs)
    if gate.question:
        page.head("It asked")
        page.text(gate.question, 2)
    if not gate.decision:
        page.head("No decision yet")
        return
    page.head("It was decided to")
    page.text(gate.decision, 2)
    if gate.feedback:
        page.table("  ", [("feedback", gate.feedback)])
    if gate.decision == "edit":
        page.messages("It let on", gate.kept)
        page.values(gate.kept_outputs)


class _Page:
    """Lines of text, wrapped to a width."""

    def __init__(self, width: int, most: int | None) -> None:
        self.lines: list[str] = []
        self._width = width
        self._most = most

    def head(self, words: str) -> None:
        self.lines += ["", words]

    def text(self, words: str, indent: int) -> None:
        """Add text, cut to the maximum number of lines."""
        # Expand tabs and replace line ends first: `shown` would write them as escapes.
        plain = shown(words.replace("\r\n", "\n").expandtabs(4), keep="\n").rstrip()
        found = wrap(plain, self._width - indent)
        if self._most is not None and len(found) > self._most:
            left_out = len(found) - self._most
            found = [*found[: self._most], f"… {_count(left_out, 'line')} more"]
        self.lines += [(" " * indent + line).rstrip() for line in found]

    def refused(self, error: Mapping[str, Any], answer: str | None) -> None:
        """Add a refused answer, with the position of its problem."""
        if answer and answer.strip():
            at = ", ".join(f"{name} {value}" for name, value in error.get("position", {}).items())
            self.text(f"The answer that was refused{f' ({at})' if at else ''}:", 2)
            self.text(answer, 4)

    def table(self, indent: str, rows: Sequence[tuple[str, str]], *, least: int = 0) -> None:
        """Add aligned rows of a label, at least `least` cells wide, and its text."""
        stem = max([least, *(cells(word) for word, _ in rows)]) + 2
        room = self._width - len(indent) - stem
        for word, says in rows:
            first, *others = wrap(shown(says), room)
            gap = " " * (stem - cells(word))
            self.lines.append(f"{indent}{word}{gap}{first}".rstrip())
            self.lines += [f"{indent}{' ' * stem}{line}" for line in others]

    def messages(self, words: str, seen: Sequence[SeenMessage]) -> None:
        """Add messages under a heading."""
        self.head(f"{words} {_count(len(seen), 'message')}")
        for number, message in enumerate(seen, start=1):
            self.message(number, message)

    def round(self, number: int, found: ToolRound) -> None:
        """Add an answer that called tools, each with its result."""
        indent = 4 + len(str(number))
        self.table("  ", [(str(number), found.said.strip() or "(no text)")])
        for call in found.calls:
            args = call.args if isinstance(call.args, Mapping) else {"": call.args}
            given = ", ".join(_param(*pair) for pair in args.items())
            state = "failed" if call.failed else "no result" if call.result is None else ""
            about = ", ".join(filter(None, [call.path, state]))
            self.text(f"{call.name}({given}){f'  {about}' if about else ''}", indent)
            self.text(call.result or "", indent + 2)

    def values(self, outputs: Mapping[str, Any]) -> None:
        """Add outputs with their keys."""
        for key, value in outputs.items():
            self.lines.append("")
            self.table("  ", [(shown(key), "captured")])
            self.text(as_text(value), 4)

    def message(self, number: int, seen: SeenMessage) -> None:
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
        rows.append((_ANSWERER[view.kind], view.model or "unknown"))
    if view.params:
        rows.append(("params", ", ".join(_param(*pair) for pair in view.params.items())))
    again = f", attempt {view.attempt}" if view.attempt > 1 else ""
    source = SHOWN_SOURCES[view.source]
    rows.append(("time", f"{when}, {view.seconds:.3f} s, {source}{again}"))
    if view.usage:
        rows.append(("tokens", _tokens(view.usage)))
    if view.cost:
        rows.append(("cost", money(view.cost)))
    if view.view != "as_is":
        rows.append(("sent", f"{view.view}: adjacent messages of one role joined"))
    if view.truncated:
        rows.append(("truncated", f"{view.truncated}: the answer was cut off, and accepted"))
    if view.earlier_errors:
        rows.append(("earlier", _count(len(view.earlier_errors), "failed attempt")))
    return rows


def _became(fate: AnswerOutcome) -> list[tuple[str, str]]:
    rows = list(_listed("passed", map(_exit, fate.passed)))
    rows += _listed("edited", (f"at {path}" for path in fate.edited))
    rows.append(("ended", _end(fate)))
    for captured in fate.captured:
        readers = ", ".join(captured.read_by) or "no call that declares it"
        rows.append(("captured", f"as {captured.key} at {captured.path}, read by {readers}"))
    if fate.end == "value":
        return rows
    return [*rows, *_listed("seen by", fate.seen_by or ["no other call"])]


def _end(fate: AnswerOutcome) -> str:
    if fate.end == "value":
        return "as a value; it made no message"
    if fate.at is None:
        return "kept in the conversation"
    if fate.end == "superseded":
        return f"superseded at {_exit(fate.at)} by the answer of {fate.by}"
    if fate.end == "rejected":
        return f"rejected at {fate.at.path}"
    if fate.end == "left_out":
        return f"skipped with {_exit(fate.at)}, budget exceeded"
    if fate.end == "dropped":
        return f"dropped at {_exit(fate.at)}"
    return f"the run ended before the exit of {_exit(fate.at)}"


def _listed(word: str, items: Sequence[str] | Iterator[str]) -> Iterator[tuple[str, str]]:
    for number, item in enumerate(items):
        yield ("" if number else word, item)


def _exit(exit_: MergePoint) -> str:
    return f"{exit_.path} ({exit_.mode})"


def _param(name: str, value: Any) -> str:
    return f"{name}={json.dumps(value, ensure_ascii=False)}"


def _tokens(usage: Mapping[str, Any]) -> str:
    return f"{usage.get('input_tokens', 0):,} in, {usage.get('output_tokens', 0):,} out"


def _count(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


FORMAT = "mergepoint.call/1"


def call_view(transcript: Transcript, path: str) -> CallView:
    """Return the call at a path, which is exact or a unique suffix of whole names.

    To view many calls of one run, create one TranscriptIndex and query it. Raise LookupError that
    lists the available calls, or explains why the node has none.
    """
    sight = TranscriptIndex(transcript)
    return sight.call(sight.find(path))


def to_json(view: CallView) -> dict[str, Any]:
    """Return a call as JSON data."""
    plain = json.dumps({"format": FORMAT, **dataclasses.asdict(view)}, default=str)
    data: dict[str, Any] = json.loads(plain)
    return data
