"""Strict YAML: what is refused and where, what is read, and that what is written is read back.

Each text goes through both parsers of PyYAML, the one in C and the one in Python, since users may
have either.
"""

from __future__ import annotations

import json
import math
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from mergepoint.core.errors import MergepointError
from mergepoint.core.strict_yaml import (
    MAX_BYTES,
    MAX_DEPTH,
    MAX_NODES,
    DocumentLimits,
    YamlDocument,
    YamlError,
    _load,
    dump,
    load,
    load_file,
    refusals,
)

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

PARSERS: list[Any] = [yaml.SafeLoader]
if yaml.__with_libyaml__:
    PARSERS.append(yaml.CSafeLoader)

both = pytest.mark.parametrize("parser", PARSERS)


def read(text: str, parser: Any = None) -> Any:
    """Return the value of a text."""
    return (_load(text, "f.yaml", parser) if parser else load(text, source="f.yaml")).value


def refused(text: str, parser: Any = None) -> YamlError:
    """Return the error of a text."""
    with pytest.raises(YamlError) as caught:
        read(text, parser)
    assert caught.value.source == "f.yaml"
    assert str(caught.value).startswith(f"f.yaml:{caught.value.line}: ")
    return caught.value


def laughs() -> str:
    """Return a text of nine lines that stands for a thousand million values."""
    keys = "abcdefghi"
    lines = [f"{key}: &{key} [{', '.join(f'*{key}' for _ in range(10))}]" for key in keys]
    return "\n".join(lines)


@both
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        (laughs(), 1, "anchor &a is not allowed; remove it"),
        ("list:\n  - &me [*me]\n", 2, "anchor &me is not allowed; remove it"),
        ("a: 1\nb: 2\na: 3\n", 3, "key 'a' is on line 1 already; keep one of the two"),
        ("x:\n  " + "[" * 20_000, 2, "nested more than 150 deep; make it flatter"),
        (
            "a: 1\nb: !!python/object:os.system x\n",
            2,
            "tag 'tag:yaml.org,2002:python/object:os.system' is not allowed; remove it",
        ),
        ("a: {b: 1}\nc:\n  <<: {b: 2}\n", 3, "merge keys (<<) are not allowed; write the keys out"),
    ],
    ids=["billion laughs", "self reference", "duplicate", "deep", "tag", "merge key"],
)
def test_hostile_texts_are_refused(parser: Any, text: str, line: int, problem: str) -> None:
    """The six known attacks are refused at their line, before anything is built."""
    error = refused(text, parser)
    assert (error.line, error.problem) == (line, problem)


@both
@pytest.mark.parametrize("opening", ["{a: ", "- ", "[a, ", "-\n ", "[\n"])
def test_deep_nesting_of_any_kind_is_refused(parser: Any, opening: str) -> None:
    """No way to nest gets past the limit, and none reaches the limits of Python."""
    text = "".join(opening.replace("\n", "\n" + " " * n) for n in range(300))
    assert refused(text, parser).problem == "nested more than 150 deep; make it flatter"


@both
def test_depth_up_to_the_limit_is_read(parser: Any) -> None:
    """A hundred lists in one another are allowed, one more is not."""
    value = read("[" * MAX_DEPTH + "]" * MAX_DEPTH, parser)
    depth = 1
    while value:
        (value,) = value
        depth += 1
    assert depth == MAX_DEPTH
    assert "deep" in refused("[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), parser).problem


def test_size_is_limited() -> None:
    """A text above a million bytes is refused at the line that goes beyond."""
    fits = "#" + "ä" * 499_998 + "\na\n"
    assert len(fits.encode()) == MAX_BYTES
    assert read(fits) == "a"
    error = refused(fits + " ")
    assert (error.line, error.problem) == (3, "larger than 1,000,000 bytes; split the file")


def test_number_of_values_is_limited() -> None:
    """Keys and values count; above a hundred thousand the text is refused at the line."""
    error = refused("{a: [" + "1," * (MAX_NODES - 3) + "\n1]}")
    assert (error.line, error.problem) == (2, "more than 100,000 values; split the file")


@both
@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("a: *b", 1, "alias *b is not allowed; write the value out"),
        ("*b : 1", 1, "alias *b is not allowed"),
        ("a: &b c", 1, "anchor &b is not allowed"),
        ("a: 1\n&b c: 1", 2, "anchor &b is not allowed"),
        ("a: ! x", 1, "tag '!' is not allowed"),
        ("a: !!str x", 1, "tag 'tag:yaml.org,2002:str' is not allowed"),
        ("a:\n- !x [1]", 2, "tag '!x' is not allowed"),
        ("!!set {a: 1}", 1, "tag 'tag:yaml.org,2002:set' is not allowed"),
        ("%YAML 1.2\n---\na: 1", 1, "directives (%...) are not allowed; remove them"),
        ("%TAG !e! x:\n---\na: 1", 1, "directives (%...) are not allowed"),
        ("a: 1\n---\nb: 1", 2, "a second document begins here; put it in a file of its own"),
        ("a: 1\n...\n---\nb: 1", 3, "a second document begins here"),
        ("", 1, "the document is empty; write a value"),
        ("# only\n# this\n", 3, "the document is empty"),
        ("---\n", 2, "the value is missing; write one, or '' or null"),
        ("a:\nb: 1\n", 1, "the value is missing"),
        ("- 1\n-\n", 2, "the value is missing"),
        ("{a}", 1, "the value is missing"),
        ("1: x", 1, "a key is text, not 1; quote it: '1'"),
        ("a: 1\ntrue: x", 2, "a key is text, not true; quote it: 'true'"),
        ("null: x", 1, "a key is text, not null; quote it: 'null'"),
        ("? [a]\n: x", 1, "a key is text; quote text that begins with a bracket or brace"),
        ("prompt: {{ key }}", 1, "a key is text; quote text that begins with a bracket or brace"),
        ("{a: {b: 1, c: 1,\nb: 2}}", 2, "key 'b' is on line 1 already"),
        ("a: 1\n'a': 1", 2, "key 'a' is on line 1 already"),
        ("a: 1e999", 1, "this number is too large; quote it if it is meant as text"),
        ("a: -1e999", 1, "this number is too large"),
        ("a: " + "9" * 5000, 1, "this number is too large"),
        ("a: 1\nb: \x07", 2, "the character U+0007 isn't allowed here; remove it, or escape it"),
        ("a: \x85", 1, "the character U+0085 isn't allowed here"),
        ("a: x\u2028y", 1, "the character U+2028 isn't allowed here"),
        ("a: x\ufeffy", 1, "the character U+FEFF isn't allowed here"),
        ("a: x\ud800", 1, "the character U+D800 isn't allowed here"),
        ("a: x\ufffe", 1, "the character U+FFFE isn't allowed here"),
        ("a: b: c", 1, "this is not YAML: mapping values are not allowed"),
        ("a: 1\nb: 'x", 2, "this is not YAML: while scanning a quoted scalar (from line 2): "),
        ("a: 1\n- b", 2, "this is not YAML: "),
        ("a: [1,\n}", 2, "this is not YAML: while parsing a flow node (from line 2): "),
        ("a: @b", 1, "this is not YAML: while scanning for the next token"),
        ("a: '", 1, "look at the indentation, and quote text that holds ': ' or ' #'"),
        ("a: 1\nb: '\\q' \"\\q\"", 2, "this is not YAML: "),
        ('a: 1\nb: "\\ud800"', 2, ""),
        ('a: 1\nb: "\\U00110000"', 2, "this is not YAML: "),
        ('a: 1\nb: "\\UFFFFFFFF"', 2, "this is not YAML: "),
    ],
)
def test_refused_with_line_and_way_out(parser: Any, text: str, line: int, problem: str) -> None:
    """Everything that is not allowed is named with its line."""
    error = refused(text, parser)
    assert problem in error.problem
    assert error.line == line


@both
@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("true", True),
        ("false", False),
        ("null", None),
        ("0", 0),
        ("-0", 0),
        ("12", 12),
        ("-3", -3),
        ("1.10", 1.1),
        ("1e3", 1000.0),
        ("-1.5E-2", -0.015),
        ("12345678901234567890", 12345678901234567890),
    ],
)
def test_plain_scalars_of_json_are_values(parser: Any, text: str, value: object) -> None:
    """What JSON reads as a number, true, false or null is one."""
    got = read(f"a: {text}", parser)["a"]
    assert got == value
    assert type(got) is type(value)


@both
@pytest.mark.parametrize(
    "text",
    [
        *["no", "yes", "on", "off", "y", "n", "True", "TRUE", "False", "Null", "NULL", "~"],
        *["01", "+1", "1.", ".5", "0x1F", "0o7", "1_000", "1:30", "1,000", ".inf", ".nan", "NaN"],
        *["Infinity", "2024-01-01", "1e", "=", "<<", "1.2.3", "x y", "a:b", "a#b", "ä", "{{x}}y"],
    ],
)
def test_other_plain_scalars_are_text(parser: Any, text: str) -> None:
    """Nothing else is guessed to be a value."""
    block = "- " if text.startswith("{") else "a: "
    if text.startswith("{"):
        text = f"x{text}"
    assert next(iter(_values(read(f"{block}{text}", parser)))) == text


def _values(value: Any) -> Any:
    return value.values() if isinstance(value, dict) else value


@both
@pytest.mark.parametrize("text", ["true", "null", "1", "1.10", "", "<<"])
def test_quoted_scalars_are_text(parser: Any, text: str) -> None:
    """What is quoted or a block is text, as a value and as a key."""
    assert read(f"\"{text}\": '{text}'\nb: |-\n  {text}\n", parser) == {text: text, "b": text}


@both
def test_collections_are_plain_lists_and_dicts(parser: Any) -> None:
    """Block and flow style give the same plain data."""
    expected = {"a": [1, {"b": "c"}, []], "d": {}}
    assert read("a:\n  - 1\n  - b: c\n  - []\nd: {}\n", parser) == expected
    assert read("--- {a: [1, {b: c}, []], d: {}}\n...\n", parser) == expected


@both
def test_text_keeps_its_lines(parser: Any) -> None:
    """Block scalars keep line ends, whatever the file's own line ends are."""
    assert read("a: |\n  x\n\n   y\n", parser) == {"a": "x\n\n y\n"}
    assert read("a: |\r\n  x\r\n  y\r\n", parser) == {"a": "x\ny\n"}
    assert read("a: >-\n  x\n  y\n", parser) == {"a": "x y"}


def test_a_byte_order_mark_is_passed_over() -> None:
    """A file that an editor marked is read as any other."""
    assert read("\ufeffa: 1") == {"a": 1}


TEXT = """\
name: x      # 1
nodes:       # 2
  - prompt:  # 3
      template: |
        many
        lines
      defaults: {a: b}
  - name: y  # 8
    prompt: z
  -
    prompt: z
meta: {a: 1,
  b: [1,
  2]}
"""


@both
@pytest.mark.parametrize(
    ("location", "line"),
    [
        ((), 1),
        (("name",), 1),
        (("nodes",), 2),
        (("nodes", 0), 3),
        (("nodes", 0, "prompt"), 3),
        (("nodes", 0, "prompt", "template"), 4),
        (("nodes", 0, "prompt", "defaults"), 7),
        (("nodes", 0, "prompt", "defaults", "a"), 7),
        (("nodes", 1), 8),
        (("nodes", 1, "prompt"), 9),
        (("nodes", 2, "prompt"), 11),
        (("meta", "b"), 13),
        (("meta", "b", 0), 13),
        (("meta", "b", 1), 14),
    ],
)
def test_every_value_has_its_line(parser: Any, location: tuple[str | int, ...], line: int) -> None:
    """A value is found at the line of its key, or of its place in a list."""
    document = _load(TEXT, "f.yaml", parser)
    assert document.line_of(location) == line
    assert document.where(location) == f"f.yaml:{line}"


@pytest.mark.parametrize(
    ("location", "line"),
    [
        (("nothing",), 1),
        (("nodes", 1, "model"), 8),
        (("nodes", 7), 2),
        (("nodes", "tag", 1, "function", "prompt"), 9),
    ],
)
def test_what_is_not_there_has_the_line_above_it(
    location: tuple[str | int, ...], line: int
) -> None:
    """A missing key is shown where it is missing; other words in a location are passed over."""
    assert load(TEXT, source="f.yaml").line_of(location) == line


def outcome(text: str, parser: Any) -> YamlDocument | YamlError:
    """Return the document of a text, or its error."""
    try:
        return _load(text, "f.yaml", parser)
    except YamlError as error:
        return error


@both
@UNHURRIED
@given(text=st.text("ab1 \n:-?,[]{}#&*!|>'\"%@\t\\<.~", max_size=40) | st.text(max_size=20))
def test_any_text_is_read_or_refused_with_a_line(parser: Any, text: str) -> None:
    """Nothing but a YamlError is raised, with a line of the text; what is read can be written."""
    done = outcome(text, parser)
    if isinstance(done, YamlError):
        assert 1 <= done.line <= text.count("\n") + text.count("\r") + 2
    else:
        assert read(dump(done.value), parser) == done.value


def test_an_error_is_a_value_error_with_fields() -> None:
    """An error can be caught as built-in, read by field, and sent between processes."""
    error = YamlError("f.yaml", 3, "wrong")
    assert isinstance(error, MergepointError)
    assert isinstance(error, ValueError)
    again = pickle.loads(pickle.dumps(error))  # noqa: S301
    assert (again.source, again.line, again.problem) == ("f.yaml", 3, "wrong")
    assert str(again) == "f.yaml:3: wrong"


def test_a_file_is_read(tmp_path: Path) -> None:
    """A file is named in its document."""
    path = tmp_path / "a.yaml"
    path.write_bytes("\ufeffä: 1\n".encode())
    document = load_file(path)
    assert (document.value, document.source) == ({"ä": 1}, str(path))


def test_a_file_in_another_encoding_is_refused(tmp_path: Path) -> None:
    """Bytes that are not UTF-8 are named with their line."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"a: 1\nb: \xe4\n")
    with pytest.raises(YamlError) as caught:
        load_file(path)
    assert str(caught.value) == f"{path}:2: this is not UTF-8; save the file as UTF-8"


def test_a_large_file_is_refused_unread(tmp_path: Path) -> None:
    """Of a file above the limit no more is read than shows that it is."""
    path = tmp_path / "a.yaml"
    path.write_bytes(b"\n" * (MAX_BYTES + 1_000))
    with pytest.raises(YamlError, match="larger than 1,000,000 bytes"):
        load_file(path)


def test_a_reader_may_take_more_or_less(tmp_path: Path) -> None:
    """Limits of one's own stand in place of the usual ones, for texts and for files."""
    path = tmp_path / "f.yaml"
    path.write_text("[a, b, c]\n", encoding="utf-8")
    assert load_file(path, limits=DocumentLimits(bytes=10, nodes=4)).value == ["a", "b", "c"]
    with pytest.raises(YamlError, match="larger than 9 bytes"):
        load_file(path, limits=DocumentLimits(bytes=9))
    with pytest.raises(YamlError, match="more than 3 values"):
        load("[a, b, c]", source="f.yaml", limits=DocumentLimits(nodes=3))
    large = "a: " + "x" * MAX_BYTES
    assert (
        len(load(large, source="f.yaml", limits=DocumentLimits(bytes=2 * MAX_BYTES)).value["a"]) > 9
    )


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    """What the file system says is passed on."""
    with pytest.raises(FileNotFoundError):
        load_file(tmp_path / "none.yaml")


# Writing

ODD = st.text(st.characters(exclude_categories=["Cs"]), max_size=20) | st.text(
    " \n\t\r\x00\x07\x7f\x85\xa0\u2028\u2029\ufeff\ufffe😀\U0010ffff'\"\\:#-?,[]{}&*!|>%@`=~<0e.y",
    max_size=30,
)
LONG = st.text("ab :#\n\t", min_size=70, max_size=200) | st.integers(900, 1200).map("k".__mul__)
SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
)
TEXTS = ODD | LONG
VALUES = st.recursive(
    SCALARS | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=15,
)


@UNHURRIED
@given(VALUES)
@example("1.10")
@example({"no": "null", "~": "true", "<<": "", "1": "1e5", "": "-0"})
@example({"a": " x\ny", "b": "\n\tx\n", "c": "x\n\n\n", "d": "\n", "e": "x \ny", "f": "x\n "})
@example([[["a\nb", ["c\nd\n"]], {"k": [{"l": "\n x"}]}]])
@example({"k" * 1001: {"x": ["a\nb"]}, "l" * 1001: "y"})
def test_what_is_written_is_read_back(value: Any) -> None:
    """Every plain value comes back equal and of the same types, through both parsers."""
    text = dump(value)
    for parser in PARSERS:
        assert json.dumps(read(text, parser)) == json.dumps(value)


def test_other_readers_read_the_same() -> None:
    """Text that YAML 1.1 takes for something else is quoted when it is written."""
    value = {"no": "yes", "a": ["on", "off", "null", "1.10", "1:30", "2024-01-01", "~", "=", "<<"]}
    assert yaml.safe_load(dump(value)) == value


def test_written_text_is_easy_to_read() -> None:
    """Plain words stay plain, lines stay lines, and long text stands in a block."""
    value = {
        "prompt": "Write about {{ topic }}.",
        "long": "word " * 20 + "end",
        "lines": "x\n\n\ty\n",
        "kept": "x\n\n",
        "indented": "  x\ny",
        "blank at the end": "x \ny",
        "list": [["a", 1], {"k": None, "l": True}, [], {}],
        "signs": "# x",
    }
    assert dump(value) == (
        "prompt: Write about {{ topic }}.\n"
        f"long: |-\n  {'word ' * 20}end\n"
        "lines: |\n  x\n\n  \ty\n"
        "kept: |+\n  x\n\n"
        "indented: |2-\n    x\n  y\n"
        'blank at the end: "x \\ny"\n'
        "list:\n  - - a\n    - 1\n  - k: null\n    l: true\n  - []\n  - {}\n"
        'signs: "# x"\n'
    )


def _nested(depth: int, innermost: Any) -> Any:
    value = innermost
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize("innermost", [1, []])
def test_depth_that_could_not_be_read_is_not_written(innermost: Any) -> None:
    """The limit of depth is the same both ways, for empty collections as well."""
    fits = _nested(MAX_DEPTH - isinstance(innermost, list), innermost)
    assert read(dump(fits)) == fits
    with pytest.raises(ValueError, match="nested more than 150 deep"):
        dump([fits])


def test_a_number_of_values_that_could_not_be_read_is_not_written() -> None:
    """The limit of values is the same both ways, keys count too."""
    fits = {"a": [1] * (MAX_NODES - 5), "b": 1}
    assert read(dump(fits)) == fits
    (refusal,) = refusals({**fits, "b": [1]})
    assert refusal == ((), "more than 100,000 values, or a value that contains itself")


def _holds_itself() -> list[Any]:
    value: list[Any] = []
    value += [value, value]
    return value


@pytest.mark.parametrize(
    ("value", "location", "problem"),
    [
        ({"a": [1, {2, 3}]}, ("a", 1), "a set has no text form"),
        ((1,), (), "a tuple has no text form"),
        ([print], (0,), "a builtin_function_or_method has no text form"),
        ({"a": int}, ("a",), "a class has no text form"),
        ({"a": {1: 2}}, ("a", "1"), "a key has to be text"),
        ({"a": math.nan}, ("a",), "not a JSON number: "),
        ([-math.inf], (0,), "not a JSON number: "),
        ([10**5000], (0,), "not a JSON number: "),
        (["x\udc80"], (0,), "half of a surrogate pair, U+DC80"),
        ({"\ud800": 1}, ("\ud800",), "half of a surrogate pair, U+D800"),
        ([_holds_itself()], (), "more than 100,000 values, or a value that contains itself"),
    ],
)
def test_what_has_no_text_form(value: Any, location: tuple[Any, ...], problem: str) -> None:
    """What could not be read back is named with its place, and not written."""
    ((at, why),) = refusals(value)
    assert at == location
    assert why.startswith(problem)
    with pytest.raises(ValueError, match=re.escape(problem)):
        dump(value)


def test_every_refusal_is_given() -> None:
    """All that cannot be written is told at once, in order."""
    value = {"a": (), 1: {"b": {()}}, "c": 1}
    assert [at for at, _ in refusals(value)] == [("a",), ("1",), ("1", "b")]


class _Text(str):
    __slots__ = ()


@pytest.mark.parametrize("make", [_Text, lambda text: {_Text(text): 1}])
def test_subclasses_are_no_plain_data(make: Callable[[str], Any]) -> None:
    """What would come back as another type is refused."""
    with pytest.raises(ValueError, match="text"):
        dump(make("x"))


def test_a_document_is_a_value() -> None:
    """Two readings of one text are equal, and show what was read."""
    assert load("a: 1", source="f") == load("a: 1", source="f")
    assert repr(load("a: 1", source="f")) == "YamlDocument(source='f', value={'a': 1})"
    assert isinstance(load("a", source="f"), YamlDocument)
