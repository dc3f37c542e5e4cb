"""Strict YAML: plain data with the line of every value, and the text of plain data.

YAML is read event by event (YAML 1.1 grammar, https://yaml.org/spec/1.1/), so nothing is built that
was not admitted first: no anchors, aliases, tags, directives or merge keys, no key twice, no second
document, bounded depth, size and number of values. Plain scalars follow JSON: `no`, `2024-01-01`
and `~` are text; `true`, `null`, `1` and `1e-3` are not. Quoted scalars are text.

Reading and writing are in one module because each is the test of the other.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

from mergepoint.core.errors import MergepointError

MAX_DEPTH: Final = 150
MAX_BYTES: Final = 1_000_000
MAX_NODES: Final = 100_000

Location = Sequence[str | int]

_LOADER: Final[Any] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_JSON = re.compile(r"true|false|null|-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
# Not printable in YAML, or printable and yet changed by readers (a second kind of line break, a
# byte order mark): such characters come as escapes in double quotes or not at all.
_ESCAPED = re.compile(
    "[^\t\n\r -~\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_SURROGATE = re.compile("[\ud800-\udfff]")
# Quoted when written: the last three are values here, the others are so to other readers.
_WORDS = frozenset({"y", "n", "yes", "no", "on", "off", "true", "false", "null"})
_NOT_PLAIN = re.compile(r":( |\Z)| #| \Z|[\t\n\r]")
_NOT_BLOCK = re.compile(r"\r|[ \t](\n|\Z)")  # editors cut the blanks at the ends of lines
_LONG = 80
_LONG_KEY = 1000  # parsers look 1,024 characters ahead for a key's colon


class YamlError(MergepointError, ValueError):
    """Text that is not strict YAML: `source` (a file) and `line` (from 1) locate the problem."""

    def __init__(self, source: str, line: int, problem: str) -> None:
        super().__init__(source, line, problem)
        self.source: Final = source
        self.line: Final = line
        self.problem: Final = problem

    def __str__(self) -> str:
        return f"{self.source}:{self.line}: {self.problem}"


@dataclass(frozen=True, slots=True)
class _Place:
    line: int
    below: _Places


_Places = dict[str | int, _Place]
_NodeEvent = yaml.AliasEvent | yaml.ScalarEvent | yaml.CollectionStartEvent


@dataclass(frozen=True, slots=True)
class YamlDocument:
    """Plain data, with the lines that it was read from."""

    source: str
    value: Any
    _root: _Place = field(repr=False)

    def line_of(self, location: Location) -> int:
        """Return the line (from 1) of a value: that of its key, or of its place in a list.

        `location` contains the keys and 0-based positions from the root down. Parts that the
        document does not have are ignored. So a missing key has the line of its parent, and the
        location of a schema's error can be passed unchanged.
        """
        place = self._root
        for part in location:
            place = place.below.get(part, place)
        return place.line

    def where(self, location: Location) -> str:
        """Return `file:line` of a value, with which every error about it begins."""
        return f"{self.source}:{self.line_of(location)}"


@dataclass(frozen=True, slots=True)
class DocumentLimits:
    """The most bytes that a document may have, and the most values."""

    bytes: int = MAX_BYTES
    nodes: int = MAX_NODES


_LIMITS: Final = DocumentLimits()


def load(text: str, *, source: str, limits: DocumentLimits = _LIMITS) -> YamlDocument:
    """Read strict YAML; `source` names it in errors. Raises YamlError with the line."""
    return _load(text.removeprefix("\ufeff"), source, _LOADER, limits)


def load_file(path: Path, *, limits: DocumentLimits = _LIMITS) -> YamlDocument:
    """Read a file of strict YAML in UTF-8. Raises YamlError with the line, and OSError."""
    with path.open("rb") as file:
        # One byte more than allowed shows that a file is too large, without reading all of it.
        data = file.read(limits.bytes + 1)
    _check_size(data, str(path), limits)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise YamlError(str(path), line, "this is not UTF-8; save the file as UTF-8") from None
    return load(text, source=str(path), limits=limits)


def _load(text: str, source: str, loader: Any, limits: DocumentLimits = _LIMITS) -> YamlDocument:
    if bad := _ESCAPED.search(text):
        shown = f"U+{ord(bad[0]):04X}"
        problem = f"the character {shown} isn't allowed here; remove it, or escape it in quotes"
        raise YamlError(source, text.count("\n", 0, bad.start()) + 1, problem)
    _check_size(text.encode(), source, limits)
    value, root = _Builder(_events(text, source, loader), source, limits.nodes).document()
    return YamlDocument(source, value, root)


def _check_size(data: bytes, source: str, limits: DocumentLimits) -> None:
    if len(data) > limits.bytes:
        line = data.count(b"\n", 0, limits.bytes) + 1
        raise YamlError(source, line, f"larger than {limits.bytes:,} bytes; split the file")


def _events(text: str, source: str, loader: Any) -> Iterator[Any]:
    line = 1
    try:
        for event in yaml.parse(
            text, Loader=loader
        ):  # pragma: no branch  (the builder stops reading at the end)
            line = _line(event)
            yield event
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else line
        raise YamlError(source, line, _syntax_problem(error)) from None
    except (ValueError, OverflowError) as error:  # the parser in Python, at an escape too large
        raise YamlError(source, line, f"this is not YAML: {error}") from None


def _syntax_problem(error: yaml.MarkedYAMLError) -> str:
    began = f" (from line {error.context_mark.line + 1})" if error.context_mark else ""
    context = f"{error.context}{began}: " if error.context else ""
    return (
        f"this is not YAML: {context}{error.problem}; look at the indentation, and quote text "
        "that holds ': ' or ' #', or that begins with a sign"
    )


class _Builder:
    """Builds data from events, and rejects each problem at the event that contains it."""

    def __init__(self, events: Iterator[Any], source: str, most: int) -> None:
        self._events = events
        self._source = source
        self._most = most
        self._count = 0

    def document(self) -> tuple[Any, _Place]:
        next(self._events)  # the start of the stream
        start = next(self._events)
        if not isinstance(start, yaml.DocumentStartEvent):
            self._refuse(start, "the document is empty; write a value")
        if start.version or start.tags:
            self._refuse(start, "directives (%...) are not allowed; remove them")
        event = next(self._events)
        value, below = self._node(event, 1)
        next(self._events)  # the end of the document
        after = next(self._events)
        if not isinstance(after, yaml.StreamEndEvent):
            self._refuse(after, "a second document begins here; put it in a file of its own")
        return value, _Place(_line(event), below)

    def _node(self, event: _NodeEvent, depth: int) -> tuple[Any, _Places]:
        self._admit(event)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event), {}
        if depth > MAX_DEPTH:
            self._refuse(event, f"nested more than {MAX_DEPTH} deep; make it flatter")
        if isinstance(event, yaml.SequenceStartEvent):
            return self._list(depth)
        return self._mapping(depth)

    def _list(self, depth: int) -> tuple[list[Any], _Places]:
        items: list[Any] = []
        places: _Places = {}
        while not isinstance(event := next(self._events), yaml.SequenceEndEvent):
            value, below = self._node(event, depth + 1)
            places[len(items)] = _Place(_line(event), below)
            items.append(value)
        return items, places

    def _mapping(self, depth: int) -> tuple[dict[str, Any], _Places]:
        items: dict[str, Any] = {}
        places: _Places = {}
        while not isinstance(event := next(self._events), yaml.MappingEndEvent):
            key = self._key(event)
            if key in items:
                first = places[key].line
                self._refuse(event, f"key {key!r} is on line {first} already; keep one of the two")
            value, below = self._node(next(self._events), depth + 1)
            items[key], places[key] = value, _Place(_line(event), below)
        return items, places

    def _key(self, event: _NodeEvent) -> str:
        self._admit(event)
        if not isinstance(event, yaml.ScalarEvent):
            self._refuse(event, "a key is text; quote text that begins with a bracket or brace")
        if not event.style and event.value == "<<":
            self._refuse(event, "merge keys (<<) are not allowed; write the keys out")
        key = self._scalar(event)
        if not isinstance(key, str):
            self._refuse(event, f"a key is text, not {event.value}; quote it: '{event.value}'")
        return key

    def _admit(self, event: _NodeEvent) -> None:
        self._count += 1
        if self._count > self._most:
            self._refuse(event, f"more than {self._most:,} values; split the file")
        if isinstance(event, yaml.AliasEvent):
            self._refuse(event, f"alias *{event.anchor} is not allowed; write the value out")
        if event.anchor is not None:
            self._refuse(event, f"anchor &{event.anchor} is not allowed; remove it")
        if event.tag is not None:
            self._refuse(event, f"tag {event.tag!r} is not allowed; remove it")

    def _scalar(self, event: yaml.ScalarEvent) -> Any:
        text: str = event.value
        if _SURROGATE.search(text):
            self._refuse(event, "half of a surrogate pair; write the whole character")
        if event.style or not _JSON.fullmatch(text):
            if not event.style and not text:
                self._refuse(event, "the value is missing; write one, or '' or null")
            return text
        try:
            # Python refuses integers of more than 4,300 digits, and reads 1e999 as infinity.
            value = json.loads(text)
        except ValueError:
            value = math.inf
        if value in (math.inf, -math.inf):
            self._refuse(event, "this number is too large; quote it if it is meant as text")
        return value

    def _refuse(self, event: yaml.Event, problem: str) -> NoReturn:
        raise YamlError(self._source, _line(event), problem)


def _line(event: yaml.Event) -> int:
    return event.start_mark.line + 1 if event.start_mark else 1


def refusals(value: object) -> Iterator[tuple[Location, str]]:
    """Yield the location and the problem of each part of a value that `dump` cannot write.

    It can write text, numbers, true, false and null, lists of these, and mappings with text keys.
    """
    if _count(value) > MAX_NODES:
        yield (), f"more than {MAX_NODES:,} values, or a value that contains itself"
    else:
        yield from _refusals(value, ())


def _count(value: object) -> int:
    # Counted in a loop: a list that contains itself would never end a recursion.
    todo, count = [value], 0
    while todo and count <= MAX_NODES:
        value = todo.pop()
        count += 1
        if type(value) is list:
            todo += value
        elif type(value) is dict:
            todo += value.values()
            count += len(value)
    return count


def _refusals(value: Any, at: tuple[str | int, ...]) -> Iterator[tuple[Location, str]]:
    if type(value) not in (list, dict):
        if problem := _scalar_problem(value):
            yield at, problem
    elif len(at) >= MAX_DEPTH:
        yield at, f"nested more than {MAX_DEPTH} deep"
    elif type(value) is list:
        for position, item in enumerate(value):
            yield from _refusals(item, (*at, position))
    else:
        for key, item in value.items():
            problem = _scalar_problem(key) if type(key) is str else "a key has to be text"
            if problem:
                yield (*at, str(key)), problem
            yield from _refusals(item, (*at, str(key)))


def _scalar_problem(value: object) -> str | None:
    if type(value) is str:
        half = _SURROGATE.search(value)
        return half and f"half of a surrogate pair, U+{ord(half[0]):04X}"
    if type(value) in (int, float):
        try:
            json.dumps(value, allow_nan=False)
        except ValueError as error:
            return f"not a JSON number: {error}"
    elif value is not None and type(value) is not bool:
        kind = "class" if isinstance(value, type) else type(value).__name__
        return f"a {kind} has no text form"
    return None


def dump(value: Any) -> str:
    """Return plain data as YAML from which `load` reads an equal value.

    Long text and text of several lines become block scalars.

    Raises:
        ValueError: A part of the value cannot be written; see `refusals`.
    """
    for at, problem in refusals(value):
        raise ValueError(f"{'.'.join(map(str, at)) or 'the value'}: {problem}")
    lines = _lines(value) if _filled(value) else [_inline(value)]
    return "\n".join(lines) + "\n"


def _lines(value: Any) -> Iterator[str]:
    pairs = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    for key, item in pairs:
        head = "-" if key is None else f"{_inline(key)}:"
        # A longer key needs the explicit form `? key`, or the parser does not find its colon.
        if len(head) > _LONG_KEY:
            yield f"? {head[:-1]}"
            head = ":"
        is_filled = _filled(item)
        inner = _lines(item) if is_filled else _scalar_lines(item)
        yield head if is_filled and key is not None else f"{head} {next(inner)}"
        for line in inner:
            yield f"  {line}" if line else line


def _filled(value: object) -> bool:
    return isinstance(value, dict | list) and bool(value)


def _scalar_lines(value: Any) -> Iterator[str]:
    if not isinstance(value, str) or not _is_block(value):
        yield _inline(value)
        return
    # An indentation indicator: without one, leading blanks would count as indentation.
    indent = "2" if value[0] in " \t\n" else ""
    body = value.removesuffix("\n")
    ends = "-" if body == value else "+" if body.endswith("\n") else ""
    yield f"|{indent}{ends}"
    yield from body.split("\n")


def _is_block(text: str) -> bool:
    if len(text) <= _LONG and "\n" not in text:
        return False
    return bool(text.strip("\n")) and not _NOT_BLOCK.search(text) and not _ESCAPED.search(text)


def _inline(value: Any) -> str:
    if isinstance(value, str) and _is_plain(value):
        return value
    return _ESCAPED.sub(lambda odd: f"\\u{ord(odd[0]):04x}", json.dumps(value, ensure_ascii=False))


def _is_plain(text: str) -> bool:
    # A letter at the start rules out numbers and all of YAML's indicators.
    if not text[:1].isalpha() or text.lower() in _WORDS:
        return False
    return not _NOT_PLAIN.search(text) and not _ESCAPED.search(text)
