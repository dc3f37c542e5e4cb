"""Inputs, on every engine: declared on the root, given for each run, read-only."""

from __future__ import annotations

from typing import Any

import pytest
from tests.run.engines import Engine, texts

from mergepoint.core.errors import MissingKey, TreeError
from mergepoint.testing.scripted import ScriptedModel
from mergepoint.tree.block import Block, Input
from mergepoint.tree.context import PromptContext
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template, reads


def about(*names: str | tuple[str, Any] | Input) -> Block:
    """Give a tree that takes inputs and says the topic."""
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
    with pytest.raises(TreeError, match=r"input 'topic' is not given; pass inputs=\{'topic'"):
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
    with pytest.raises(TreeError, match="3 faults") as raised:
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
