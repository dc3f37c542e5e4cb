"""Rows: what is shown of a tree on so many lines."""

from __future__ import annotations

import pytest

from mergepoint.apps.cli.progress import Progress, Row, rows_for
from mergepoint.engine.callbacks import Event
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node


def stage(name: str) -> Block:
    """Return a block of three calls."""
    return Block([Step("x", name=call) for call in ("a", "b", "c")], name=name)


STAGES = Block([stage(name) for name in ("one", "two", "three")], name="t")


def recorded_progress(tree: Node, *, done: list[str], running: list[str]) -> Progress:
    """Return a watch on a tree that has come so far."""
    watch = Progress(tree)
    for path in (*done, *running):
        watch.note(Event("start", path))
    for path in done:
        watch.note(Event("end", path))
    return watch


def shown(rows: list[Row]) -> list[str]:
    """Return the rows as text."""
    marks = {"done": "v", "running": ">", "waiting": ".", "failed": "x"}
    return [
        f"{row.guide}{marks[row.phase]} {row.part.name if row.part else row.text}" for row in rows
    ]


def test_a_tree_that_fits_is_shown_whole() -> None:
    """With room for all there is a line for every node, with branches."""
    assert shown(rows_for(Progress(stage("t")).root, 4)) == [
        "└"[:0] + ". t",
        "├─ . a",
        "├─ . b",
        "└─ . c",
    ]


def test_a_larger_tree_opens_what_runs() -> None:
    """Blocks that are done or waiting are one line each; the one that runs is open."""
    done = [f"t/one/{call}" for call in "abc"] + ["t/two/a"]
    watch = recorded_progress(STAGES, done=done, running=["t/two/b"])
    assert shown(rows_for(watch.root, 12)) == [
        "> t",
        "├─ v one",
        "├─ > two",
        "│  ├─ v a",
        "│  ├─ > b",
        "│  └─ . c",
        "└─ . three",
    ]


def test_a_failure_is_open_to_the_call() -> None:
    """The call that failed is shown, however much was done before."""
    watch = recorded_progress(STAGES, done=[f"t/one/{call}" for call in "abc"], running=["t/two/a"])
    watch.note(Event("error", "t/two/a"))
    assert "│  ├─ x a" in shown(rows_for(watch.root, 8))


def test_of_a_wide_block_some_of_each_phase_are_shown() -> None:
    """The last that are done, the first that run and wait, and how many more there are."""
    wide = Block([Step("x", name=f"s{number:03}") for number in range(300)], name="t")
    done = [f"t/s{number:03}" for number in range(100)]
    running = [f"t/s{number:03}" for number in range(100, 106)]
    found = shown(rows_for(recorded_progress(wide, done=done, running=running).root, 20))
    assert found == [
        "> t",
        "├─ v 96 more done",
        "├─ v s096",
        "├─ v s097",
        "├─ v s098",
        "├─ v s099",
        "├─ > s100",
        "├─ > s101",
        "├─ > s102",
        "├─ > s103",
        "├─ > 2 more running",
        "├─ . s106",
        "├─ . s107",
        "├─ . s108",
        "├─ . s109",
        "└─ . 190 more waiting",
    ]


def test_of_a_deep_tree_the_lines_near_the_running_call_are_shown() -> None:
    """What is left out above and below is counted."""
    deep: Block = stage("b")
    for _ in range(40):
        deep = Block([deep], name="b")
    path = "/".join(["b"] * 41 + ["b"])
    found = shown(rows_for(recorded_progress(deep, done=[], running=[path]).root, 6))
    assert found[0] == ". 39 lines above"
    assert [text.strip("│├└─ ") for text in found[1:]] == ["> b", "> b", ". a", "> b", ". c"][:5]


@pytest.mark.parametrize("wide", [1, 7, 200])
def test_there_are_never_more_rows_than_room(wide: int) -> None:
    """Whatever the tree and its phases, the rows fit."""
    parts = [
        Block([Step("x", name=f"s{number}") for number in range(wide)], name=f"b{block}")
        for block in range(9)
    ]
    tree = Block(parts, name="t")
    done = [f"t/b{block}/s0" for block in range(9)]
    running = [f"t/b{block}/s{wide - 1}" for block in range(9)] if wide > 1 else []
    root = recorded_progress(tree, done=done, running=running).root
    for room in range(-1, 60):
        assert 1 <= len(rows_for(root, room)) <= max(1, room)
