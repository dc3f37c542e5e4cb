"""Changed trees: by path, without touching the tree they come from."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.core.errors import TreeError
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node, find, walk
from mergepoint.tree.transform import with_overrides, without


def tree() -> Block:
    """Return a tree of two stages that both hold a step named check."""
    return Block(
        [
            Block([Step("a", name="write"), Step("b", name="check")], name="draft"),
            Block([Step("c"), Step("d", name="check"), Step("e")], name="final"),
            Step("f"),
        ],
        inputs=["topic"],
    )


def paths(node: Node) -> list[str]:
    """Return the paths of a tree."""
    return [path for path, _ in walk(node)]


def field(node: Node, path: str, name: str) -> Any:
    """Give one field of the node at a path."""
    return getattr(find(node, path), name)


@pytest.mark.parametrize("selector", ["pipeline/draft/check", "draft/check"])
def test_an_override_by_path_or_suffix(selector: str) -> None:
    """One field of one node changes, and no path does."""
    changed = with_overrides(tree(), {selector: {"temperature": 0.2}})
    assert field(changed, "pipeline/draft/check", "temperature") == 0.2
    assert field(changed, "pipeline/final/check", "temperature") is None
    assert paths(changed) == paths(tree())


def test_an_override_by_glob() -> None:
    """A glob changes every node it fits."""
    changed = with_overrides(tree(), {"**/check": {"merge": "none"}})
    assert [path for path, node in walk(changed) if node.merge == "none"] == [
        "pipeline/draft/check",
        "pipeline/final/check",
    ]


def test_overrides_on_several_levels() -> None:
    """A block and its child change together, and later selectors win."""
    changed = with_overrides(
        tree(),
        {
            "pipeline": {"merge": "last_response"},
            "draft": {"parallel": True},
            "**/check": {"temperature": 1, "merge": "none"},
            "draft/check": {"temperature": 0},
        },
    )
    assert field(changed, "pipeline", "merge") == "last_response"
    assert field(changed, "pipeline/draft", "parallel") is True
    assert field(changed, "pipeline/draft/check", "temperature") == 0
    assert field(changed, "pipeline/draft/check", "merge") == "none"
    assert field(changed, "pipeline/final/check", "temperature") == 1


def test_overrides_leave_the_tree_alone() -> None:
    """The old tree is what it was, and untouched parts are shared with it."""
    old = tree()
    changed = with_overrides(old, {"draft/write": {"prompt": "new"}})
    assert old == tree()
    assert changed != old
    assert find(changed, "pipeline/final") is find(old, "pipeline/final")


@pytest.mark.parametrize("overrides", [{}, {"draft/write": {}}])
def test_no_override_gives_the_tree_itself(overrides: dict[str, dict[str, Any]]) -> None:
    """Where nothing changes nothing is built."""
    old = tree()
    assert with_overrides(old, overrides) is old


def test_an_override_of_a_lone_step() -> None:
    """A step that is the whole tree can be changed."""
    assert with_overrides(Step("a"), {"step_01": {"prompt": "b"}}) == Step("b")


def test_all_faulty_overrides_are_listed() -> None:
    """Selectors that fit nothing and unknown fields come in one error, with near names."""
    with pytest.raises(TreeError) as caught:
        with_overrides(
            tree(),
            {
                "nothing": {"merge": "none"},
                "check": {"merge": "none"},
                "draft/write": {"temprature": 1},
                "draft": {"prompt": "x"},
            },
        )
    texts = [str(fault) for fault in caught.value.faults]
    assert texts[0].startswith("no path matches 'nothing'")
    assert "'check' matches 2 paths" in texts[1]
    assert texts[2].startswith(
        "pipeline/draft/write: a step has no field 'temprature' to set "
        "(did you mean 'temperature'?); its fields are: prompt, merge,"
    )
    assert texts[3].startswith("pipeline/draft: a block has no field 'prompt' to set")


@pytest.mark.parametrize("name", ["name", "nodes"])
def test_what_would_change_paths_cannot_be_set(name: str) -> None:
    """Neither names nor nodes are set by an override."""
    with pytest.raises(TreeError, match=f"a block has no field '{name}' to set"):
        with_overrides(tree(), {"draft": {name: None}})


def test_a_value_that_a_node_refuses_has_the_path() -> None:
    """What the node itself finds wrong is raised with the path of the node."""
    with pytest.raises(TreeError) as caught:
        with_overrides(tree(), {"draft/write": {"merge": "all", "prompt": ""}})
    assert [fault.path for fault in caught.value.faults] == ["pipeline/draft/write"] * 2
    assert caught.value.pipeline_path == "pipeline/draft/write"


def test_without_one_node() -> None:
    """A node is taken out; siblings keep the names they had by position."""
    assert paths(without(tree(), "final/step_01")) == [
        "pipeline",
        "pipeline/draft",
        "pipeline/draft/write",
        "pipeline/draft/check",
        "pipeline/final",
        "pipeline/final/check",
        "pipeline/final/step_03",
        "pipeline/step_03",
    ]


def test_without_several() -> None:
    """Selectors add up; what is below a node that goes, goes with it."""
    changed = without(tree(), ["draft", "**/check"])
    assert paths(changed) == [
        "pipeline",
        "pipeline/final",
        "pipeline/final/step_01",
        "pipeline/final/step_03",
        "pipeline/step_03",
    ]


def test_without_all_children_leaves_an_empty_block() -> None:
    """A block may be emptied."""
    assert paths(without(Block([Step("a")]), "**/step_01")) == ["pipeline"]


def test_without_leaves_the_tree_alone() -> None:
    """The old tree is what it was, and untouched parts are shared with it."""
    old = tree()
    changed = without(old, ["final/check"])
    assert old == tree()
    assert find(changed, "pipeline/draft") is find(old, "pipeline/draft")
    assert field(changed, "pipeline", "inputs") == old.inputs


def test_without_nothing_gives_the_tree_itself() -> None:
    """Where nothing goes nothing is built."""
    old = tree()
    assert without(old, []) is old


def test_all_faulty_selectors_are_listed() -> None:
    """Selectors that fit nothing and the root come in one error."""
    with pytest.raises(TreeError) as caught:
        without(tree(), ["nothing", "pipeline"])
    texts = [str(fault) for fault in caught.value.faults]
    assert texts[0].startswith("no path matches 'nothing'")
    assert texts[1] == "pipeline: the root cannot be taken out"


def test_values_that_several_nodes_refuse_are_listed_together() -> None:
    """A glob with a bad value names every node that refuses it."""
    with pytest.raises(TreeError) as caught:
        with_overrides(tree(), {"**/check": {"merge": "all"}})
    assert [fault.path for fault in caught.value.faults] == [
        "pipeline/draft/check",
        "pipeline/final/check",
    ]


def looped() -> Block:
    """Return a loop of a draft, a call and a gate, and a step after it."""
    gate = Gate(Step("Plan.", name="plan"), name="approval", capture_key="review")
    body: list[Node] = [Step("Draft.", name="draft"), Call(lambda: 1, name="count"), gate]
    return Block([Loop(body, until="review", name="refine"), Step("Go.", name="go")], name="work")


def test_loops_gates_and_calls_are_changed_like_all_nodes() -> None:
    """Fields of each kind are set by its path; a step in a loop by that of the first iteration."""
    changed = with_overrides(
        looped(),
        {
            "refine": {"max_iterations": 2, "on_exhausted": "keep"},
            "refine/iteration_01/draft": {"temperature": 0.5},
            "approval": {"question": "Well?"},
            "approval/plan": {"merge": "last_response"},
            "count": {"version": "2"},
        },
    )
    assert field(changed, "work/refine", "max_iterations") == 2
    assert field(changed, "work/refine/iteration_01/draft", "temperature") == 0.5
    assert field(changed, "work/refine/iteration_01/approval", "question") == "Well?"
    assert field(changed, "work/refine/iteration_01/approval/plan", "merge") == "last_response"
    assert field(changed, "work/refine/iteration_01/count", "version") == "2"
    assert paths(changed) == paths(looped())


@pytest.mark.parametrize(
    "selector", ["work/refine/iteration_02/draft", "iteration_12/draft", "**/iteration_07/dr*"]
)
def test_a_path_of_any_iteration_means_them_all(selector: str) -> None:
    """A path out of a run can be given as it is: what is set is set in all iterations."""
    changed = with_overrides(looped(), {selector: {"merge": "none"}})
    assert field(changed, "work/refine/iteration_01/draft", "merge") == "none"


def test_an_iteration_that_is_in_no_loop_is_not_found() -> None:
    """The error lists the paths there are, as for any other selector."""
    with pytest.raises(
        TreeError, match=r"no path matches 'iteration_02/go'.*the paths are:\n  work\n"
    ):
        with_overrides(looped(), {"iteration_02/go": {"merge": "none"}})


def test_an_iteration_itself_has_no_fields() -> None:
    """What would be set on one iteration is said to belong on its loop."""
    with pytest.raises(TreeError, match="work/refine/iteration_01: an iteration is set on its l"):
        with_overrides(looped(), {"refine/iteration_03": {"merge": "none"}})


@pytest.mark.parametrize("name", ["node", "nodes", "name", "untill"])
def test_a_field_that_is_none_of_a_loops_is_refused(name: str) -> None:
    """What is in a loop cannot be set; a misspelt field is suggested."""
    with pytest.raises(TreeError, match=f"work/refine: a loop has no field '{name}' to set"):
        with_overrides(looped(), {"refine": {name: "x"}})


def test_without_a_node_in_a_loop() -> None:
    """It is gone from every iteration, and the others keep their paths."""
    assert paths(without(looped(), "iteration_02/draft")) == [
        path for path in paths(looped()) if not path.endswith("draft")
    ]


@pytest.mark.parametrize(
    ("selector", "around"),
    [
        ("approval/plan", "gate around it cannot be without it; take out work/refine/iter"),
        ("refine/iteration_01", "loop around it cannot be without it; take out work/refine"),
    ],
)
def test_what_a_node_is_made_around_cannot_be_taken_out(selector: str, around: str) -> None:
    """A gate without its node, or a loop without its body, is nothing; the way out is told."""
    with pytest.raises(TreeError, match=around):
        without(looped(), selector)


def test_a_loop_without_its_last_node_is_refused() -> None:
    """All nodes of a loop taken out leave a loop that would only turn."""
    tree = Block([Loop([Step("x", name="a")], until=lambda ctx: True, name="l")])
    with pytest.raises(TreeError, match="would only turn"):
        without(tree, "l/iteration_01/a")
