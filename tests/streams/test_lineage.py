"""Lineage: the order of ids, ancestors, and the drawings."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from tests.streams.laws import UNHURRIED, Work, everything, inputs, recipes

from mergepoint.streams.provenance import ancestor, lineage, lineage_mermaid, lineage_order
from mergepoint.streams.stage_run import entered
from mergepoint.streams.thing import Thing, child, joined, stamp


def family() -> list[Thing]:
    """Return a question, three answers, and what a vote made of them."""
    question = next(entered([Thing("q", {"topic": "cats"})]))
    answers = [
        stamp(
            question,
            child(question, n).redrafted(f"a{n}"),
            block="generate",
            stage_id="s1",
            model="m",
        )
        for n in range(3)
    ]
    judged = [
        stamp(one, one.plus(score=n), block="critique", stage_id="s2")
        for n, one in enumerate(answers)
    ]
    best = joined(judged, "s3#0").redrafted("a2")
    return [*judged, stamp(best.base, best, block="vote", stage_id="s3")]


def test_ids_are_ordered_by_their_numbers() -> None:
    """Numbers count as numbers, parents come before children, and stages after inputs."""
    ordered = [
        "0",
        "0.0",
        "0.2",
        "0.2.1",
        "0.10",
        "1",
        "s.stage_2.vote#0",
        "s.stage_2.vote#0.1",
        "s.stage_2.vote#10",
        "s.stage_10.vote#0",
    ]
    mixed = random.Random(1).sample(ordered, len(ordered))  # noqa: S311  (no secrets)
    assert sorted(mixed, key=lineage_order) == ordered


@pytest.mark.parametrize(
    ("name", "levels", "above"),
    [
        ("0.2.1", 1, "0.2"),
        ("0.2.1", 2, "0"),
        ("0.2.1", 9, "0"),
        ("0.2.1", None, "0"),
        ("0", 1, "0"),
        ("a.b#3", 1, "a.b#3"),
        ("a.b#3.1.2", 1, "a.b#3.1"),
        ("a.b#3.1.2", None, "a.b#3"),
    ],
)
def test_an_ancestor_is_read_from_an_id(name: str, levels: int | None, above: str) -> None:
    """An id tells its ancestors; what several were made into begins anew."""
    assert ancestor(name, levels) == above


def test_a_lineage_is_drawn_as_text() -> None:
    """Each Thing has a line with its parents and maker, and below it what was made of it later."""
    assert lineage(family()) == (
        '0  input at input: content="q", topic="cats"\n'
        '0.0  from 0  generate at s1 (m): content="a0"\n'
        "    critique at s2: score=0\n"
        '0.1  from 0  generate at s1 (m): content="a1"\n'
        "    critique at s2: score=1\n"
        '0.2  from 0  generate at s1 (m): content="a2"\n'
        "    critique at s2: score=2\n"
        's3#0  from 0.0, 0.1, 0.2  vote at s3: content="a2"\n'
    )


def test_parents_that_are_not_given_are_shown() -> None:
    """The lineage of one Thing names the parents that it knows nothing else of."""
    assert lineage(family()[-1]).splitlines()[1] == "0.0  (its history is not given)"


def test_a_lineage_is_drawn_as_mermaid() -> None:
    """The flowchart has a box for each Thing and an arrow from each parent."""
    text = lineage_mermaid(family())
    assert text.startswith('flowchart TB\n  t0["0<br/>input at input"]\n')
    assert '  t4["s3#35;0<br/>vote at s3"]\n' in text
    assert text.endswith("  t0 --> t3\n  t1 --> t4\n  t2 --> t4\n  t3 --> t4\n")


def test_large_lineages_are_cut() -> None:
    """After so many Things the rest is counted, in both forms."""
    things = list(entered(range(30)))
    assert lineage(things, most=20).endswith("and 10 more\n")
    assert lineage_mermaid(things, most=20).startswith("%% 10 more are omitted\n")


def test_no_things_have_no_lineage() -> None:
    """Nothing drawn is an empty drawing, and so is a Thing that is in no stream."""
    assert lineage([]) == "" == lineage(Thing("x"))
    assert lineage_mermaid([]) == "flowchart TB\n"


@UNHURRIED
@given(inputs, recipes)
def test_every_lineage_can_be_drawn(things: list[Thing], recipe: list[Work]) -> None:
    """Every id is drawn once, after its parents."""
    found = everything(things, recipe)
    names = [
        line.split("  ")[0] for line in lineage(found, most=10**6).splitlines() if line[:1] != " "
    ]
    assert sorted(filter(None, names)) == sorted({one.id for one in found})
    for one in found:
        assert all(names.index(parent) < names.index(one.id) for parent in one.parents)
    assert lineage_mermaid(found, most=10**6).count("\n  t") >= len({one.id for one in found})
