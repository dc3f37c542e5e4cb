"""Step: what one can be made of, and every fault it finds in itself."""

from __future__ import annotations

import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel

from mergepoint.core.errors import Fault, TreeError
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import ChatStep, Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import PromptContext, Reads, Template, reads


class Verdict(BaseModel):
    """A structured answer."""

    winner: str


def faults(**fields: Any) -> list[str]:
    """Return the problems of a step with these fields."""
    with pytest.raises(TreeError) as caught:
        Step(**{"prompt": "x", **fields})
    return [fault.problem for fault in caught.value.faults]


def test_a_step_has_defaults_for_all_but_its_prompt() -> None:
    """One text is enough."""
    step = Step("x")
    assert (step.prompt, step.name, step.merge) == ("x", None, "all_messages")
    assert (step.temperature, step.model, step.system, step.schema) == (None, None, None, None)
    assert (step.params, step.examples, step.capture_key, step.meta) == ({}, (), None, {})
    assert step.kind == "step"


def test_chat_step_is_step() -> None:
    """The longer name is the same class."""
    assert ChatStep is Step


@pytest.mark.parametrize(
    "fields",
    [
        {"prompt": Template("{{ a }}")},
        {"prompt": lambda ctx: "x"},
        {"prompt": "{{ not a place }}"},
        {"name": "draft"},
        {"merge": "last_response"},
        {"merge": "none"},
        {"temperature": 0},
        {"temperature": 0.7},
        {"params": {"max_tokens": 10}},
        {"model": "openai:gpt"},
        {"model": ScriptedModel(["x"])},
        {"system": "Be brief."},
        {"system": Template("About {{ topic }}.")},
        {"examples": [("q", "a"), HumanMessage("q"), AIMessage("a")]},
        {"schema": Verdict},
        {"capture_key": "draft"},
        {"meta": {"owner": "me"}},
    ],
)
def test_what_a_field_may_hold(fields: dict[str, Any]) -> None:
    """Each field takes what it is documented to take, and gives it back."""
    step = Step(**{"prompt": "x", **fields})
    for name, value in fields.items():
        held = getattr(step, name)
        assert held == (tuple(value) if name == "examples" else value)


def test_a_step_is_frozen() -> None:
    """No field can be replaced."""
    step = Step("x")
    with pytest.raises(FrozenInstanceError):
        step.merge = "none"  # type: ignore[misc]


def test_params_and_meta_are_sealed_copies() -> None:
    """Neither the step's mappings nor those they came from change it."""
    params, meta = {"k": 1}, {"m": 1}
    step = Step("x", params=params, meta=meta)
    params["k"] = meta["m"] = 2
    for sealed in (step.params, step.meta):
        written: Any = sealed
        with pytest.raises(TypeError):
            written["k"] = 3
    assert (step.params, step.meta) == ({"k": 1}, {"m": 1})


def test_only_the_prompt_is_positional() -> None:
    """A second positional argument is refused, so fields can be added later."""
    make: Any = Step
    with pytest.raises(TypeError):
        make("x", "name")


@pytest.mark.parametrize("prompt", ["", " \n\t"])
def test_a_blank_prompt_is_refused(prompt: str) -> None:
    """A prompt says something."""
    assert faults(prompt=prompt) == ["the prompt is blank; to send it, set allow_empty_prompt=True"]


@pytest.mark.parametrize("prompt", [None, 3, b"x", ["x"], {"a": 1}])
def test_a_prompt_of_another_type_is_refused(prompt: object) -> None:
    """The three kinds of prompts are told where another one is given."""
    kind = type(prompt).__name__
    assert faults(prompt=prompt) == [f"a prompt is text, a Template or a function, not {kind}"]


def test_a_bad_name_is_refused() -> None:
    """The rules of names hold for steps."""
    assert "which separates paths" in faults(name="a/b")[0]
    assert "blank" in faults(name=" ")[0]
    assert "reserved for the exits" in faults(name="__x")[0]


def test_an_unknown_merge_mode_is_refused() -> None:
    """The fault lists the modes there are."""
    assert faults(merge="all") == [
        "Invalid step merge mode: merge='all'; allowed are 'all_messages', 'last_response', 'none'"
    ]


@pytest.mark.parametrize("key", ["", "a b", "{a}"])
def test_a_bad_capture_key_is_refused(key: str) -> None:
    """A key that no template could read is refused."""
    assert repr(key) in faults(capture_key=key)[0]


@pytest.mark.parametrize("system", ["", " ", 3, lambda ctx: "x"])
def test_a_bad_system_text_is_refused(system: object) -> None:
    """A system message is text with something in it, or a template."""
    assert faults(system=system) == ["system is text that is not blank, or a Template"]


def test_params_must_be_a_mapping() -> None:
    """Params of another type are refused."""
    assert faults(params=["k"]) == ["params is a mapping, not list"]


def test_params_must_not_hold_temperature() -> None:
    """Temperature has one place, and the fault names it."""
    assert faults(params={"temperature": 1}) == [
        "params must not hold 'temperature': give it as Step(temperature=...)"
    ]


@pytest.mark.parametrize("temperature", ["hot", True, [1]])
def test_a_temperature_that_is_no_number_is_refused(temperature: object) -> None:
    """Text and truth values are no temperatures."""
    assert faults(temperature=temperature) == [f"temperature is a number, not {temperature!r}"]


@pytest.mark.parametrize("model", ["", " ", 3, ScriptedModel])
def test_a_bad_model_is_refused(model: object) -> None:
    """A model is an object, not its class, or a text that names one."""
    assert faults(model=model) == [
        f"model is a chat model, a Runnable of chat models, or 'provider:name', not {model!r}"
    ]


@pytest.mark.parametrize("schema", [Verdict(winner="x"), dict, {"type": "object"}])
def test_a_bad_schema_is_refused(schema: object) -> None:
    """A schema is a pydantic class."""
    assert faults(schema=schema) == [f"schema is a pydantic model class, not {schema!r}"]


@pytest.mark.parametrize("example", ["q", ("q",), ("q", "a", "b"), ("q", ""), (1, "a"), None])
def test_a_bad_example_is_refused(example: object) -> None:
    """An example is a message, or two texts with something in them."""
    assert faults(examples=[example]) == [
        f"an example is a message or a pair (user text, assistant text), not {example!r}"
    ]


def test_all_faults_are_listed_at_once() -> None:
    """One error names everything that is wrong, with the step's name as path."""
    with pytest.raises(TreeError) as caught:
        Step("", name="draft", merge="all", temperature="hot")  # type: ignore[arg-type]
    assert caught.value.faults == (
        Fault("draft", "the prompt is blank; to send it, set allow_empty_prompt=True"),
        Fault(
            "draft",
            "Invalid step merge mode: merge='all'; allowed are 'all_messages', 'last_response', "
            "'none'",
        ),
        Fault("draft", "temperature is a number, not 'hot'"),
    )
    assert caught.value.pipeline_path == "draft"


def test_a_name_that_is_no_text_is_no_path() -> None:
    """A fault of a step with an unusable name has no path yet."""
    with pytest.raises(TreeError) as caught:
        Step("x", name=3)  # type: ignore[arg-type]
    assert caught.value.faults == (Fault("", "a name must be text, not int"),)


def test_reads_join_prompt_and_system() -> None:
    """A step reads what its prompt and its system message read."""
    step = Step(
        Template("{{ a }} {{ b }}", defaults={"b": "x"}),
        system=Template("{{ a }} {{ c }}", defaults={"c": "y"}),
    )
    assert step.reads == Reads(("a", "b", "c"), {"b": "x", "c": "y"})
    assert step.system_reads == Reads(("a", "c"), {"c": "y"})


def test_reads_of_a_declared_function() -> None:
    """What `@reads` declares counts as what a template reads."""

    @reads("a")
    def prompt(ctx: PromptContext) -> str:
        return "x"

    assert Step(prompt, system=Template("{{ c }}")).reads == Reads(("a", "c"))


def test_reads_of_an_undeclared_function_are_unknown() -> None:
    """No claim is made about the prompt, but what the system message reads is known."""
    step = Step(lambda ctx: "x", system=Template("{{ c }}"))
    assert step.reads is None
    assert step.system_reads == Reads(("c",))


def test_a_literal_step_reads_nothing() -> None:
    """Text without a template has no reads."""
    assert Step("{{ a }}", system="{{ b }}").reads == Reads()


@pytest.mark.parametrize("swapped", [False, True])
def test_a_default_of_one_text_does_not_cover_the_other(swapped: bool) -> None:  # noqa: FBT001
    """A key is optional only if every text that reads it has a default."""
    strict, lax = Template("{{ a }}"), Template("{{ a }}", defaults={"a": "x"})
    step = Step(strict, system=lax) if swapped else Step(lax, system=strict)
    assert step.reads is not None
    assert step.reads.required == ("a",)


def test_examples_from_a_generator_are_kept() -> None:
    """Examples that can be gone through once only are not lost."""
    examples: Any = (pair for pair in [("q", "a")])
    assert Step("x", examples=examples).examples == (("q", "a"),)


def test_example_pairs_are_values() -> None:
    """A pair that came as a list is kept as a tuple, so nothing in a step can be written."""
    pair: Any = ["q", "a"]
    assert Step("x", examples=[pair]).examples == (("q", "a"),)


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"examples": 3}, "examples is a list of messages or pairs, not 3"),
        ({"examples": "qa"}, "examples is a list of messages or pairs, not 'qa'"),
        ({"meta": 3}, "meta is a mapping, not 3"),
        ({"meta": "x"}, "meta is a mapping, not 'x'"),
    ],
)
def test_fields_of_another_type_are_faults(fields: dict[str, Any], problem: str) -> None:
    """Whatever is wrong with a step is a TreeError that says what was wanted."""
    assert faults(**fields) == [problem]


@pytest.mark.parametrize("temperature", [math.nan, math.inf])
def test_a_temperature_is_finite(temperature: float) -> None:
    """A temperature that is no number is refused, since a step would not even equal itself."""
    with pytest.raises(TreeError, match="finite"):
        Step("x", temperature=temperature)


def test_a_schema_does_not_allow_an_empty_response() -> None:
    """An empty text has no fields; and both switches are switches."""
    assert faults(allow_empty_response=True, schema=Verdict) == [
        "allow_empty_response does not fit a schema: an empty response has no fields"
    ]
    assert faults(allow_empty_prompt="yes") == ["allow_empty_prompt is True or False, not 'yes'"]


def test_every_kind_of_node_names_itself_in_the_error_of_a_merge_mode() -> None:
    """The error of a step says 'Invalid step merge mode'."""
    with pytest.raises(TreeError, match="Invalid step merge mode: merge='all'"):
        Step("A.", merge="all")  # type: ignore[arg-type]
    with pytest.raises(TreeError, match="Invalid block merge mode"):
        Block([Step("A.")], merge="all")  # type: ignore[arg-type]
