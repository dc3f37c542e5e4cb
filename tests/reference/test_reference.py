"""The reference itself, on cases worked out by hand; it shares nothing with the library."""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.reference import reference
from tests.reference.plain import plain, plain_text
from tests.reference.reference import Line, fill, run

from mergepoint.testing.tree_functions import PartsPrompt
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input
from mergepoint.tree.prompts import Template


def step(text: str, **fields: Any) -> dict[str, Any]:
    """Return a step as plain data."""
    prompt = fields.pop("prompt", {"kind": "literal", "text": text})
    shared = {"name": None, "merge": "all_messages", "capture_key": None}
    rest = {"system": None, "structured": False}
    return {"kind": "step", **shared, **rest, "prompt": prompt, **fields}


def block(*children: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """Return a block as plain data."""
    shared = {"name": None, "merge": "all_messages", "capture_key": None, "parallel": False}
    return {"kind": "block", **shared, "children": list(children), **fields}


def echo(path: str, seen: list[Line]) -> str:
    """Answer with the last name of the path and how many lines were seen."""
    return f"{path.rpartition('/')[2]} of {len(seen)}"


def go(tree: dict[str, Any], **inputs: Any) -> dict[str, Any]:
    """Run a tree on one message."""
    return run(tree, [("user", "Hi.")], inputs, echo)


def test_it_imports_nothing_of_the_library() -> None:
    """What the reference imports is the standard library, so it shares no fault."""
    tree = ast.parse(Path(reference.__file__).read_text(encoding="utf-8"))
    names = [node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    names += [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
    assert {name.partition(".")[0] for name in names} <= sys.stdlib_module_names


def test_modes_keep_all_one_or_nothing() -> None:
    """all_messages keeps prompt and answer, last_response the answer, none neither."""
    found = go(block(step("A"), step("B", merge="last_response"), step("C", merge="none")))
    assert found["messages"] == [
        ("user", "Hi."),
        ("user", "A"),
        ("assistant", "step_01 of 2"),
        ("assistant", "step_02 of 4"),
    ]
    assert found["origins"] == [
        None,
        "pipeline/step_01/0",
        "pipeline/step_01/1",
        "pipeline/step_02/1",
    ]
    assert found["saw"]["pipeline/step_03"][-2:] == [("assistant", "step_02 of 4"), ("user", "C")]


def test_a_capture_survives_every_mode() -> None:
    """A step and a block that merge nothing still leave their captures."""
    inner = block(step("A", capture_key="a"), merge="none", capture_key="b")
    found = go(block(inner))
    assert found["messages"] == [("user", "Hi.")]
    assert found["outputs"] == {"a": "step_01 of 2", "b": "step_01 of 2"}


def test_the_last_response_is_taken_after_nested_merges() -> None:
    """A nested step that merged nothing is not the last response of its block."""
    found = go(
        block(block(step("A"), step("B", merge="none"), merge="last_response", capture_key="k"))
    )
    assert found["outputs"] == {"k": "step_01 of 2"}
    assert found["messages"][1:] == [("assistant", "step_01 of 2")]


def test_a_structured_answer_is_a_form_and_its_capture_has_fields() -> None:
    """The line is canonical JSON of what was said and how much was seen, the capture the same."""
    found = go(block(step("A", structured=True, capture_key="k")))
    assert found["messages"][-1] == ("assistant", '{"said":"step_01 of 2","seen":2}')
    assert found["outputs"] == {"k": {"said": "step_01 of 2", "seen": 2}}


def test_an_answer_of_the_base_is_no_response() -> None:
    """What was there before is not what a node made."""
    tree = block(step("A", merge="none"), merge="last_response")
    found = run(tree, [("assistant", "old")], {}, echo)
    assert found["error"] == {"type": "ValueError", "path": "pipeline", "noted": []}


def test_parallel_children_see_the_entry() -> None:
    """Siblings do not see each other, and merge in declared order."""
    found = go(block(step("Z", name="z"), step("A", name="a"), parallel=True))
    assert found["saw"]["pipeline/a"] == [("user", "Hi."), ("user", "A")]
    assert [text for _, text in found["messages"]] == ["Hi.", "Z", "z of 2", "A", "a of 2"]


def test_a_parallel_failure_waits_for_the_exit() -> None:
    """All children run to their end; the first in declared order is raised, others are noted."""

    def answer(path: str, seen: list[Line]) -> str:
        if path.endswith(("z", "a")):
            raise KeyError(path)
        return " " if path.endswith("blank") else "fine"

    children = (step("Z", name="z"), block(step("B"), step("C"), name="b"))
    tree = block(*children, step("A", name="a"), step("D", name="blank"), parallel=True)
    found = run(block(step("O"), tree), [("user", "Hi.")], {}, answer)
    assert found["messages"] == [("user", "Hi.")]
    assert found["outputs"] == {}
    at = "pipeline/block_02"
    assert found["error"] == {
        "type": "KeyError",
        "path": f"{at}/z",
        "noted": [f"{at}/a", f"{at}/blank"],
    }
    assert list(found["failed"]) == [f"{at}/z", f"{at}/a", f"{at}/blank"]
    assert list(found["calls"]) == ["pipeline/step_01", f"{at}/b/step_01", f"{at}/b/step_02"]


def test_one_by_one_none_starts_after_a_failure() -> None:
    """With room for one, children wait for each other, and a failure keeps the rest away."""

    def answer(path: str, seen: list[Line]) -> str:
        raise OSError(path)

    tree = block(step("A"), step("B"), parallel=True)
    found = run(tree, [], {}, answer, one_by_one=True)
    assert list(found["saw"]) == ["pipeline/step_01"]
    assert found["error"] == {"type": "OSError", "path": "pipeline/step_01", "noted": []}


def test_a_sequential_failure_ends_the_run() -> None:
    """What follows a failure is not run."""

    def answer(path: str, seen: list[Line]) -> str:
        raise RuntimeError

    assert list(run(block(step("A"), step("B")), [], {}, answer)["saw"]) == ["pipeline/step_01"]


def test_texts_read_inputs_then_outputs_then_defaults() -> None:
    """A key is looked up in inputs, in outputs, then its default stands; else the run fails."""

    def template(text: str, **defaults: str) -> dict[str, Any]:
        return {"kind": "template", "text": text, "defaults": defaults}

    tree = block(
        step("A", capture_key="out"),
        step("", prompt=template("{{ in }} {{ out }} {{ no }} {{ list }}", no="-")),
        step("", prompt=template("{{ gone }}")),
        inputs=[["in"], ["list", [1, "ä"]]],
    )
    found = go(tree, **{"in": "{{ out }}"})
    said = '{{ out }} step_01 of 2 - [1, "ä"]'
    assert found["saw"]["pipeline/step_02"][-1] == ("user", said)
    assert found["error"] == {"type": "ValueError", "path": "pipeline/step_03", "noted": []}


def test_a_missing_input_fails_before_any_call() -> None:
    """Nothing is called when an input is not given."""
    found = go(block(step("A"), inputs=[["in"]]))
    assert found["saw"] == {}
    assert found["error"]["type"] == "ValueError"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{{ k }}{{k}}", "<k><k>"),
        ("{{{ k }}}", "{<k>}"),
        ("{{ a.b }} {{\nü\n}}", "<a.b> <ü>"),
        ("{{ a b }} {{}} {{ }} {k} {{ k", "{{ a b }} {{}} {{ }} {k} {{ k"),
        ("{{ a {{ k }}", "{{ a <k>"),
    ],
)
def test_places_are_filled_and_the_rest_is_text(text: str, expected: str) -> None:
    """A place holds one key without spaces and braces."""
    assert fill(text, lambda key: f"<{key}>") == expected
    assert Template(text).render(lambda key: f"<{key}>") == expected


def test_a_tree_of_the_library_becomes_plain_data() -> None:
    """The converter carries over every field that has a meaning."""
    tree = Block(
        [
            Step("A", name="a", merge="none", capture_key="k", system=Template("{{ k }}")),
            Block([Step(PartsPrompt([("read", "x")], defaults={"x": "-"}))], parallel=True),
        ],
        inputs=["topic", Input("level", default=1)],
    )
    found = plain(tree)
    assert found["inputs"] == [["topic"], ["level", 1]]
    assert found["children"][0] == {
        **step(
            "A",
            name="a",
            merge="none",
            capture_key="k",
            system={"kind": "template", "text": "{{ k }}", "defaults": {}},
        ),
        "reads": ["k"],
    }
    inner = found["children"][1]
    assert inner["parallel"]
    told = {"kind": "function", "parts": [["read", "x"]], "defaults": {"x": "-"}, "declared": True}
    assert inner["children"][0]["prompt"] == told


def test_a_function_that_cannot_be_read_is_refused() -> None:
    """The converter does not guess what a function would say."""
    with pytest.raises(TypeError, match="use PartsPrompt"):
        plain_text(lambda ctx: "x")


def with_tools(*rounds: list[tuple[str, str]], most: int = 3, **fields: Any) -> dict[str, Any]:
    """Run a step with two tools that calls these in its rounds, and answers then."""

    def called(path: str, seen: list[Line], tools: Sequence[str]) -> list[tuple[str, str]]:
        number = sum(role == "assistant" for role, _ in seen)
        return rounds[number] if number < len(rounds) else []

    tree = step("Go.", tools=["measure", "refuse"], rounds=most, **fields)
    answer = lambda path, seen: f"{len(seen)}"  # noqa: E731
    return run(tree, [("user", "Hi.")], {}, answer, tool_calls=called)


def test_a_step_with_tools_makes_all_that_is_said() -> None:
    """Prompt, answers and results in order; an error and an unknown tool are results too."""
    found = with_tools([("measure", "abc"), ("refuse", "x")], [("turn", "y")], capture_key="k")
    assert found["messages"] == [
        ("user", "Hi."),
        ("user", "Go."),
        ("assistant", "2"),
        ("tool", "3"),
        ("tool", "PlannedError: nothing is known of x"),
        ("assistant", "5"),
        ("tool", "Error: there is no tool 'turn'; there are: measure, refuse"),
        ("assistant", "7"),
    ]
    assert found["origins"][-1] == "step_01/6"
    assert found["outputs"] == {"k": "7"}
    assert found["done"] == {
        "step_01/tool_01": ("call", {"content": "3", "status": "success"}),
        "step_01/tool_02": (
            "call",
            {"content": "PlannedError: nothing is known of x", "status": "error"},
        ),
        "step_01": ("call", "7"),
    }


def test_a_step_that_goes_on_calling_tools_fails() -> None:
    """Behind its last round; what was executed is on record."""
    found = with_tools([("measure", "a")], [("measure", "b")], most=1)
    assert found["error"] == {"type": "ValueError", "path": "step_01", "noted": []}
    assert (found["failed"], list(found["done"])) == (
        {"step_01": "ValueError"},
        ["step_01/tool_01"],
    )
    assert found["messages"] == [("user", "Hi.")]


def test_only_the_answer_of_a_step_with_tools_leaves_by_last_response() -> None:
    """The exchange with tools is dropped, as a prompt is."""
    found = with_tools([("measure", "a")], merge="last_response")
    assert found["messages"] == [("user", "Hi."), ("assistant", "4")]
