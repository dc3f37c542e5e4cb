"""Block and Input: children, names, paths, and every fault a block finds in itself."""

from __future__ import annotations

import copy
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from mergepoint.core.errors import Fault, TreeError
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import (
    REQUIRED,
    Block,
    Input,
    Node,
    children,
    find,
    root_path,
    walk,
)

TREE = Block(
    [
        Step("a"),
        Block([Step("b"), Step("c", name="last")], name="middle"),
        Block([Step("d")]),
    ]
)


def faults(**fields: Any) -> list[str]:
    """Return the problems of a block with these fields."""
    with pytest.raises(TreeError) as caught:
        Block(**{"nodes": [], **fields})
    return [fault.problem for fault in caught.value.faults]


def test_a_block_has_defaults_for_all_but_its_nodes() -> None:
    """A list of nodes is enough."""
    block = Block([Step("a")])
    assert (block.name, block.merge, block.capture_key) == (None, "all_messages", None)
    assert (block.parallel, block.inputs, block.meta) == (False, (), {})
    assert block.nodes == (Step("a"),)
    assert block.kind == "block"


def test_a_block_is_frozen() -> None:
    """No field can be replaced, and the nodes are a tuple of their own."""
    nodes: list[Node] = [Step("a")]
    block = Block(nodes)
    nodes.append(Step("b"))
    assert block.nodes == (Step("a"),)
    with pytest.raises(FrozenInstanceError):
        block.parallel = True  # type: ignore[misc]


def test_meta_is_a_sealed_copy() -> None:
    """Neither the block's meta nor the mapping it came from changes it."""
    meta = {"k": 1}
    block = Block([], meta=meta)
    meta["k"] = 2
    written: Any = block.meta
    with pytest.raises(TypeError):
        written["k"] = 3
    assert block.meta == {"k": 1}


def test_nodes_can_come_from_a_generator() -> None:
    """Any iterable of nodes will do, and is gone through once."""
    nodes: Any = (Step(text) for text in "ab")
    assert Block(nodes).nodes == (Step("a"), Step("b"))


def test_inputs_take_three_forms() -> None:
    """A name, a pair of name and default, and an Input mean the same."""
    block = Block([], inputs=["a", ("b", "x"), Input("c", default=None)])
    assert block.inputs == (Input("a"), Input("b", default="x"), Input("c", default=None))
    assert block.declared_inputs == block.inputs


def test_an_input_without_default_is_required() -> None:
    """None is a default like any other; leaving it out is another thing."""
    assert Input("a").default is REQUIRED
    assert Input("a", default=None).default is None
    assert repr(Input("a")) == "Input(name='a', default=REQUIRED, type=None)"


@pytest.mark.parametrize("name", ["", "a b", 3])
def test_a_bad_input_name_is_refused(name: Any) -> None:
    """A name that no template could read is refused."""
    with pytest.raises(TreeError, match=r"^input: "):
        Input(name)


@pytest.mark.parametrize("nodes", ["text", Step("a"), Block([]), 3, None])
def test_nodes_that_are_no_list_are_refused(nodes: object) -> None:
    """A lone node or a text is not taken for a list."""
    assert faults(nodes=nodes) == [f"nodes is a list of nodes, not {type(nodes).__name__}"]


@pytest.mark.parametrize("child", ["text", None, [Step("a")], lambda ctx: "x"])
def test_a_child_that_is_no_node_is_refused(child: object) -> None:
    """The fault says which child, what it is, and what to do."""
    kind = type(child).__name__
    way_out = "a function in Call(...)" if callable(child) else "a prompt in Step(...)"
    assert faults(nodes=[Step("a"), child]) == [
        f"child 2 is {kind}, not a Step, Call, Gate, Block or Loop; wrap {way_out}"
    ]


def test_children_of_one_name_are_refused() -> None:
    """Two explicit names collide."""
    assert faults(nodes=[Step("a", name="x"), Step("b"), Block([], name="x")]) == [
        "children 1 and 3 are both named 'x'; give one another name"
    ]


def test_a_name_that_another_child_has_by_position_is_refused() -> None:
    """An explicit name collides with the effective name of an unnamed sibling."""
    assert faults(nodes=[Step("a", name="step_02"), Step("b")]) == [
        "children 1 and 2 are both named 'step_02'; give one another name"
    ]


def test_steps_and_blocks_are_numbered_by_position_together() -> None:
    """The number is the place among all siblings, so kinds never collide."""
    assert Block([Step("a"), Block([]), Step("b")]).names == ("step_01", "block_02", "step_03")


def test_a_bad_name_is_refused() -> None:
    """The rules of names hold for blocks."""
    assert "which separates paths" in faults(name="a|b")[0]


def test_an_unknown_merge_mode_is_refused() -> None:
    """The fault lists the modes there are."""
    assert "allowed are 'all_messages', 'last_response', 'none'" in faults(merge="some")[0]


def test_a_bad_capture_key_is_refused() -> None:
    """A key that no template could read is refused."""
    assert "'a b'" in faults(capture_key="a b")[0]


@pytest.mark.parametrize("parallel", [1, None, "yes"])
def test_parallel_is_a_bool(parallel: object) -> None:
    """Nothing is taken for true or false."""
    assert faults(parallel=parallel) == [f"parallel is True, False or 'threads', not {parallel!r}"]


def test_inputs_that_are_a_text_are_refused() -> None:
    """A text is not taken for a list of one-letter names."""
    assert faults(inputs="topic") == ["inputs is a list of names, not the text 'topic'"]


def test_all_faults_are_listed_at_once() -> None:
    """One error names everything that is wrong, with the block's name as path."""
    with pytest.raises(TreeError) as caught:
        Block(["x"], name="b", merge="all", parallel=1)  # type: ignore[list-item, arg-type]
    assert [fault.path for fault in caught.value.faults] == ["b", "b", "b"]
    assert caught.value.pipeline_path == "b"


def test_a_name_that_is_no_text_is_no_path() -> None:
    """A fault of a block with an unusable name has no path yet."""
    with pytest.raises(TreeError) as caught:
        Block([], name=3)  # type: ignore[arg-type]
    assert caught.value.faults == (Fault("", "a name must be text, not int"),)


@pytest.mark.parametrize(
    ("tree", "path"),
    [
        (Block([]), "pipeline"),
        (Block([], name="run"), "run"),
        (Step("a"), "step_01"),
        (Step("a", name="ask"), "ask"),
    ],
)
def test_root_path(tree: Node, path: str) -> None:
    """The root's path is its name, else a word for its kind."""
    assert root_path(tree) == path


def test_walk_gives_parents_first() -> None:
    """Every node comes with its path, in tree order."""
    assert [path for path, _ in walk(TREE)] == [
        "pipeline",
        "pipeline/step_01",
        "pipeline/middle",
        "pipeline/middle/step_01",
        "pipeline/middle/last",
        "pipeline/block_03",
        "pipeline/block_03/step_01",
    ]


def test_walk_keeps_the_path_it_is_given() -> None:
    """A part has the path it has in the whole."""
    part = find(TREE, "pipeline/middle")
    assert [path for path, _ in walk(part, "pipeline/middle")] == [
        "pipeline/middle",
        "pipeline/middle/step_01",
        "pipeline/middle/last",
    ]


def test_one_node_can_stand_in_several_places() -> None:
    """Nodes are values: the same one twice gives two paths."""
    step = Step("a")
    assert [path for path, _ in walk(Block([step, step]))][1:] == [
        "pipeline/step_01",
        "pipeline/step_02",
    ]


def test_children_of_a_step_are_none() -> None:
    """A step has nothing below it."""
    assert children(Step("a"), "p") == []


def test_find_gives_the_node() -> None:
    """A node is found by its whole path."""
    assert find(TREE, "pipeline/middle/last") == Step("c", name="last")
    assert find(TREE, "pipeline") is TREE


def test_find_nothing() -> None:
    """A path that is none is an error that lists those that are."""
    with pytest.raises(LookupError) as caught:
        find(TREE, "middle")
    assert "no node at 'middle'" in str(caught.value)
    assert "\n  pipeline/middle/last" in str(caught.value)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"inputs": 3}, "inputs is a list of names, not 3"),
        ({"inputs": [3]}, "an input is a name, (name, default) or Input, not 3"),
        (
            {"inputs": [("a", 1, 2)]},
            "an input is a name, (name, default) or Input, not ('a', 1, 2)",
        ),
        ({"meta": "x"}, "meta is a mapping, not 'x'"),
    ],
)
def test_fields_of_another_type_are_faults(fields: dict[str, Any], problem: str) -> None:
    """Whatever is wrong with a block is a TreeError that says what was wanted."""
    assert faults(**fields) == [problem]


def test_a_bad_input_is_listed_with_the_other_faults() -> None:
    """An input's fault has the block's path and does not wait for the others to be mended."""
    with pytest.raises(TreeError) as caught:
        Block([], name="b", merge="all", inputs=["a b"])  # type: ignore[arg-type]
    assert [fault.path for fault in caught.value.faults] == ["b", "b"]


def test_an_input_that_was_copied_is_still_required() -> None:
    """A copy of an input without a default has none either."""
    assert copy.deepcopy(Input("a")).default is REQUIRED
