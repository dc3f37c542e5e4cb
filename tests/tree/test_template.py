"""Templates and declared reads."""

from __future__ import annotations

from typing import Any

import pytest

from mergepoint.core.errors import TreeError
from mergepoint.tree.prompts import (
    PromptContext,
    Reads,
    Template,
    as_text,
    declared_reads,
    key_problem,
    reads,
)


def test_template_reads_each_key_once_in_order() -> None:
    """The keys are what stands in the places, without repeats."""
    assert Template("{{b}} {{ a }} {{  b  }}").keys == ("b", "a")


def test_template_takes_dots_as_part_of_the_key() -> None:
    """A dot is no path into a value."""
    assert Template("{{ a.b }}").keys == ("a.b",)


@pytest.mark.parametrize(
    "text", ["{ a }", "{{ }}", "{{ a b }}", "{{{ a }", "{% if a %}", "{{ a", "{# a #}", "$a"]
)
def test_template_has_no_other_places(text: str) -> None:
    """Everything that is not a place is text, and stays as it is."""
    template = Template(text)
    assert template.keys == ()
    assert template.render(lambda key: "never") == text


def test_render_fills_each_place() -> None:
    """Each place gets the value of its key."""
    given = {"a": "1", "b": "2"}
    assert Template("{{a}}-{{ b }}-{{a}}").render(given.__getitem__) == "1-2-1"


def test_render_never_renders_a_value_again() -> None:
    """A value that looks like a place, or like a group of a pattern, is text."""
    given = {"a": "{{ b }} \\1 \\g<0>", "b": "no"}
    assert Template("<{{ a }}>").render(given.__getitem__) == "<{{ b }} \\1 \\g<0>>"


def test_render_writes_other_values_as_json() -> None:
    """A value that is not text is written as JSON, readable."""
    values = {"a": {"k": [1, True, None, "ä"]}}
    assert Template("{{ a }}").render(values.__getitem__) == '{"k": [1, true, null, "ä"]}'


def test_as_text_leaves_text_alone() -> None:
    """Text gets no quotes."""
    assert as_text("a\n") == "a\n"
    assert as_text(1) == "1"


@pytest.mark.parametrize("text", ["", " \n", 3, None])
def test_template_without_text_is_refused(text: Any) -> None:
    """A template must have something to say."""
    with pytest.raises(TreeError, match="needs text that is not blank"):
        Template(text)


def test_default_of_a_key_that_is_not_read_is_refused() -> None:
    """A misspelt default is found when the template is made."""
    with pytest.raises(TreeError, match="default for 'topc', which the template does not read"):
        Template("{{ topic }}", defaults={"topc": "x"})


def test_defaults_are_sealed() -> None:
    """Nobody changes the defaults of a template, nor through the mapping they came from."""
    given = {"a": "1"}
    template = Template("{{ a }}", defaults=given)
    given["a"] = "2"
    written: Any = template.defaults
    with pytest.raises(TypeError):
        written["a"] = "3"
    assert template.defaults == {"a": "1"}


def test_defaults_that_are_not_text_are_refused() -> None:
    """A default is text, as the field says."""
    wrong: Any = {"a": 3}
    with pytest.raises(TreeError):
        Template("{{ a }}", defaults=wrong)


def test_defaults_that_are_no_mapping_are_refused() -> None:
    """What is no mapping is refused with a TreeError."""
    wrong: Any = None
    with pytest.raises(TreeError):
        Template("{{ a }}", defaults=wrong)


def test_reads_of_a_template() -> None:
    """A template declares its keys; those with a default are optional."""
    declared = declared_reads(Template("{{a}}{{b}}", defaults={"b": "x"}))
    assert declared == Reads(("a", "b"), {"b": "x"})
    assert declared is not None
    assert declared.required == ("a",)


def test_reads_of_text_are_none_at_all() -> None:
    """Literal text reads nothing, whatever it looks like."""
    assert declared_reads("{{ a }}") == Reads()


def test_reads_of_an_undeclared_function_are_unknown() -> None:
    """A function that declares nothing may read anything."""
    assert declared_reads(lambda ctx: "x") is None


def test_reads_of_a_declared_function() -> None:
    """`@reads` declares required and optional keys, each once, and gives the function back."""

    def prompt(ctx: PromptContext) -> str:
        return "x"

    assert reads("a", "b", "a", defaults={"b": 1, "c": 2})(prompt) is prompt
    declared = declared_reads(prompt)
    assert declared is not None
    assert declared.keys == ("a", "b", "c")
    assert declared.required == ("a",)
    assert declared.defaults == {"b": 1, "c": 2}


def test_reads_refuses_a_key_that_cannot_be_one() -> None:
    """A key that no template could read is refused where it is declared."""
    with pytest.raises(TreeError, match="@reads: key 'a b'"):
        reads("a b")


@pytest.mark.parametrize("key", ["a", "a.b", "ä", "a-b", "1", "__x"])
def test_ordinary_keys_are_allowed(key: str) -> None:
    """A key is any text without blanks and braces."""
    assert key_problem(key) is None


@pytest.mark.parametrize("key", ["", " ", "a b", "a\n", "{a", "a}"])
def test_keys_that_no_template_could_read_are_refused(key: str) -> None:
    """Blank keys, and keys with spaces or braces, are refused."""
    problem = key_problem(key)
    assert problem is not None
    assert repr(key) in problem


@pytest.mark.parametrize("key", [None, 1, ("a",)])
def test_keys_are_text(key: object) -> None:
    """Anything but text is refused by its type."""
    assert key_problem(key) == f"a key is text, not {type(key).__name__}"
