"""Inputs, on every engine: declared on the root, given for each run, read-only."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError
from tests.engine.engines import Engine, texts

from mergepoint.core.errors import MissingKey, TreeError
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input
from mergepoint.tree.prompts import PromptContext, Template, reads
from mergepoint.tree.tree_yaml import from_yaml, to_yaml


def about(*names: str | tuple[str, Any] | Input) -> Block:
    """Return a tree that takes inputs and says the topic."""
    return Block([Step(Template("About {{ topic }}."))], inputs=names)


def test_an_input_is_read_by_a_template(engine: Engine) -> None:
    """A template's place is filled with what the run was given."""
    assert engine(about("topic"), ScriptedModel(["x"]), inputs={"topic": "cats"}).texts == [
        "About cats.",
        "x",
    ]


@pytest.mark.parametrize("declared", [("topic", "dogs"), Input("topic", default="dogs")])
def test_a_default_stands_in_for_an_input_that_is_not_given(
    engine: Engine, declared: tuple[str, Any] | Input
) -> None:
    """An input with a default may be left out, and a given one wins."""
    assert engine(about(declared), ScriptedModel(["x"])).texts[0] == "About dogs."
    end = engine(about(declared), ScriptedModel(["x"]), inputs={"topic": "cats"})
    assert end.texts[0] == "About cats."


def test_a_missing_input_is_named_before_the_first_call(engine: Engine) -> None:
    """The error says which input, and how to give it."""
    model = ScriptedModel([])
    with pytest.raises(TreeError, match=r"input 'topic' is missing; pass inputs=\{'topic'"):
        engine(about("topic"), model)
    assert model.calls == []


def test_an_unknown_input_is_refused_with_a_near_name(engine: Engine) -> None:
    """A misspelt input is never ignored."""
    with pytest.raises(TreeError, match=r"input 'topc' is not declared \(did you mean 'topic'"):
        engine(about(("topic", "cats")), ScriptedModel([]), inputs={"topc": "dogs"})


def test_an_input_of_a_tree_without_inputs_is_refused(engine: Engine) -> None:
    """A tree that declares none takes none, a lone step neither."""
    for tree in (Block([Step("A.")]), Step("A.")):
        with pytest.raises(TreeError, match="the tree takes: none"):
            engine(tree, ScriptedModel([]), inputs={"a": 1})


def test_all_that_is_wrong_with_inputs_is_said_at_once(engine: Engine) -> None:
    """Two missing and one unknown are three faults of one error."""
    tree = Block([Step("A.")], inputs=["one", "two"])
    with pytest.raises(TreeError, match="3 problems") as raised:
        engine(tree, ScriptedModel([]), inputs={"three": 3})
    assert [fault.problem.split("'")[1] for fault in raised.value.faults] == ["one", "two", "three"]


def test_a_blank_input_that_is_read_raises_with_its_key(engine: Engine) -> None:
    """A blank value is caught where it is read, at the path of the reader."""
    with pytest.raises(MissingKey, match="'topic' is there but blank") as raised:
        engine(about("topic"), ScriptedModel([]), inputs={"topic": " \n"})
    assert raised.value.key == "topic"
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/step_01"


def test_inputs_are_not_outputs(engine: Engine) -> None:
    """A prompt function finds inputs and outputs apart, and `read` looks in both."""
    seen: list[Any] = []

    @reads("topic", "a")
    def prompt(ctx: PromptContext) -> str:
        seen.append((dict(ctx.inputs), dict(ctx.outputs), ctx.read("topic"), ctx.read("a")))
        return "B."

    tree = Block([Step("A.", capture_key="a"), Step(prompt)], inputs=["topic"])
    end = engine(tree, ScriptedModel(default="x"), inputs={"topic": ["cats"]})
    assert seen == [({"topic": ["cats"]}, {"a": "x"}, ["cats"], "x")]
    assert end.outputs == {"a": "x"}


def test_inputs_are_seen_at_every_depth(engine: Engine) -> None:
    """Inputs are handed down to the innermost block, also beside others."""
    deep = Block([Block([Step(Template("Of {{ topic }}."))], parallel=True)])
    model = ScriptedModel(default="x")
    engine(Block([deep], inputs=["topic"]), model, inputs={"topic": 3})
    assert texts(model.calls[0].messages) == ["Of 3."]


def test_a_value_given_as_input_is_never_changed(engine: Engine) -> None:
    """What a prompt function does to an input's copy reaches neither the caller nor the next."""

    def spoil(ctx: PromptContext) -> str:
        ctx.inputs["tags"].append("spoiled")
        return ",".join(ctx.inputs["tags"])

    tags = ["a"]
    tree = Block([Step(spoil, merge="none"), Step(spoil, merge="none")], inputs=["tags"])
    model = ScriptedModel(default="x")
    engine(tree, model, inputs={"tags": tags})
    assert [texts(call.messages) for call in model.calls] == [["a"], ["a"]]
    assert tags == ["a"]


TYPED: list[tuple[Any, str, Any, list[Any]]] = [
    (str, "string", "x", [1, None, ["x"]]),
    (int, "integer", 3, ["3", 3.0, True, None]),
    (float, "number", 2, ["2", True]),
    (float, "number", 0.5, []),
    (bool, "boolean", False, [0, "false"]),
    (list, "array", ["a"], ["a", {"a": 1}]),
    (dict, "object", {"a": 1}, ["a", ["a"]]),
]


@pytest.mark.parametrize(("kind", "name", "good", "bad"), TYPED)
def test_a_value_of_another_type_is_refused_before_the_first_call(
    engine: Engine, kind: Any, name: str, good: Any, bad: list[Any]
) -> None:
    """The error names input, type and what was given, and shows one that is taken."""
    tree = about(Input("topic", type=kind))
    assert engine(tree, ScriptedModel(["x"]), inputs={"topic": good}).texts[1] == "x"
    for value in bad:
        model = ScriptedModel([])
        with pytest.raises(TreeError) as told:
            engine(tree, model, inputs={"topic": value})
        said = f"input 'topic' takes a value of type {name}, and was given {value!r}"
        assert said in str(told.value)
        assert f"({type(value).__name__}); pass one such as inputs={{'topic': " in str(told.value)
        assert model.calls == []


def test_every_input_of_another_type_is_told_at_once() -> None:
    """Beside those that are missing and unknown."""
    tree = about(Input("topic", type=str), Input("lines", type=int), "tone")
    with pytest.raises(TreeError) as told:
        interpret(tree, model=ScriptedModel([]), inputs={"topic": 1, "lines": "x", "tune": 1})
    assert len(told.value.faults) == 4


def test_a_type_has_the_name_of_a_json_schema_too() -> None:
    """The field holds the type of Python, whichever was given."""
    for kind, name, _, _ in TYPED:
        assert Input("a", type=kind) == Input("a", type=name) == Input("a", type=kind.__name__)
        assert Input("a", type=name).type is kind
    assert Input("a").type is None


@pytest.mark.parametrize(
    ("about_it", "problem"),
    [
        ({"type": "intger"}, r"its type is one of string, .*not 'intger' \(did you mean 'integer'"),
        ({"type": set}, "its type is one of string, integer, number, boolean, array, object"),
        ({"type": int, "default": "x"}, "its default 'x' is not of its type integer"),
        ({"type": int, "default": True}, "its default True is not of its type integer"),
    ],
)
def test_a_type_that_is_none_and_a_default_of_another_are_refused(
    about_it: dict[str, Any], problem: str
) -> None:
    """When the input is made."""
    with pytest.raises(TreeError, match=problem):
        Input("a", **about_it)


def test_none_is_a_default_of_every_type() -> None:
    """Then None may be given too."""
    tree = Block(
        [Step(Template("{{ a }}", defaults={"a": "none"}))],
        inputs=[Input("a", type=int, default=None)],
    )
    for inputs in ({}, {"a": None}):
        model = ScriptedModel(["x"])
        interpret(tree, model=model, inputs=inputs)
        assert model.calls[0].messages[-1].text == "none"


def test_the_input_schema_has_the_types() -> None:
    """What a server or a form reads, and a compiled graph's tool."""
    tree = about(
        Input("topic", type=str),
        Input("lines", type=int, default=3),
        Input("n", type=float, default=None),
    )
    graph = compile_graph(tree, model=ScriptedModel(default="x"))
    schema = graph.get_input_jsonschema()
    (inputs,) = (one for name, one in schema["$defs"].items() if name == "Inputs")
    found: dict[str, Any] = {"topic": {"title": "Topic", "type": "string"}}
    found |= {"lines": {"default": 3, "title": "Lines", "type": "integer"}}
    number = {"anyOf": [{"type": "number"}, {"type": "null"}]}
    assert inputs["properties"] == {**found, "n": {**number, "default": None, "title": "N"}}
    tool = graph.as_tool()
    assert tool.args == inputs["properties"]
    assert tool.invoke({"topic": "a", "lines": 2}) == "x"
    with pytest.raises(ValidationError):
        tool.invoke({"topic": 1})


def test_a_file_has_the_types_too() -> None:
    """They are written and read; one that there is not is told with its line."""
    tree = about("topic", Input("lines", type=int), Input("tone", type=str, default="dry"))
    text = to_yaml(tree)
    assert "{name: lines, type: integer}" in text or "type: integer" in text
    assert from_yaml(text) == tree
    with pytest.raises(TreeError, match=r"<text>:\d+: .*its type is one of"):
        from_yaml(text.replace("integer", "intger"))
