"""LangGraph's drawings of our graphs: whole, alone and inside of a host."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.runnables.graph import Graph as Drawing
from langgraph.graph import START, MessagesState, StateGraph

from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.streams.langgraph import compile_recipe
from mergepoint.streams.recipe_yaml import load_recipe
from mergepoint.targets import find_target
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Node, root_path, walk

GRAPHS = Path(__file__).parents[2] / "graphs"
TREES = sorted(path.parent.name for path in GRAPHS.glob("*/graph.py"))
RECIPES = sorted(path.parent.name for path in GRAPHS.glob("*/recipe.yaml"))


def tree_of(name: str) -> Node:
    """Return the tree of an example."""
    found: Any = find_target(str(GRAPHS / name / "graph.py"))
    tree: Node = getattr(found, "tree", found)
    return tree


def hosted(*graphs: Any) -> Any:
    """Return a host graph with our graphs one after the other, named as nodes of ours may be."""
    host: Any = StateGraph(MessagesState)
    names = ["planning", "second", "third"][: len(graphs)]
    for name, graph in zip(names, graphs, strict=True):
        host.add_node(name, graph)
    for before, after in zip([START, *names], names, strict=False):
        host.add_edge(before, after)
    return host.compile()


@dataclass
class Picture:
    """A Mermaid text, read: the boxes around each node, and the edges."""

    nodes: dict[str, tuple[str, ...]] = field(default_factory=dict)
    boxes: list[str] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)

    @classmethod
    def of(cls, text: str) -> Picture:
        """Read a text; ids and boxes have to be unique, and each line has to be one we know."""
        found, around = cls(), list[str]()
        for line in map(str.strip, text.split("graph TD;\n", 1)[1].splitlines()):
            if match := re.fullmatch(r"subgraph ([\w./-]+)", line):
                around.append(match[1])
                assert match[1] not in found.boxes
                found.boxes.append(match[1])
            elif line == "end":
                around.pop()
            elif match := re.fullmatch(
                r"([\w\\-]+) (?:-->|-\.->|-- .* -->|-\. .* \.->) (.+);", line
            ):
                found.edges.append((match[1], match[2]))
            elif match := re.fullmatch(r"([\w\\-]+)\((?:.*)\)(?::::\w+)?", line):
                assert match[1] not in found.nodes
                found.nodes[match[1]] = tuple(around)
            else:
                assert not line or line.startswith("classDef"), line
        assert around == []
        for ends in found.edges:
            assert set(ends) <= found.nodes.keys()
        assert not {plain(one) for one in found.nodes} & set(found.boxes)
        return found

    @property
    def steps(self) -> set[str]:
        """Return the paths of nodes, without the first name, by the boxes that they are in."""
        return {path_of(plain(one)) for one in self.nodes}


def plain(node_id: str) -> str:
    r"""Return the id as it was before Mermaid's escapes, such as `\3a`."""
    return re.sub(r"\\(2f|3a|2e|20)", lambda one: chr(int(one[1], 16)), node_id)


def path_of(node_id: str) -> str:
    """Return the names of a node and its boxes."""
    *around, name = node_id.split(":")
    names = [one.rpartition("/")[2] for one in around]
    return "/".join(one for one in (*names, name) if not one.startswith("__threads"))


def leaves(tree: Node) -> set[str]:
    """Return the paths of the leaves below the root."""
    root = root_path(tree) + "/"
    return {path.removeprefix(root) for path, node in walk(tree) if isinstance(node, Step | Call)}


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("name", TREES)
def test_every_tree_is_drawn_whole_alone_and_in_a_host(name: str, form: Form) -> None:
    """Every step is a node in the boxes of its path, ids are unique, no edge leads nowhere."""
    tree = tree_of(name)
    graph = compile_graph(tree, model="offline", form=form)
    alone = Picture.of(graph.get_graph(xray=True).draw_mermaid())
    assert leaves(tree) <= alone.steps
    host = Picture.of(hosted(graph).get_graph(xray=True).draw_mermaid())
    assert {f"planning/{path}" for path in leaves(tree)} <= host.steps
    assert len(host.boxes) == len(alone.boxes) + 1


@pytest.mark.parametrize("name", TREES)
def test_a_number_opens_so_many_levels(name: str) -> None:
    """Each level more has at least the nodes of the one before, until all are open."""
    graph = compile_graph(tree_of(name), model="offline")
    for drawn in (graph, hosted(graph)):
        whole = Picture.of(drawn.get_graph(xray=True).draw_mermaid())
        sizes = [
            len(Picture.of(drawn.get_graph(xray=levels).draw_mermaid()).boxes)
            for levels in range(1, 9)
        ]
        assert sizes == sorted(sizes)
        assert sizes[-1] == len(whole.boxes)
    assert set(graph.get_graph().nodes) == {"__start__", graph.name, "__end__"}


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_is_drawn_whole_alone_and_in_a_host(name: str) -> None:
    """Every stage is a node, in the boxes of the recipes around it."""
    graph = compile_recipe(load_recipe(GRAPHS / name / "recipe.yaml"), model="offline")
    alone = Picture.of(graph.get_graph(xray=True).draw_mermaid())
    assert sum(".stage_" in one for one in alone.steps) >= 2
    host = Picture.of(hosted(graph).get_graph(xray=True).draw_mermaid())
    assert len(host.nodes) == len(alone.nodes)
    assert len(host.boxes) == len(alone.boxes) + 1


def test_two_trees_in_one_host_and_names_of_any_kind_are_drawn() -> None:
    """Blocks of one name in two places, and names that Mermaid has signs for."""
    odd = Block(
        [
            Block([Step("a", name="say (this)"), Step("b", name="a [b] {c}")], name="odd & <b>"),
            Block([Block([Step("a")], name="critics")], name="one"),
            Block([Block([Step("a")], name="critics")], name="two", parallel=True),
        ],
        name="first",
    )
    other = Block([Block([Step("c")], name="critics")], name="other")
    graphs = [compile_graph(tree, model="offline") for tree in (odd, other)]
    picture = Picture.of(hosted(*graphs).get_graph(xray=True).draw_mermaid())
    assert {"first/one", "one/critics", "two/critics", "other/critics"} <= set(picture.boxes)
    text = hosted(*graphs).get_graph(xray=True).draw_mermaid()
    assert "(say #40;this#41;)" in text


def test_a_configured_graph_and_an_async_caller_have_the_same_drawing() -> None:
    """`with_config` keeps it, `aget_graph` gives it, and a lone step is its one node."""
    graph = compile_graph(tree_of("tot_enclave"), model="offline")
    drawn = graph.get_graph(xray=True).draw_mermaid()
    assert graph.with_config(tags=["x"]).get_graph(xray=True).draw_mermaid() == drawn
    later: Drawing = asyncio.run(graph.aget_graph(xray=True))
    assert later.draw_mermaid() == drawn
    step = compile_graph(Step("Say a.", name="say"), model="offline")
    assert set(step.get_graph(xray=True).nodes) == {"__start__", "say", "__end__"}
    assert "planning:say" in hosted(step).get_graph(xray=True).nodes
