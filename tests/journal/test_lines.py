"""Lines with checksums: what was written is read, or the fault is told with its line."""

from __future__ import annotations

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mergepoint.journal.checked_lines import FileLines, JournalError, encode, read_lines

ANY_TEXT = st.text(st.characters(exclude_categories=()))
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | ANY_TEXT,
    lambda inner: st.lists(inner) | st.dictionaries(ANY_TEXT, inner),
    max_leaves=20,
)
OBJECTS = st.dictionaries(ANY_TEXT, VALUES, max_size=5)


def line(body: bytes) -> bytes:
    """Return a body as a line with the checksum that fits it."""
    return b"%08x " % crc32(body) + body + b"\n"


def nested(depth: int, inside: Any = 1) -> dict[str, Any]:
    """Return an object that holds lists inside of each other; a tuple among them takes longer."""
    value: Any = inside
    for _ in range(depth - 1):
        value = [value]
    return {"x": value}


@given(objects=st.lists(OBJECTS, max_size=4))
@settings(max_examples=50, deadline=None, derandomize=True, database=None)
def test_what_was_written_is_read(
    objects: list[dict[str, Any]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Objects of any text, numbers and nesting come back as they were, one from each line."""
    path = tmp_path_factory.getbasetemp() / "written.jsonl"
    whole = b"".join(encode(one) for one in objects)
    path.write_bytes(whole)
    assert read_lines(path) == FileLines(tuple(objects), len(whole), 0)
    assert whole.count(b"\n") == len(objects)


def test_a_line_has_the_documented_form() -> None:
    """Eight lower-case hex digits of the CRC-32 of the body, a space, the body, a newline."""
    assert encode({"a": "é\n", "b": [1, None]}) == '185389cd {"a":"é\\n","b":[1,null]}\n'.encode()


def test_every_sign_survives(tmp_path: Path) -> None:
    """Control characters, line separators, lone surrogates and pairs of them stay what they are."""
    signs = [*range(0xA0), 0x2028, 0x2029, *range(0xD800, 0xE000), 0xFEFF, 0xFFFE, 0x1F600]
    data = {chr(sign): chr(sign) for sign in signs} | {"pair": "\ud83d\ude00", "sign": "\U0001f600"}
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode(data))
    assert read_lines(path).values == (data,)


def test_tuples_become_lists_and_numbers_stay_exact(tmp_path: Path) -> None:
    """JSON has one kind of sequence; floats and large integers lose no digit."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode({"t": (1, (2,)), "f": [0.1, 1e308, 5e-324], "i": 2**70}))
    assert read_lines(path).values == ({"t": [1, [2]], "f": [0.1, 1e308, 5e-324], "i": 2**70},)


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"a": {"b": [0, {1}]}}, r"^a\.b\.1: a value of type set is nothing that JSON holds"),
        ({"a": b"x"}, r"^a: a value of type bytes .* give it as text, or leave it out"),
        ({"a": datetime.now(UTC)}, r"^a: a value of type datetime"),
        ({"a": math.nan}, "^a: nan is nothing that JSON holds"),
        ({"a": (math.inf,)}, r"^a\.0: inf is nothing that JSON holds"),
        ({"a": {1: 2}}, "^a: its key 1 isn't a string"),
        ({"a": {None: 2}}, "^a: its key None isn't a string"),
        ({3: 2}, "^the object: its key 3 isn't a string"),
        ({"a": 10**5000}, "cannot be written as JSON"),
        (nested(255), r"x\.0\.0.*more than 253 deep; write it flatter"),
        (nested(255, ()), r"x\.0\.0.*more than 253 deep; write it flatter"),
    ],
)
def test_what_json_does_not_hold_is_refused(data: dict[str, Any], told: str) -> None:
    """The error names the place and the kind, and nothing is turned into text in silence."""
    with pytest.raises(JournalError, match=told):
        encode(data)


def test_an_object_that_holds_itself_is_refused() -> None:
    """A circle is told as nesting without an end."""
    circle: dict[str, Any] = {}
    circle["again"] = circle
    with pytest.raises(JournalError, match="more than 253 deep"):
        encode(circle)


@pytest.mark.parametrize("inside", [1, (1,)])
def test_the_deepest_that_is_written_can_be_read(inside: Any, tmp_path: Path) -> None:
    """The limit on nesting is below that of the parser, with a tuple at the bottom too."""
    deepest = nested(254 - isinstance(inside, tuple), inside)
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode(deepest))
    assert read_lines(path).values == (json.loads(json.dumps(deepest)),)


def test_bytes_behind_the_last_newline_are_counted_and_not_read(tmp_path: Path) -> None:
    """An unfinished write is no line, also where all but its newline is there."""
    path = tmp_path / "x.jsonl"
    first, second = encode({"a": 1}), encode({"b": 2})
    for cut in range(len(second)):
        path.write_bytes(first + second[:cut])
        assert read_lines(path) == FileLines(({"a": 1},), len(first), cut)


def test_an_empty_file_holds_no_lines(tmp_path: Path) -> None:
    """Nothing is read of nothing."""
    path = tmp_path / "x.jsonl"
    path.touch()
    assert read_lines(path) == FileLines((), 0, 0)


FAULTS = [
    (b"\n", "its checksum does not fit"),
    (line(b'{"a":1}').replace(b"1}", b"2}"), "its checksum does not fit"),
    (line(b'{"a":1}').upper(), "its checksum does not fit"),
    (line(b'{"a":1}').replace(b" ", b"\t", 1), "its checksum does not fit"),
    (line(b'{"a":1}').replace(b"\n", b"\r\n"), "its checksum does not fit"),
    (line(b'{"a":'), "Expecting value"),
    (line(b'{"a":1}{"a":1}'), "Extra data"),
    (line(b"[1]"), "it holds no JSON object"),
    (line(b'{"a":NaN}'), "NaN isn't JSON"),
    (line(b'{"a":"\xff"}'), "can't decode byte 0xff"),
    (line(b'{"a":' + b"[" * 100_000), "recursion"),
]


@pytest.mark.parametrize(("bad", "told"), FAULTS)
@pytest.mark.parametrize("after", [b"", encode({"c": 3}), b"deadbeef {"])
def test_a_whole_line_that_is_wrong_is_never_left_out(
    bad: bytes, told: str, after: bytes, tmp_path: Path
) -> None:
    """Wherever it stands, reading stops with file, line and what can still be done."""
    path = tmp_path / "x.jsonl"
    good = encode({"a": 1}) + encode({"b": 2})
    path.write_bytes(good + bad + after)
    with pytest.raises(JournalError, match=rf"x\.jsonl, line 3: .*{told}.*until_fault=True"):
        read_lines(path)
    lines = read_lines(path, until_fault=True)
    assert lines.values == ({"a": 1}, {"b": 2})
    assert (lines.good, lines.torn) == (len(good), len(bad + after))
    assert "line 3" in str(lines.fault)


def test_a_file_without_fault_is_read_whole_until_its_fault(tmp_path: Path) -> None:
    """Asking for what precedes a fault changes nothing where there is none."""
    path = tmp_path / "x.jsonl"
    path.write_bytes(encode({"a": 1}) + b"torn")
    assert read_lines(path, until_fault=True) == read_lines(path) == FileLines(({"a": 1},), 17, 4)


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    """A missing file and a folder are told with their path."""
    with pytest.raises(JournalError, match=r"cannot read .*none\.jsonl: No such file"):
        read_lines(tmp_path / "none.jsonl")
    with pytest.raises(JournalError, match=r"cannot read .*: it isn't a regular file"):
        read_lines(tmp_path)


def test_other_programs_can_check_a_line() -> None:
    """The standard tools for CRC-32 and JSON are enough to read a line."""
    written = encode({"text": "a\nb", "n": 1})
    digits, _, body = written.rstrip(b"\n").partition(b" ")
    assert int(digits, 16) == crc32(body)
    assert json.loads(body) == {"text": "a\nb", "n": 1}
