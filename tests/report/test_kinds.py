"""Loops, gates and calls as they are drawn."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.report.test_svg import check_places, drawn, words
from tests.report.trees import enough, kinds, pipeline, planned

from mergepoint import compile_graph
from mergepoint.report.drawing import DrawingLimits, Omitted, Sketch, abridged, sketch
from mergepoint.report.svg import legend, to_mermaid, to_svg
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Loop, Node

PLANNED = """\
flowchart TB
  inputs[/"inputs<br/>topic"/]
  subgraph n0["work"]
    direction TB
    subgraph n1["planning"]
      subgraph n3["approval"]
        n4["draft<br/>reads topic, review<br/>merge: last_response<br/>captures plan"]
        d3{"Is this the plan#63;"}
        m3{{"merge: all_messages<br/>captures review"}}
      end
      m1{{"merge: all_messages"}}
    end
    n5[["count<br/>count_words#40;#41;<br/>reads undeclared<br/>merge: none<br/>captures words"]]
    n6["write<br/>reads plan, words"]
    m0{{"merge: all_messages"}}
  end
  inputs --> n4
  n4 --> d3
  d3 --> m3
  m3 -->|"again until review, at most 3 times"| n4
  m3 --> m1
  m1 --> n5
  n5 -.-> n6
  n6 --> m0
  classDef keeps_all_messages fill:#0f766e,stroke:#0f766e,color:#ffffff
  class m3,m1,m0 keeps_all_messages
"""


def test_a_flowchart_shows_all_kinds() -> None:
    """A loop has a way back, a gate its question before the merge, a call the function's name."""
    assert to_mermaid(planned()) == PLANNED


def test_a_picture_shows_all_kinds() -> None:
    """Until when a loop goes on, what a gate asks and what is called stand in the picture."""
    picture = drawn(planned())
    assert words(picture, "name") == ["work", "planning", "approval", "draft", "count", "write"]
    assert words(picture, "until") == ["until review, at most 3 times"]
    assert words(picture, "question") == ["Is this the plan?"]
    assert words(picture, "reads")[1:3] == ["count_words()", "reads undeclared"]
    assert words(picture, "capture") == ["plan", "review", "words"]


@pytest.mark.parametrize(
    "tree", [planned(), kinds(), Gate(Step("x")), Loop([Step("x")], until="k")]
)
def test_nothing_is_drawn_on_top_of_another(tree: Node) -> None:
    """Nodes inside of loops and gates stand in them, apart from each other and from all lines."""
    check_places(tree)


def test_the_body_of_a_loop_is_no_box_of_its_own() -> None:
    """What is drawn in a loop are its nodes, under the paths of the first iteration."""
    paths = [part.path for part in sketch(planned()).walk()]
    assert paths[1:3] == ["work/planning", "work/planning/iteration_01/approval"]
    assert abridged(sketch(planned())) is None


def test_a_closed_loop_says_how_much_is_in_it() -> None:
    """What is left out is counted without the loop's body."""
    small = sketch(kinds(), limits=DrawingLimits(nodes=5))
    outer = small.parts[0]
    assert isinstance(outer, Sketch)
    (inside,) = outer.parts
    assert isinstance(inside, Omitted)
    assert inside.text == "11 nodes inside"
    assert str(abridged(small)).startswith("5 of 24 nodes are drawn")


@pytest.mark.parametrize(
    ("until", "said"),
    [
        ("k", "until k, at most 1 time"),
        (enough, "until enough, at most 1 time"),
        (lambda ctx: True, "until its function holds, at most 1 time"),
    ],
)
def test_a_loop_says_until_when(until: object, said: str) -> None:
    """A key and a function are named; one without a name is not."""
    loop = Loop([Step("x")], until=until, max_iterations=1)  # type: ignore[arg-type]
    assert sketch(loop).turns == said


def test_a_gate_shows_its_question_in_short() -> None:
    """A long question is cut, and one that was not put is told by what can be answered."""
    assert sketch(Gate(Step("x"), question="?" * 90)).question == "?" * 39 + "…"
    assert sketch(Gate(Step("x"))).question == "approve, edit or reject?"
    assert sketch(Gate(Step("x"), decide=lambda asked: True)).question == "a function decides"


def test_a_function_without_a_name_is_called_a_function() -> None:
    """No name is made up for a lambda."""
    assert sketch(Call(lambda ctx: 1)).function == "a function"


def test_the_legend_tells_of_what_is_there() -> None:
    """Marks of loops, gates and calls are told where there are any, and only there."""
    plain, _ = legend(1000)
    assert "a person decides" not in plain
    assert "again, until" not in to_svg(pipeline())
    assert all(
        said in to_svg(kinds()) for said in ("a person decides", "again, until", "a function")
    )


def edges_of(tree: Node) -> Iterator[tuple[str, str]]:
    """Yield the edges of the compiled graph as LangGraph draws it."""
    graph = compile_graph(tree, model=ScriptedModel([]))
    for edge in graph.get_graph(xray=True).edges:
        yield edge.source, edge.target


def test_langgraph_draws_the_compiled_graph() -> None:
    """The host's own drawing opens loops and gates, and shows the way back."""
    edges = set(edges_of(planned()))
    asked = "work/planning:planning/iteration_01:iteration_01/approval"
    again = ("work/planning:__until__", f"{asked}:draft")
    assert again in edges
    assert (f"{asked}:draft", f"{asked}:__decide__") in edges
    assert (f"{asked}:__decide__", f"{asked}:__merge__") in edges
    assert ("count", "write") in edges
