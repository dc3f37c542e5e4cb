"""Trees that are nested too deep: an error of the tree where it is made, and never of the stack."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from mergepoint.core.errors import TreeError
from mergepoint.report.svg import to_mermaid, to_svg
from mergepoint.tree.leaves import MAX_DEPTH, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node, walk
from mergepoint.tree.tree_yaml import from_yaml, to_yaml
from mergepoint.tree.validate import check


def over(ctx: Any) -> bool:
    """Return that a loop ends."""
    return True


WRAP: dict[str, Callable[[Node, str], Node]] = {
    "block": lambda node, name: Block([node, Step("-", name="last")], name=name),
    "parallel": lambda node, name: Block([node], name=name, parallel=True),
    "gate": lambda node, name: Gate(node, name=name),
    "loop": lambda node, name: Loop([node], name=name, until=over),
}


def nested(names: int, kind: str = "block") -> Node:
    """Return a tree whose longest path has so many names, or one more where loops go in twos."""
    node: Node = Step("Say a.", name="leaf")
    for number in range(2, names + 1, 2 if kind == "loop" else 1):
        node = WRAP[kind](node, f"n{number}")
    return node


def longest(tree: Node) -> int:
    """Return how many names the longest path of a tree has, counted without its own count."""
    return max(path.count("/") + 1 for path, _ in walk(tree))


@pytest.mark.parametrize("kind", WRAP)
def test_a_tree_can_be_as_deep_as_the_limit_and_no_deeper(kind: str) -> None:
    """The error has the depth, the path and the way out, where the tree is made."""
    tree = nested(MAX_DEPTH - 1, kind)
    assert check(tree) == []
    assert longest(tree) in (MAX_DEPTH - 1, MAX_DEPTH)
    with pytest.raises(TreeError) as caught:
        WRAP[kind](WRAP[kind](tree, "top1"), "top0")
    assert len(caught.value.faults) == 1
    text = str(caught.value)
    assert f"nested {MAX_DEPTH + 1} deep" in text
    assert "/.../" in text
    assert text.count("/leaf;") == 1
    assert f"{MAX_DEPTH} names in a path are the most: move the nodes" in text


def test_the_deepest_tree_is_drawn_written_and_read() -> None:
    """What can be made has drawings, a text, and an equal tree from that text."""
    tree = nested(MAX_DEPTH)
    assert from_yaml(to_yaml(tree)) == tree
    assert "<svg" in to_svg(tree)
    assert "flowchart" in to_mermaid(tree)
    assert repr(tree).startswith("Block(")


def test_yaml_that_is_too_deep_names_line_depth_and_path() -> None:
    """The fault is that of the tree, with the line of the node that is too deep."""
    text = "{prompt: Say a.}"
    for number in range(2, MAX_DEPTH + 2):
        text = f"{{name: n{number},\nnodes: [{text}]}}"
    with pytest.raises(TreeError) as caught:
        from_yaml(text, source="f.yaml")
    [fault] = caught.value.faults
    assert fault.problem.startswith(f"f.yaml:{MAX_DEPTH + 1}: nested {MAX_DEPTH + 1} deep, at n65/")


@pytest.mark.parametrize("opening", ["[", "{a: ", "- ", "{name: a, nodes: ["])
def test_absurdly_deep_yaml_is_a_tree_error(opening: str) -> None:
    """A hundred thousand brackets are refused, and not recursed into."""
    with pytest.raises(TreeError, match=r"deep|not YAML"):
        from_yaml(opening * 50_000)
