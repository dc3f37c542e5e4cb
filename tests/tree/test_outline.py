"""Outline: the shape of a tree as plain data, and a tree of that shape again."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given, settings
from pydantic import BaseModel

from mergepoint.testing.random_trees import trees
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, find, root_path, walk
from mergepoint.tree.prompts import PromptContext, Template
from mergepoint.tree.transform import from_outline, outline

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)


class Verdict(BaseModel):
    """A structured answer."""

    winner: str


def anything(ctx: PromptContext) -> str:
    """Return a prompt that declares nothing."""
    return "x"


TREE = Block(
    [
        Block(
            [
                Step(Template("{{ topic }}"), system=Template("{{ tone }}"), merge="none"),
                Step(anything, schema=Verdict, capture_key="verdict"),
            ],
            parallel=True,
            merge="last_response",
            capture_key="part",
        ),
        Step("x", name="end"),
    ],
    inputs=["topic", "tone"],
)


def test_an_outline_says_what_merges_need() -> None:
    """Paths, kinds, modes and captures are there, and what a node has beside the usual."""
    assert outline(TREE) == {
        "path": "pipeline",
        "kind": "block",
        "merge": "all_messages",
        "nodes": [
            {
                "path": "pipeline/block_01",
                "kind": "block",
                "merge": "last_response",
                "capture_key": "part",
                "parallel": True,
                "nodes": [
                    {
                        "path": "pipeline/block_01/step_01",
                        "kind": "step",
                        "merge": "none",
                        "reads": ["topic", "tone"],
                    },
                    {
                        "path": "pipeline/block_01/step_02",
                        "kind": "step",
                        "merge": "all_messages",
                        "capture_key": "verdict",
                        "structured": True,
                    },
                ],
            },
            {"path": "pipeline/end", "kind": "step", "merge": "all_messages"},
        ],
    }


def test_an_outline_of_a_part_keeps_its_path() -> None:
    """A part is told with the paths it has in the whole."""
    part = find(TREE, "pipeline/block_01")
    assert outline(part, "pipeline/block_01") == outline(TREE)["nodes"][0]


def shape(tree: Node) -> list[tuple[Any, ...]]:
    """Return what of a tree decides its merges."""
    return [
        (
            path,
            node.kind,
            node.merge,
            node.capture_key,
            isinstance(node, Block) and node.parallel,
            isinstance(node, Step) and node.schema is not None,
        )
        for path, node in walk(tree)
    ]


def test_a_tree_from_an_outline_has_its_shape() -> None:
    """Paths, modes, captures, parallel blocks and structured steps come back."""
    again = from_outline(outline(TREE))
    assert shape(again) == shape(TREE)
    assert root_path(again) == "pipeline"


@UNHURRIED
@given(trees())
def test_any_outline_comes_back_through_json(tree: Node) -> None:
    """An outline is plain JSON, and a tree made from it has the same shape."""
    assert shape(from_outline(json.loads(json.dumps(outline(tree))))) == shape(tree)
