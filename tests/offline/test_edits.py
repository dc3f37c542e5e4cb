"""Edits: read from lines, applied to texts of each form, settled where they contradict."""

from __future__ import annotations

import pytest

from mergepoint.offline.edits import (
    MOST_ADDED,
    Edit,
    Form,
    applied,
    chosen_in,
    edits_in,
    form_of,
    options_in,
)

OPTIONS = "1. A door.\n2. A window.\nChoice: 1"


def test_edits_are_read_from_lines() -> None:
    """Replace, cut and add, with straight or curly quotes and any bullet; other lines are none."""
    text = (
        'Edits:\n- replace "a" with "b"\n* Cut \u201cvery\u201d\n1. add "c, d"\n'
        '- none\nadd nothing\nremove "x" at the end\nchange "y" to "z"'
    )
    assert edits_in(text) == (
        Edit("a", "b"),
        Edit("very"),
        Edit(new="c, d"),
        Edit("x"),
        Edit("y", "z"),
    )


@pytest.mark.parametrize("edit", [Edit("a", "b"), Edit("a"), Edit(new="b")])
def test_an_edit_is_read_as_it_is_written(edit: Edit) -> None:
    """What an edit says of itself gives the edit back."""
    assert edits_in(f"- {edit}") == (edit,)
    assert edit.can_be_told
    assert not Edit('say "a"').can_be_told


@pytest.mark.parametrize(
    ("text", "form"),
    [
        (OPTIONS, "choice"),
        ("Mood: calm\nLight: low", "lines"),
        ("The Night Market", "title"),
        ("Poster of a door, red, no people", "phrases"),
        ("It is red. It is old.", "prose"),
        ("A door.", "prose"),
    ],
)
def test_forms_are_told_apart(text: str, form: Form) -> None:
    """A choice, labelled lines, a title, phrases and prose."""
    assert form_of(text) == form


@pytest.mark.parametrize(
    ("text", "edit", "result"),
    [
        ("A very old door.", Edit("very"), "A old door."),
        ("Very old doors.", Edit("Very"), "Old doors."),
        ("It is calm. Nothing else counts.", Edit("Nothing else counts."), "It is calm."),
        ("art and party", Edit("art", "craft"), "craft and party"),
        ("Mood: calm\nLight: low", Edit(new="Angle: high"), "Mood: calm\nLight: low\nAngle: high"),
        ("It is red. It is old.", Edit(new="It is big."), "It is red. It is old. It is big."),
        ("Poster of a door, red", Edit(new="low light"), "Poster of a door, red, low light"),
        ("Poster of a door, no sun", Edit(new="fog"), "Poster of a door, fog, no sun"),
        ("Poster of a door, nothing red", Edit(new="fog"), "Poster of a door, fog, nothing red"),
        ("A Title", Edit(new="more"), "A Title"),
        ("It is red. It is old.", Edit(new="it is RED"), "It is red. It is old."),
        (OPTIONS, Edit("Choice: 1", "Choice: 2"), "1. A door.\n2. A window.\nChoice: 2"),
        ("A door.", Edit("window", "gate"), "A door."),
    ],
)
def test_an_edit_does_what_it_says(text: str, edit: Edit, result: str) -> None:
    """Whole words are replaced and cut, additions go where the form has room for them."""
    assert applied(text, [edit]) == result


def test_the_change_that_most_want_is_made() -> None:
    """Of edits to the same words the most frequent wins, of equal ones the first."""
    wishes = [Edit("a", "b"), Edit("a", "c"), Edit("a", "c")]
    assert applied("a", wishes) == "c"
    assert applied("a", wishes[:2]) == "b"


def test_additions_are_made_once_and_not_without_end() -> None:
    """What is added twice stands there once, and a text does not grow by more than a few."""
    twice = applied("It is red. It is old.", [Edit(new="So."), Edit(new="So.")])
    assert twice == "It is red. It is old. So."
    many = applied("It is red.", [Edit(new=f"Number n{n}x.") for n in range(20)])
    assert many.count("Number") == MOST_ADDED


def test_options_and_the_chosen_one_are_found() -> None:
    """Numbered lines or a repeated label are options; a choice beyond them is none."""
    assert options_in(OPTIONS) == ("A door.", "A window.")
    assert options_in("<answer>x</answer><note>n</note><answer>y</answer>") == ("x", "y")
    assert options_in("nothing") == ()
    assert chosen_in(OPTIONS) == "A door."
    assert chosen_in(OPTIONS.replace("Choice: 1", "Choice: 9")) == ""
    assert chosen_in("1. A.\n2. B.") == ""
