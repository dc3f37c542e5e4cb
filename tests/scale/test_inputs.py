"""The inputs of a batch: what each kind of file becomes, and every problem before the run."""

from __future__ import annotations

import asyncio
import io
import json
import pickle
from pathlib import Path
from typing import Any

import pytest

from mergepoint import Block, Input, Step, Template
from mergepoint.scale.inputs import (
    MOST,
    BatchInputError,
    BatchInputs,
    SortedDigests,
    open_inputs,
    parse_input,
    short_digest,
)
from mergepoint.scale.protocol import BatchInput
from mergepoint.scale.target_inputs import TargetInputs, items_of
from mergepoint.streams.recipe_yaml import LIBRARY

TREE = Block(
    [Step(Template("{{ topic }} {{ tone }} {{ words }}"), name="draft")],
    name="essay",
    inputs=(
        Input("topic", type=str),
        Input("tone", default="plain"),
        Input("words", default=100, type=int),
    ),
)
FORM = TargetInputs.of(TREE)
RECIPE = TargetInputs.of(LIBRARY.find("best_of_n"))


def read(source: Any, form: TargetInputs = FORM, **more: Any) -> list[BatchInput]:
    """Return all inputs, after a check that finds as many."""
    with open_inputs(source, form, **more) as inputs:
        number = inputs.check()
        found = list(inputs)
    assert len(found) == number
    return found


def problems(source: Any, form: TargetInputs = FORM, **more: Any) -> str:
    """Return the message of the error that a check raises."""
    with pytest.raises(BatchInputError) as raised, open_inputs(source, form, **more) as inputs:
        inputs.check()
    return str(raised.value)


def lines(folder: Path, *texts: str, name: str = "in.jsonl") -> Path:
    """Return a file of lines."""
    path = folder / name
    path.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    return path


def test_a_line_is_an_object_of_inputs(tmp_path: Path) -> None:
    """Ids are given, or the number of the line, and blank lines are none."""
    path = lines(
        tmp_path,
        '{"id": "a", "topic": "rain"}',
        "",
        '{"topic": "sun", "words": 7}',
        '{"id": 12, "topic": "fog"}',
    )
    assert read(path) == [
        BatchInput(id="a", value={"topic": "rain"}, number=0),
        BatchInput(id="3", value={"topic": "sun", "words": 7}, number=1),
        BatchInput(id="12", value={"topic": "fog"}, number=2),
    ]


def test_an_id_is_an_input_where_the_tree_declares_one() -> None:
    """A tree with an input `id` gets it too."""
    form = TargetInputs.of(Block([Step(Template("{{ id }}"), name="a")], inputs=("id",)))
    assert read([{"id": "x"}], form)[0].value == {"id": "x"}


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_the_marks_of_other_systems_are_taken(tmp_path: Path, end: str) -> None:
    """A byte order mark and the line ends of Windows change nothing, in JSONL and in CSV."""
    marked = tmp_path / "in.jsonl"
    text = end.join(['{"topic": "rain"}', '{"topic": "sun"}', ""])
    marked.write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert [one.value["topic"] for one in read(marked)] == ["rain", "sun"]
    table = tmp_path / "in.csv"
    table.write_bytes(b"\xef\xbb\xbf" + end.join(["topic", "rain", "sun", ""]).encode())
    assert [one.value["topic"] for one in read(table)] == ["rain", "sun"]


def test_a_csv_file_has_typed_cells_and_texts_of_several_lines(tmp_path: Path) -> None:
    """Cells have the types of the inputs; an empty one leaves its input out."""
    path = lines(tmp_path, "id,topic,words", 'a,"rain,\nsun",7', "b,fog,", ",ice,3", name="in.csv")
    assert read(path) == [
        BatchInput(id="a", value={"topic": "rain,\nsun", "words": 7}, number=0),
        BatchInput(id="b", value={"topic": "fog"}, number=1),
        BatchInput(id="5", value={"topic": "ice", "words": 3}, number=2),
    ]


def test_a_folder_has_a_text_for_each_input(tmp_path: Path) -> None:
    """Files are inputs by name; hidden ones are left out."""
    for name, text in {"b.txt": "sun", "a.txt": "rain", ".hidden": "no"}.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
    assert [(one.id, one.value) for one in read(tmp_path)] == [
        ("a.txt", {"topic": "rain"}),
        ("b.txt", {"topic": "sun"}),
    ]
    assert read(tmp_path, RECIPE)[0].value == [{"content": "rain"}]


def test_a_folder_serves_one_text_only(tmp_path: Path) -> None:
    """A tree with two required inputs takes no folder, and neither do folders in it."""
    two = TargetInputs.of(Block([Step(Template("{{ a }} {{ b }}"), name="s")], inputs=("a", "b")))
    (tmp_path / "one.txt").write_text("x", encoding="utf-8")
    assert "the tree takes a, b; write the inputs to a JSONL or CSV file" in problems(tmp_path, two)
    (tmp_path / "inner").mkdir()
    assert f"{tmp_path / 'inner'}: isn't a file" in problems(tmp_path)


def test_stdin_can_be_read_twice() -> None:
    """A stream is checked, and then read."""
    stream = io.BytesIO(b'{"topic": "rain"}\n{"topic": "sun"}')
    assert [one.id for one in read("-", stdin=stream)] == ["1", "2"]


def test_an_iterator_can_be_read_twice() -> None:
    """An iterator of objects is checked, and then read."""
    assert len(read(iter([{"topic": "rain"}, {"topic": "sun"}]))) == 2


def test_a_limit_stops_before_later_problems(tmp_path: Path) -> None:
    """With a limit, later lines are neither read nor checked."""
    path = lines(tmp_path, '{"topic": "rain"}', "{")
    assert len(read(path, limit=1)) == 1


def test_inputs_are_read_in_a_thread_too(tmp_path: Path) -> None:
    """The asynchronous reader yields the same inputs."""
    path = lines(tmp_path, *(f'{{"topic": "{number}"}}' for number in range(150)))

    async def collected(inputs: BatchInputs) -> list[BatchInput]:
        return [one async for one in inputs.stream()]

    with open_inputs(path, FORM) as inputs:
        assert asyncio.run(collected(inputs)) == list(inputs)


def test_items_of_a_recipe_are_texts_or_objects_with_content() -> None:
    """An object is one item, whose other fields are props, or has a list of items."""
    given = [
        {"id": "a", "content": "Q1", "lang": "en"},
        {"id": "b", "items": ["Q2", {"content": "Q3", "props": {"lang": "de"}}]},
    ]
    found = read(given, RECIPE)
    assert [one.value for one in found] == [
        [{"content": "Q1", "props": {"lang": "en"}}],
        ["Q2", {"content": "Q3", "props": {"lang": "de"}}],
    ]
    text, thing = items_of(found[1].value)
    assert (text, thing.content, dict(thing.props)) == ("Q2", "Q3", {"lang": "de"})


FAULTY = {
    "half": ('{"topic": "rai', "in.jsonl:1, column 11: the line stops in the middle"),
    "comma": ('{"topic": "a" "b"}\n', "in.jsonl:1, column 15: isn't JSON"),
    "list": ('["rain"]\n', "in.jsonl:1: is a list, not an object of inputs"),
    "number": ("7\n", "in.jsonl:1: is 7, not an object"),
    "nan": ('{"topic": NaN}\n', "in.jsonl:1: NaN isn't JSON"),
    "twice": ('{"topic": "a", "topic": "b"}\n', "in.jsonl:1: 'topic' is there twice"),
    "unknown": ('{"topci": "a", "topic": "b"}\n', "'topci' is not declared (did you mean 'topic'"),
    "missing": ('{"tone": "dry"}\n', "input 'topic' is missing; the tree takes: topic, tone"),
    "type": ('{"topic": 3}\n', "input 'topic' takes a value of type string, and was given 3"),
    "id": ('{"id": ["a"], "topic": "b"}\n', 'the id is ["a"]; an id is text or a number'),
    "no id": ('{"id": null, "topic": "b"}\n', "the id is null; an id is text or a number"),
    "blank id": ('{"id": " ", "topic": "b"}\n', "the id is empty"),
    "deep": ('{"topic": ' + "[" * 100_000 + "\n", "in.jsonl:1"),
    "empty": ("", "there are no inputs"),
    "blank": ("\n\n", "there are no inputs"),
}


@pytest.mark.parametrize(("text", "said"), FAULTY.values(), ids=FAULTY)
def test_a_faulty_line_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """The message has file, line and column, the problem, and what to do."""
    monkeypatch.chdir(tmp_path)
    Path("in.jsonl").write_text(text, encoding="utf-8")
    assert said in problems("in.jsonl")


TABLES = {
    "unknown": ("topci,topic\na,b\n", "in.csv:1: column 'topci' is no input (did you mean 'topic'"),
    "missing": ("tone\ndry\n", "in.csv:1: there is no column for input 'topic'"),
    "twice": ("topic,topic\na,b\n", "in.csv:1: column 'topic' is there twice"),
    "unnamed": ("topic,\na,b\n", "in.csv:1: a column has no name"),
    "semicolons": ("topic;tone\na;b\n", "separate columns by commas"),
    "ragged": ("topic,tone\na\n", "in.csv:2: has 1 cell under 2 columns"),
    "empty cell": ("topic,tone\n,dry\n", "in.csv:2: input 'topic' is missing"),
    "type": ("topic,words\na,many\n", "in.csv:2: input 'words' takes a value of type integer"),
    "quotes": ('topic\na\n"b\n', "in.csv:3: isn't CSV (unexpected end of data)"),
    "header only": ("topic\n", "there are no inputs"),
}


@pytest.mark.parametrize(("text", "said"), TABLES.values(), ids=TABLES)
def test_a_faulty_row_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, said: str
) -> None:
    """Problems of the header are reported once, those of a row with its line."""
    monkeypatch.chdir(tmp_path)
    Path("in.csv").write_text(text, encoding="utf-8")
    assert said in problems("in.csv")


ITEMS = {
    "no content": ({"contents": "a"}, "has no 'content' (did you mean 'contents'?)"),
    "no list": ({"items": "a"}, "'items' must be a list of one or more items"),
    "no items": ({"items": []}, "'items' must be a list of one or more items"),
    "both": ({"items": ["a"], "lang": "de"}, "next to 'items' there is only 'id', not 'lang'"),
    "inside": ({"items": ["a", {"lang": "de"}]}, "item 2 has no 'content'"),
}


@pytest.mark.parametrize(("given", "said"), ITEMS.values(), ids=ITEMS)
def test_a_faulty_item_is_named(given: dict[str, Any], said: str) -> None:
    """An item needs content, and a list of items is alone."""
    assert said in problems([given], RECIPE)


def test_other_encodings_are_named(tmp_path: Path) -> None:
    """Latin-1 and UTF-16 files are refused, with the way to convert them."""
    latin = tmp_path / "latin.jsonl"
    latin.write_bytes('{"topic": "a"}\n{"topic": "über"}\n'.encode("latin-1"))
    assert f"{latin}:2: byte 12 of the line is not UTF-8" in problems(latin)
    wide = tmp_path / "wide.jsonl"
    wide.write_bytes('{"topic": "a"}\n'.encode("utf-16"))
    assert "iconv -f UTF-16" in problems(wide)
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "a.txt").write_bytes(b"\xff")
    assert "byte 1 is not UTF-8" in problems(folder)


def test_a_missing_file_is_named_with_a_similar_one(tmp_path: Path) -> None:
    """The message has the nearest name, or the folder that is missing."""
    lines(tmp_path, name="questions.jsonl")
    assert "(did you mean 'questions.jsonl'?)" in problems(tmp_path / "question.jsonl")
    assert "there is no folder" in problems(tmp_path / "none" / "a.jsonl")


def test_both_lines_of_a_repeated_id_are_named(tmp_path: Path) -> None:
    """An id may repeat another one or the number of a line without an id."""
    path = lines(
        tmp_path,
        '{"id": "a", "topic": "x"}',
        '{"id": "a", "topic": "y"}',
        '{"id": "4", "topic": "z"}',
        '{"topic": "w"}',
    )
    said = problems(path)
    assert f"{path}:2: the id 'a' is that of {path}:1 too" in said
    assert f"{path}:4: the id '4', its line's number, is that of {path}:3 too" in said


def test_all_problems_are_reported_together(tmp_path: Path) -> None:
    """The first problems are listed, and the others counted."""
    path = lines(tmp_path, *["{"] * (MOST + 5), '{"topic": "fine"}')
    with pytest.raises(BatchInputError) as raised, open_inputs(path, FORM) as inputs:
        inputs.check()
    error = raised.value
    assert (len(error.faults), error.more) == (MOST, 5)
    assert str(error).startswith(f"the inputs have {MOST + 5} problems:\n  {path}:1")
    assert str(error).endswith("and 5 more")
    assert str(pickle.loads(pickle.dumps(error))) == str(error)  # noqa: S301


def test_a_file_that_changes_after_its_check_is_checked_again(tmp_path: Path) -> None:
    """Reading raises the problem of a line that was written after the check."""
    path = lines(tmp_path, '{"topic": "rain"}')
    with open_inputs(path, FORM) as inputs:
        inputs.check()
        path.write_text('{"topic": "rain"}\n{"topic"\n', encoding="utf-8")
        with pytest.raises(BatchInputError, match=":2"):
            list(inputs)


def test_one_object_can_be_parsed_alone() -> None:
    """A value of a stream of the caller's own has the same checks."""
    assert parse_input({"topic": "rain"}, 4, FORM).id == "5"
    with pytest.raises(BatchInputError, match="input 3: is str, not a mapping"):
        parse_input("rain", 2, FORM)


def test_digests_are_found_and_repeated_ones_named() -> None:
    """Every digest that was put in is found, and no other one."""
    digests = [short_digest(json.dumps(number)) for number in range(500)]
    known = SortedDigests([*digests, digests[7]])
    assert all(one in known for one in digests)
    assert short_digest("500") not in known
    assert known.repeated() == {digests[7]}
