"""Inputs: pairs, files, stdin, and what is wrong with them."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.inputs import check_inputs, read_inputs
from mergepoint.tree.block import Input


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
        (["brief"], "--input 'brief': write it as key=value"),
        (["=x"], "--input '=x': write it as key=value"),
        (["a=1", "a=2"], "--input a=...: given twice"),
        (["a=@nowhere.txt"], "--input a=@nowhere.txt: No such file"),
        (["a=@latin.txt"], "--input a=@latin.txt: it is not UTF-8"),
        (["a=@."], "--input a=@.: Is a directory"),
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
        ("a.yaml", "- x\n", "it holds a list"),
        ("a.json", "[1]", "it holds a list"),
        ("a.json", '{\n"a": }', "line 2 is not JSON"),
        ("a.yaml", "a: &x 1\nb: *x\n", "a.yaml:1: anchor &x"),
        ("b.yaml", "", "No such file"),
    ],
)
def test_a_file_that_holds_no_mapping_is_refused(
    here: Path, name: str, text: str, problem: str
) -> None:
    """The error names the file, and where there is one the line."""
    (here / name.replace("b.", "c.")).write_text(text, encoding="utf-8")
    with pytest.raises(CommandError, match=f"--input-file {name}: .*{problem}"):
        read_inputs([], [Path(name)])


def test_everything_wrong_with_the_inputs_is_told_at_once() -> None:
    """Unknown names come with near ones, missing ones with the option that gives them."""
    declared = [Input("brief"), Input("likes", default=""), Input("size")]
    with pytest.raises(CommandError) as caught:
        check_inputs(declared, {"breif": "x", "size": "y"})
    said = str(caught.value)
    assert "input 'breif' is not declared (did you mean 'brief'?)" in said
    assert "the tree takes: brief, likes, size" in said
    assert "input 'brief' is missing; add --input brief=TEXT" in said
    assert "likes'" not in said


def test_inputs_that_fit_are_taken() -> None:
    """What has a default may be left out."""
    check_inputs([Input("brief"), Input("likes", default="")], {"brief": "x"})
