"""Messages and steps as the browser shows them: their ids, and their Markdown."""

from __future__ import annotations

import difflib
import json
import re
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Literal

from langchain_core.utils.json import parse_partial_json

from mergepoint.apps.cli.output import printable
from mergepoint.session.entries import StepType, WorkingStep
from mergepoint.tree.prompts import as_text

# Derived steps have version-5 UUIDs and Chainlit's own have random version-4 UUIDs (RFC 9562), so
# an id shows where a step comes from.
_SPACE = uuid.UUID("6f2ca2f2-4d0e-5c0e-9a53-6d657267650a")

ICON = "icon"
"""Key in a step's metadata from which Chainlit reads the icon."""

ASSISTANT = "mergepoint"
"""The author name of answers."""

StepKind = Literal["user_message", "assistant_message", "system_message", "run", "tool", "llm"]
"""The kinds of messages and steps. Only answers are assistant messages: thumbs rate those."""

# Absolute paths, drive letters, home folders, and the paths in file and SQLite URLs. The bounded
# repetitions keep matching linear on hostile text.
_PATH = re.compile(
    r"(?<![\w.~\\/:])(?:sqlite:/{3}|file:/{2})?(?:~|[A-Za-z]:)?"
    r"(?:[\\/][^\s\\/:'\"`,;()<>]{0,255}){1,64}"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Button:
    """A button below a message, and the payload of its click."""

    name: str
    label: str
    payload: Mapping[str, Any]
    icon: str = ""
    tooltip: str = ""

    def id_at(self, step: str) -> str:
        """Return the button's id below a message, which is the same each time.

        It begins with the button's action, which the page's style and script match.
        """
        return f"mergepoint-{self.name}-{uuid.uuid5(_SPACE, f'{step}/{self.name}')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownStep:
    """A message or step of a turn.

    While it is `live`, its text grows. `open` steps are unfolded. `icon` is the name of a Lucide
    icon.
    """

    id: str
    type: StepKind
    name: str
    turn: int
    parent: str | None
    text: str
    created_at: datetime
    ended_at: datetime | None = None
    is_error: bool = False
    open: bool = False
    live: bool = False
    buttons: tuple[Button, ...] = ()
    icon: str = ""

    @property
    def message(self) -> bool:
        """Return whether it is a message instead of a step."""
        return self.type.endswith("_message")

    @property
    def metadata(self) -> dict[str, Any]:
        """Return the metadata from which Chainlit reads the icon."""
        return {ICON: self.icon} if self.icon else {}

    def to_step(self, thread: str) -> dict[str, Any]:
        """Return it as Chainlit's StepDict."""
        begun = timestamp(self.created_at)
        return {
            "id": self.id,
            "threadId": thread,
            "parentId": self.parent,
            "name": self.name,
            "type": self.type,
            "input": "",
            "output": self.text,
            "createdAt": begun,
            "start": begun,
            "end": timestamp(self.ended_at) if self.ended_at else None,
            "isError": self.is_error,
            "streaming": False,
            "waitForAnswer": False,
            "showInput": False,
            "defaultOpen": self.open,
            "autoCollapse": not self.open,
            "metadata": self.metadata,
            "tags": None,
        }


def shown_id(entry: str) -> str:
    """Return the browser's id of a session entry; Chainlit's own ids are kept."""
    try:
        given = uuid.UUID(entry)
    except ValueError:
        return str(uuid.uuid5(_SPACE, entry))
    return entry if str(given) == entry else str(uuid.uuid5(_SPACE, entry))


def is_derived(step: str) -> bool:
    """Return whether an id belongs to a step that is derived from the session."""
    try:
        return uuid.UUID(step).version == 5
    except ValueError:
        return False


def timestamp(moment: datetime) -> str:
    """Return a time as Chainlit writes it: in UTC, with a Z."""
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='microseconds')}Z"


def parse_timestamp(text: object) -> datetime:
    """Return the time of a stamp; invalid ones count as the earliest."""
    try:
        found = datetime.fromisoformat(str(text))
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)
    return found if found.tzinfo else found.replace(tzinfo=UTC)


def without_paths(text: str) -> str:
    """Return a text with paths of this machine reduced to their last part.

    Clients see this form of an error; the server's log has the whole text.
    """
    return _PATH.sub(lambda found: re.split(r"[\\/]", found[0].rstrip("\\/"))[-1] or "/", text)


_FENCE = re.compile(r"^\s*(`{3,}|~{3,})")
_TICKS = re.compile(r"`+")
_DIRECTIVE = re.compile(r"(?<!\\):+(?=[^\W\d_])")
# Not closed, so that more output can be appended at the end.
_OPEN_FENCE = "`" * 12
_FIRST = ("intent", "action", "skill", "steps")
LONGEST = 20_000
"""Maximum number of characters of one text in the browser; the session has all of it."""


def step_text(step: WorkingStep) -> str:
    """Return a working step's text; for a decision, the edited text."""
    kind = StepType(step.decides) if step.decides else step.type
    return TEXTS[kind](step.content)


def plan_text(content: str) -> str:
    """Return a plan's fields, with its steps as a list; other texts are returned unchanged."""
    try:
        found = json.loads(content)
    except (ValueError, RecursionError):
        return _plain_text(content)
    if not isinstance(found, Mapping):
        return _plain_text(content)
    return truncated("\n".join(_fields(found)))


def partial_text(kind: StepType, text: str) -> str:
    """Return an unfinished artifact: for a plan, its fields so far instead of raw JSON."""
    if kind is StepType.CODEGEN:
        return code_text(text)
    if kind is StepType.EXECUTE:
        return f"{_OPEN_FENCE}text\n{truncated(printable(text))}"
    if kind is not StepType.PLAN:
        return _plain_text(text)
    try:
        found = parse_partial_json(text[text.index("{") :])
    except (ValueError, RecursionError):
        return ""
    return truncated("\n".join(_fields(found))) if isinstance(found, Mapping) else ""


def code_change(before: str, after: str) -> str:
    """Return the difference between two programs, as a fenced diff without a header."""
    lines = difflib.unified_diff(
        printable(before).splitlines(), printable(after).splitlines(), lineterm="", n=2
    )
    return fenced(truncated("\n".join([*lines][2:])), "diff")


def code_text(content: str) -> str:
    """Return code in a fence, unless it has one already."""
    shown = printable(content)
    return truncated(shown) if _FENCE.match(shown) else fenced(truncated(shown), "python")


def run_text(stdout: str, stderr: str = "", ending: str = "") -> str:
    """Return a run's output, its errors separately, and how it ended."""
    parts = [fenced(truncated(printable(stdout)), "text")] if stdout.strip() else []
    if stderr.strip():
        parts += ["**Errors**", fenced(truncated(printable(stderr)), "text")]
    parts = parts or ["_No output._"]
    return "\n\n".join([*parts, ending] if ending else parts)


def last_line(stdout: str, stderr: str) -> str:
    """Return the last line of a run's errors, or of its output, as code."""
    last = ((stderr.strip() or stdout.strip()).splitlines() or ["it printed nothing"])[-1]
    return f"`{printable(last)[:300].replace('`', chr(39))}`"


def escape_directives(text: str) -> str:
    """Return Markdown in which Chainlit finds no directives.

    Chainlit's page treats `:name` as a directive and drops unknown ones: of `openai:gpt-5`, only
    `openai` would be shown. Code isn't affected.
    """
    return "".join(
        part if code else _DIRECTIVE.sub(lambda colons: r"\:" * len(colons[0]), part)
        for code, part in _parts(printable(text))
    )


def _parts(text: str) -> Iterator[tuple[bool, str]]:
    """Yield the parts of a Markdown text, and for each whether it is code."""
    fence = ""
    for line in text.splitlines(keepends=True):
        found = _FENCE.match(line)
        if fence or found:
            yield True, line
            if found and not fence:
                fence = found[1]
            elif found and found[1].startswith(fence):
                fence = ""
            continue
        at = 0
        for start, end in _spans(line):
            yield False, line[at:start]
            yield True, line[start:end]
            at = end
        yield False, line[at:]


def _spans(line: str) -> Iterator[tuple[int, int]]:
    """Yield the code spans of a line, between equal runs of backticks (CommonMark 6.1)."""
    runs = [(found.start(), found.end()) for found in _TICKS.finditer(line)]
    last = {end - start: number for number, (start, end) in enumerate(runs)}
    number = 0
    while number < len(runs):
        start, end = runs[number]
        number += 1
        # No later run closes this one.
        if last[end - start] < number:
            continue
        while runs[number][1] - runs[number][0] != end - start:
            number += 1
        yield start, runs[number][1]
        number += 1


def fenced(text: str, language: str) -> str:
    """Return text in a fence that nothing in it closes."""
    ticks = max([2, *(len(found) for found in _TICKS.findall(text))]) + 1
    fence = "`" * ticks
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"


def truncated(text: str) -> str:
    """Return a text up to the maximum length, with the number of omitted characters."""
    if len(text) <= LONGEST:
        return text
    return f"{text[:LONGEST]}\n… {len(text) - LONGEST:,} characters more are in the session"


def _fields(plan: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    ordered = sorted(plan, key=lambda key: _FIRST.index(key) if key in _FIRST else len(_FIRST))
    for key, value in ((key, plan[key]) for key in ordered):
        name = key.replace("_", " ").capitalize()
        if value in (None, "", [], {}):
            continue
        if isinstance(value, Sequence) and not isinstance(value, str):
            lines += ["", f"**{name}:**", ""]
            lines += [f"{number}. {_value(item)}" for number, item in enumerate(value, 1)]
        else:
            shown = _value(value)
            words = shown.replace("_", " ") if key == "action" else shown
            lines += ["", f"**{name}:** {words}"]
    return lines[1:]


def _value(value: Any) -> str:
    return " ".join(escape_directives(as_text(value)).split())


def _plain_text(content: str) -> str:
    return truncated(escape_directives(content))


TEXTS: dict[StepType, Callable[[str], str]] = {
    StepType.PLAN: plan_text,
    StepType.CODEGEN: code_text,
    StepType.EXECUTE: _plain_text,
    StepType.DECISION: _plain_text,
    StepType.RESPONSE: _plain_text,
}
