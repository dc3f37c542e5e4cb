"""Inputs: pairs, files, stdin, and what is wrong with them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from tests.apps.command import command

from mergepoint.apps.cli.inputs import check_inputs, read_inputs, typed
from mergepoint.apps.cli.output import CommandError
from mergepoint.tree.nodes import Input


def test_pairs_are_text_up_to_the_first_equals_sign() -> None:
    """A value may hold anything, and is never read as another type."""
    assert read_inputs(["a=1", "b=x=y", "c="], []) == {"a": "1", "b": "x=y", "c": ""}


def test_a_pair_may_name_a_file(here: Path) -> None:
    """`key=@file` gives the file's text."""
    (here / "brief.txt").write_text("Ein Bild für später\n", encoding="utf-8")
    assert read_inputs(["brief=@brief.txt"], []) == {"brief": "Ein Bild für später\n"}


def test_a_pair_and_a_file_may_come_from_stdin(monkeypatch: pytest.MonkeyPatch) -> None:
    """A dash stands for stdin in both forms."""
    monkeypatch.setattr("sys.stdin", io.StringIO("from a pipe"))
    assert read_inputs(["brief=@-"], []) == {"brief": "from a pipe"}
    monkeypatch.setattr("sys.stdin", io.StringIO("brief: from a pipe\n"))
    assert read_inputs([], [Path("-")]) == {"brief": "from a pipe"}


def test_files_hold_yaml_or_json_and_pairs_stand_over_them(here: Path) -> None:
    """Values of files keep their types; a later file, and any pair, stands over an earlier one."""
    (here / "a.yaml").write_text("likes:\n- rain\ncount: 3\n", encoding="utf-8")
    (here / "b.json").write_text('{"count": 4, "brief": "x"}', encoding="utf-8")
    found = read_inputs(["brief=y"], [Path("a.yaml"), Path("b.json")])
    assert found == {"likes": ["rain"], "count": 4, "brief": "y"}


@pytest.mark.parametrize(
    ("pairs", "problem"),
    [
        (["brief"], "Invalid --input 'brief'. Use key=value"),
        (["=x"], "Invalid --input '=x'. Use key=value"),
        (["a=1", "a=2"], "--input a=... is set twice"),
        (["a=@nowhere.txt"], "Can't read --input a=@nowhere.txt: No such file"),
        (["a=@latin.txt"], "Can't read --input a=@latin.txt: it isn't UTF-8"),
        (["a=@."], "Can't read --input a=@.: Is a directory"),
    ],
)
def test_a_pair_that_cannot_be_read_is_refused(here: Path, pairs: list[str], problem: str) -> None:
    """The error names the option as it was written."""
    (here / "latin.txt").write_bytes("für".encode("latin-1"))
    with pytest.raises(CommandError) as caught:
        read_inputs(pairs, [])
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("a.yaml", "- x\n", "contains a list"),
        ("a.json", "[1]", "contains a list"),
        ("a.json", '{\n"a": }', "line 2 isn't JSON"),
        ("a.yaml", "a: &x 1\nb: *x\n", "a.yaml:1: anchor &x"),
        ("b.yaml", "", "No such file"),
    ],
)
def test_a_file_that_holds_no_mapping_is_refused(
    here: Path, name: str, text: str, problem: str
) -> None:
    """The error names the file, and where there is one the line."""
    (here / name.replace("b.", "c.")).write_text(text, encoding="utf-8")
    with pytest.raises(CommandError, match=f"--input-file {name}.*{problem}"):
        read_inputs([], [Path(name)])


def test_everything_wrong_with_the_inputs_is_told_at_once() -> None:
    """Unknown names come with near ones, missing ones with the option that gives them."""
    declared = [Input("brief"), Input("likes", default=""), Input("size")]
    with pytest.raises(CommandError) as caught:
        check_inputs(declared, {"breif": "x", "size": "y"})
    said = str(caught.value)
    assert "Unknown input 'breif' (did you mean 'brief'?)" in said
    assert "Inputs of the tree: brief, likes, size" in said
    assert "Input 'brief' is missing. Add --input brief=TEXT" in said
    assert "likes'" not in said


def test_inputs_that_fit_are_taken() -> None:
    """What has a default may be left out."""
    check_inputs([Input("brief"), Input("likes", default="")], {"brief": "x"})


def test_texts_of_typed_inputs_are_read_as_json() -> None:
    """Text stays text where the tree declares text, or nothing."""
    declared = [Input("n", type=int), Input("on", type=bool), Input("tags", type=list)]
    declared += [Input("word", type=str), Input("any")]
    given = {"n": "3", "on": "true", "tags": '["a"]', "word": "3", "any": "3"}
    found = typed(declared, given)
    assert found == {"n": 3, "on": True, "tags": ["a"], "word": "3", "any": "3"}
    check_inputs(declared, found)


def test_texts_of_another_type_are_told_with_an_example() -> None:
    """What is no JSON, and JSON of another type."""
    declared = [Input("n", type=int), Input("tags", type=list)]
    with pytest.raises(CommandError) as caught:
        typed(declared, {"n": "three", "tags": "a, b"})
    said = str(caught.value)
    assert "input 'n' takes a value of type integer, and was given 'three' (str)" in said
    assert "Example: --input n=3" in said
    assert """Example: --input 'tags=["a", "b"]'""" in said
    with pytest.raises(CommandError, match=r"was given 3\.5"):
        check_inputs(declared, typed(declared, {"n": "3.5", "tags": "[]"}))


TYPED = """\
name: typed
inputs: [{name: lines, type: integer}, {name: tags, type: array, default: [a]}]
nodes:
  - prompt: {template: "Write {{ lines }} lines about {{ tags }}."}
"""


def test_a_run_takes_typed_inputs(here: Path) -> None:
    """The record has values, not their texts; a wrong one is refused before the run."""
    (here / "typed.yaml").write_text(TYPED, encoding="utf-8")
    given = ("run", "typed.yaml", "--run-id", "r1", "--input")
    refused = command(*given, "lines=many")
    assert refused.code == 2
    assert "input 'lines' takes a value of type integer, and was given 'many'" in refused.err
    assert command(*given, "lines=2", "--input", 'tags=["b", "c"]').code == 0
    assert command("show", "r1", "--json").data["inputs"] == {
        "lines": 2,
        "tags": ["b", "c"],
    }
