"""The examples: each gives what its golden case says, in every form, and its page is true."""

from __future__ import annotations

import json

import pytest
from tests.graphs.golden import (
    EXAMPLES,
    GRAPHS,
    OPENING,
    around_drawing,
    case_of,
    golden,
    module_of,
    ran,
    tree_of,
    write_case,
)

from mergepoint.core.errors import GateOpen, RailError
from mergepoint.core.paths import select
from mergepoint.core.strict_yaml import load_file
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.gates import by_path
from mergepoint.engine.interpreter import interpret
from mergepoint.report.mermaid import to_mermaid
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Order, root_path, walk
from mergepoint.tree.validate import inputs_of


def test_the_examples_are_those_we_know() -> None:
    """A folder that is added or lost shows here, so the tests below cannot run over nothing."""
    assert EXAMPLES == (
        "flat_chat",
        "image_prompt",
        "plan_approve",
        "plan_code_execute",
        "tot_enclave",
    )


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_a_run_gives_what_the_golden_case_says(
    name: str, form: Form, *, update_goldens: bool
) -> None:
    """Calls, what key calls saw, the conversation, the outputs and the text are as written."""
    case = case_of(name)
    found = golden(ran(tree_of(name), case, form=form), case)
    if update_goldens:
        write_case(name, found)
    assert found == case_of(name)


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_interpreter_gives_the_golden_text(name: str) -> None:
    """The engine without a graph, on the model that `offline` names, ends with the same text."""
    case = case_of(name)
    recorder = Recorder(answerer=by_path(case.get("decisions", {})))
    tree = tree_of(name)
    state = interpret(tree, model="offline", inputs=case["inputs"], recorder=recorder)
    assert str(state.messages[-1].text) == case["text"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_example_inputs_are_those_of_the_golden_case(name: str) -> None:
    """What a user runs with `--input-file` is what the case shows, and the tree takes it."""
    inputs = load_file(GRAPHS / name / "inputs.yaml").value
    assert inputs == case_of(name)["inputs"]
    assert [given.name for given in inputs_of(tree_of(name))] == list(inputs)


@pytest.mark.parametrize("name", EXAMPLES)
def test_a_case_names_every_call_once(name: str) -> None:
    """The calls of a case are those of the tree, in order; of loops in each iteration."""
    tree = tree_of(name)
    order = Order(tree, root_path(tree))
    made = [path for call in case_of(name)["calls"] for path in call]
    assert len(made) == len(set(made))
    assert sorted(made, key=order) == made
    leaves = [path for path, node in walk(tree) if isinstance(node, Step | Call)]
    assert list(dict.fromkeys(map(order.static, made))) == leaves


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_shows_the_drawing_of_the_tree(name: str, *, update_goldens: bool) -> None:
    """The README's diagram is what the tree draws: of the whole, or of the part it names."""
    file = GRAPHS / name / "README.md"
    text = file.read_text(encoding="utf-8")
    tree = tree_of(name)
    before, drawing, after = around_drawing(text)
    part = _drawn_part(before)
    assert part is None or select(part, [path for path, _ in walk(tree)]) == [part]
    found = to_mermaid(tree, path=part)
    if update_goldens:
        file.write_text(f"{before}{found}{after}", encoding="utf-8")
    else:
        assert found == drawing


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_says_how_to_run_it(name: str) -> None:
    """The README names the command with the graph's own name and inputs."""
    text = (GRAPHS / name / "README.md").read_text(encoding="utf-8")
    assert f"mergepoint run {name} " in text
    for given in inputs_of(tree_of(name)):
        assert f"`{given.name}`" in text


def test_the_server_finds_every_example() -> None:
    """langgraph.json names each graph by a file and a function that gives the compiled graph."""
    served = json.loads((GRAPHS / "langgraph.json").read_text(encoding="utf-8"))["graphs"]
    assert sorted(served) == list(EXAMPLES)
    for name, target in served.items():
        assert target == f"./{name}/graph.py:graph"


def test_a_served_graph_is_compiled_once_and_runs() -> None:
    """The function behind langgraph.json gives one graph, which runs without a key."""
    graph = module_of("flat_chat").graph
    assert graph() is graph()
    result = graph().invoke({"inputs": case_of("flat_chat")["inputs"]})
    assert str(result["messages"][-1].text) == case_of("flat_chat")["text"]


def test_a_plan_waits_for_its_approval() -> None:
    """Without anybody the example stops at its gate, with the whole plan in the question."""
    with pytest.raises(GateOpen) as caught:
        interpret(tree_of("plan_approve"), model="offline", inputs={"topic": "the tides"})
    (question,) = caught.value.questions
    assert question.path == "pipeline/planning/iteration_01/approval"
    assert question.kept.outputs["plan"].startswith("1. Begin like this.")


def test_a_plan_that_is_never_approved_ends_the_run() -> None:
    """After five plans the loop says that none was approved."""
    recorder = Recorder(answerer=lambda question: "reject")
    with pytest.raises(RailError, match="after 5 iterations"):
        interpret(
            tree_of("plan_approve"),
            model="offline",
            inputs={"topic": "the tides"},
            recorder=recorder,
        )


def _drawn_part(before: str) -> str | None:
    """Return the path that the line above the drawing names in backticks."""
    above = before.removesuffix(OPENING).rstrip().rpartition("\n")[2]
    found = above.split("`")
    return found[1] if len(found) > 1 else None


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_python_on_a_page_runs(name: str) -> None:
    """Every Python block of the README runs as it stands."""
    text = (GRAPHS / name / "README.md").read_text(encoding="utf-8")
    for block in text.split("```python\n")[1:]:
        exec(compile(block.partition("```")[0], name, "exec"), {})  # noqa: S102
