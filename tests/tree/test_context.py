"""PromptContext: a view that can be read and not changed."""

from __future__ import annotations

from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage

from mergepoint.core.errors import MissingKey
from mergepoint.tree.prompts import MessageCopies, PromptContext, Reads, ValueCopies


def context(
    *,
    messages: tuple[BaseMessage, ...] = (),
    inputs: dict[str, Any] | None = None,
    outputs: dict[str, Any] | None = None,
    reads: Reads | None = None,
    path: str = "run/step_01",
    seed: int = 7,
) -> PromptContext:
    """Return a context over these values."""
    return PromptContext.over(
        path,
        run_id="r",
        seed=seed,
        messages=messages,
        inputs=inputs or {},
        outputs=outputs or {},
        reads=reads,
    )


def test_a_context_is_frozen() -> None:
    """No field of a context can be replaced."""
    ctx: Any = context()
    with pytest.raises(FrozenInstanceError):
        ctx.messages = []


def test_changed_messages_leave_the_state_alone() -> None:
    """A message that is looked at, by index or in a loop, is a deep copy."""
    message = HumanMessage("q", additional_kwargs={"a": [1]})
    ctx = context(messages=(message,))
    looked: Any = ctx.messages[0]
    looked.content = "changed"
    looked.additional_kwargs["a"].append(2)
    for each in ctx.messages:
        each.content = "changed"
    assert message == HumanMessage("q", additional_kwargs={"a": [1]})


def test_a_slice_hands_out_copies_too() -> None:
    """A part of the messages is as safe as the whole."""
    messages = (HumanMessage("q"), AIMessage("a"))
    part = context(messages=messages).messages[1:]
    assert isinstance(part, MessageCopies)
    part[0].content = "changed"
    assert [m.content for m in part] == ["a"]
    assert messages[1].content == "a"


def test_messages_cannot_be_written() -> None:
    """The sequence takes no message in and gives none up."""
    messages: Any = context(messages=(HumanMessage("q"),)).messages
    with pytest.raises(TypeError):
        messages[0] = HumanMessage("x")
    with pytest.raises(TypeError):
        del messages[0]
    assert not hasattr(messages, "append")
    assert len(messages) == 1


def test_changed_values_leave_the_state_alone() -> None:
    """An input or output that is looked at is a deep copy."""
    inputs, outputs = {"i": {"k": [1]}}, {"o": [{"k": 1}]}
    ctx = context(inputs=inputs, outputs=outputs)
    ctx.inputs["i"]["k"].append(2)
    ctx.outputs["o"][0]["k"] = 2
    ctx.read("i")["k"].append(3)
    for value in ctx.outputs.values():
        value.append(4)
    assert (inputs, outputs) == ({"i": {"k": [1]}}, {"o": [{"k": 1}]})


@pytest.mark.parametrize("field", ["inputs", "outputs"])
def test_values_cannot_be_written(field: str) -> None:
    """The maps take no key in and give none up."""
    values = getattr(context(inputs={"a": "1"}, outputs={"a": "1"}), field)
    with pytest.raises(TypeError):
        values["a"] = "2"
    with pytest.raises(TypeError):
        del values["a"]
    assert not hasattr(values, "update")
    assert dict(values) == {"a": "1"}
    assert len(values) == 1


def test_a_changed_default_leaves_the_declaration_alone() -> None:
    """A default that is read is a copy, so that every run starts with the same one."""
    ctx = context(reads=Reads(("a",), {"a": [1]}))
    ctx.read("a").append(2)
    assert ctx.read("a") == [1]


def test_a_missing_value_names_near_keys() -> None:
    """A misspelt key is answered with what was probably meant."""
    ctx = context(inputs={"topic": "x"}, outputs={"draft": "y"})
    with pytest.raises(MissingKey, match="no input 'topc' \\(did you mean 'topic'\\?\\)"):
        _ = ctx.inputs["topc"]
    with pytest.raises(MissingKey, match="no output 'drft' \\(did you mean 'draft'\\?\\)"):
        _ = ctx.outputs["drft"]


def test_a_missing_value_can_be_asked_for_politely() -> None:
    """`get` and `in` work as on any mapping."""
    ctx = context(inputs={"a": "1"})
    assert ctx.inputs.get("b", "-") == "-"
    assert "a" in ctx.inputs
    assert "b" not in ctx.inputs


def test_views_show_what_they_hold() -> None:
    """A view that is printed shows its values."""
    message = HumanMessage("hello")
    assert repr(MessageCopies([message])) == f"MessageCopies([{message!r}])"
    assert repr(ValueCopies({"a": 1}, "input")) == "ValueCopies({'a': 1})"


def test_read_looks_in_inputs_then_in_outputs() -> None:
    """An input is found before an output."""
    ctx = context(inputs={"a": "in"}, outputs={"a": "out", "b": "out"})
    assert ctx.read("a") == "in"
    assert ctx.read("b") == "out"


@pytest.mark.parametrize("value", [0, False, [], {}])
def test_read_gives_empty_values_that_are_not_text(value: object) -> None:
    """Only nothing and blank text count as missing."""
    assert context(inputs={"a": value}).read("a") == value


@pytest.mark.parametrize("value", [None, "", " \n"])
def test_read_refuses_a_blank_value(value: object) -> None:
    """A value that holds nothing is an error that names the key, a ValueError."""
    with pytest.raises(MissingKey, match=r"^'a' is there but blank$") as caught:
        context(outputs={"a": value}).read("a")
    assert caught.value.key == "a"
    assert isinstance(caught.value, ValueError)


def test_read_refuses_a_blank_input_although_an_output_is_there() -> None:
    """A blank input is not silently replaced by an output of its name."""
    with pytest.raises(MissingKey, match="blank"):
        context(inputs={"a": ""}, outputs={"a": "x"}).read("a")


def test_read_of_a_missing_key_lists_what_is_there() -> None:
    """The error names the key, near ones, and all that could be read."""
    with pytest.raises(MissingKey) as caught:
        context(inputs={"topic": "x"}, outputs={"draft": "y"}).read("topc")
    assert str(caught.value) == (
        "missing key 'topc' (did you mean 'topic'?); available here: draft, topic"
    )


def test_read_of_a_missing_key_where_there_is_nothing() -> None:
    """Where nothing can be read the error says so."""
    with pytest.raises(MissingKey, match="available here: none"):
        context().read("a")


@pytest.mark.parametrize("inputs", [{}, {"a": ""}, {"a": None}])
def test_read_of_an_optional_key_gives_its_default(inputs: dict[str, Any]) -> None:
    """Missing or blank, an optional key has its default."""
    assert context(inputs=inputs, reads=Reads(("a",), {"a": "-"})).read("a") == "-"


def test_read_of_an_optional_key_that_is_there() -> None:
    """A default does not hide a value."""
    assert context(inputs={"a": "x"}, reads=Reads(("a",), {"a": "-"})).read("a") == "x"


def test_rng_depends_on_seed_and_path_alone() -> None:
    """The same seed at the same path draws the same numbers, and another seed or path others."""

    def draw(**given: Any) -> float:
        return context(**given).rng.random()

    assert draw() == draw(inputs={"a": "1"})
    assert draw(seed=8) != draw()
    assert draw(path="run/step_02") != draw()


def test_rng_goes_on_within_a_context() -> None:
    """One context has one sequence of numbers."""
    ctx = context()
    assert ctx.rng is ctx.rng
    assert ctx.rng.random() != ctx.rng.random()
