"""The rows of JSONL files, CSV files, and folders: objects of inputs, each with its place.

What can't be read is a row with its problems, so that a reader can report all of them.
"""

from __future__ import annotations

import codecs
import csv
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from mergepoint.core.paths import nearest
from mergepoint.core.text import count
from mergepoint.scale.target_inputs import ID, TargetInputs, refuse_constant
from mergepoint.tree.nodes import REQUIRED

_LONGEST_CELL: Final = 2**31 - 1  # csv's own limit is 131,072 characters
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


@dataclass(frozen=True, slots=True)
class InputRow:
    """One input as it was read: its place, the id that it has by its place, and its data.

    A row with `problems` has no data. After one that is the `last`, nothing can be read.
    """

    place: str
    default_id: str
    data: Mapping[str, Any] = field(default_factory=dict)
    problems: tuple[str, ...] = ()
    last: bool = False


def _lines(file: IO[bytes], name: str) -> Iterator[tuple[int, str | InputRow]]:
    """Yield number and text of each line; a row with a problem for one that isn't UTF-8."""
    for number, line in enumerate(file, 1):
        if number == 1:
            if line.startswith(_UTF16):
                problem = "is UTF-16 text; convert it, for example by: iconv -f UTF-16 -t UTF-8"
                yield number, InputRow(name, "", problems=(problem,), last=True)
                return
            line = line.removeprefix(codecs.BOM_UTF8)  # noqa: PLW2901
        try:
            yield number, line.decode()
        except UnicodeDecodeError as error:
            problem = (
                f"byte {error.start + 1} of the line is not UTF-8; save the file as UTF-8, or "
                "convert it, for example by: iconv -f LATIN1 -t UTF-8"
            )
            yield number, InputRow(f"{name}:{number}", "", problems=(problem,))


def json_rows(file: IO[bytes], name: str) -> Iterator[InputRow]:
    """Yield a row for each line of JSON; blank lines are none."""
    for number, line in _lines(file, name):
        if isinstance(line, InputRow):
            yield line
        elif text := line.rstrip():
            yield _json_row(text, f"{name}:{number}", str(number), ended=line.endswith("\n"))


def _json_row(text: str, place: str, default_id: str, *, ended: bool) -> InputRow:
    try:
        data = json.loads(
            text, object_pairs_hook=_without_repetition, parse_constant=refuse_constant
        )
    except json.JSONDecodeError as error:
        place = f"{place}, column {error.colno}"
        cut = not ended and text.startswith("{") and not text.endswith("}")
        why = (
            "the line stops in the middle of its object; the file seems to be cut off"
            if cut
            else f"isn't JSON ({error.msg})"
        )
        fix = "Write one JSON object on each line, with quotes around names and texts"
        return InputRow(place, default_id, problems=(f"{why}. {fix}",))
    except (ValueError, RecursionError) as error:
        return InputRow(place, default_id, problems=(str(error),))
    if isinstance(data, dict):
        return InputRow(place, default_id, data)
    what = "a list" if isinstance(data, list) else json.dumps(data)
    fix = "write one object on each line"
    if isinstance(data, list):
        fix += ", for example by: jq -c '.[]' list.json > inputs.jsonl"
    return InputRow(place, default_id, problems=(f"is {what}, not an object of inputs; {fix}",))


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    data = dict(pairs)
    if len(data) < len(pairs):
        names = [name for name, _ in pairs]
        twice = sorted({name for name in names if names.count(name) > 1})
        raise ValueError(f"{', '.join(map(repr, twice))} is there twice; remove one")
    return data


def csv_rows(file: IO[bytes], name: str, form: TargetInputs) -> Iterator[InputRow]:
    """Yield a row for each record of a CSV file, whose header has the names of inputs."""
    csv.field_size_limit(_LONGEST_CELL)
    unreadable: list[InputRow] = []

    def texts() -> Iterator[str]:
        for _, line in _lines(file, name):
            if isinstance(line, InputRow):
                unreadable.append(line)
                return
            yield line

    reader = csv.reader(texts(), strict=True)
    started = 1
    try:
        header = next(reader, None)
        if header is not None:
            problems = _header_problems(header, form)
            if problems:
                yield InputRow(f"{name}:1", "", problems=tuple(problems), last=True)
                return
        while True:
            started = reader.line_num + 1
            record = next(reader, None)
            if record is None:
                break
            if record:  # a blank line has no cells
                yield _csv_row(record, header or [], f"{name}:{started}", str(started), form)
    except csv.Error as error:
        problem = f"isn't CSV ({error}); check the quotes from this line on"
        yield InputRow(f"{name}:{started}", "", problems=(problem,), last=True)
    yield from unreadable


def _header_problems(header: Sequence[str], form: TargetInputs) -> list[str]:
    """Return the problems of a CSV header, which would otherwise be those of every row."""
    if len(header) == 1 and any(mark in header[0] for mark in ";\t"):
        return [f"the header is one column, {header[0]!r}; separate columns by commas"]
    twice = sorted({name for name in header if header.count(name) > 1})
    found = [f"column {name!r} is there twice; rename one" for name in twice]
    if "" in header:
        found.append("a column has no name; the header has the names of the inputs")
    if form.declared is None:
        if "content" not in header:
            found.append(
                f"there is no column 'content'{nearest('content', header)}; it has the items of "
                "the recipe, and other columns are their props"
            )
        return found
    known = {one.name: one for one in form.declared}
    found += [
        f"column {name!r} is no input{nearest(name, known)}; {form.takes}"
        for name in header
        if name and name not in known and name != ID
    ]
    found += [
        f"there is no column for input {name!r}; {form.takes}"
        for name, one in known.items()
        if one.default is REQUIRED and name not in header
    ]
    return found


def _csv_row(
    record: Sequence[str], header: Sequence[str], place: str, default_id: str, form: TargetInputs
) -> InputRow:
    if len(record) != len(header):
        problem = (
            f"has {count(len(record), 'cell')} under {count(len(header), 'column')}; put quotes "
            "around a text with a comma"
        )
        return InputRow(place, default_id, problems=(problem,))
    # An empty cell is an input that isn't there, so that its default counts, or it is missing.
    cells = {name: cell for name, cell in zip(header, record, strict=True) if cell}
    data = {name: cell if name == ID else form.typed(name, cell) for name, cell in cells.items()}
    return InputRow(place, default_id, data)


def folder_rows(folder: Path, form: TargetInputs) -> Iterator[InputRow]:
    """Yield a row for each file of a folder, by name. Hidden files (".name") are left out."""
    try:
        name = form.text_name()
    except ValueError as error:
        yield InputRow(str(folder), "", problems=(str(error),), last=True)
        return
    for path in sorted(folder.iterdir()):
        if path.name.startswith("."):
            continue
        place = str(path)
        if not path.is_file():
            problem = "isn't a file; the folder of a batch has one file for each input"
            yield InputRow(place, path.name, problems=(problem,))
            continue
        try:
            text = path.read_bytes().removeprefix(codecs.BOM_UTF8).decode()
        except UnicodeDecodeError as error:
            problem = f"byte {error.start + 1} is not UTF-8; save the file as UTF-8"
            yield InputRow(place, path.name, problems=(problem,))
        except OSError as error:
            yield InputRow(place, path.name, problems=(f"can't be read: {error.strerror}",))
        else:
            yield InputRow(place, path.name, {ID: path.name, name: form.typed(name, text)})


def value_rows(values: Iterable[Any]) -> Iterator[InputRow]:
    """Yield a row for each object of inputs."""
    for number, value in enumerate(values, 1):
        yield value_row(value, number)


def value_row(value: Any, number: int) -> InputRow:
    """Return the row of an object of inputs at a position, counted from 1."""
    place = f"input {number}"
    if isinstance(value, Mapping):
        return InputRow(place, str(number), dict(value))
    problem = f"is {value.__class__.__name__}, not a mapping of inputs by name"
    return InputRow(place, str(number), problems=(problem,))
