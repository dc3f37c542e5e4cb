"""From a name to a chat model, with a clear word when there is none."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from mergepoint.core.errors import StepError, TreeError
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.runner import ChatRunner
from mergepoint.models.providers import resolve_model, view_of
from mergepoint.offline.model import OfflineModel
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.server import ModelServer
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block


def test_a_chat_model_is_given_back() -> None:
    """What is a model needs no resolving."""
    model = ScriptedModel([])
    assert resolve_model(model) is model


def test_offline_is_the_embedded_model() -> None:
    """The word "offline" needs no package and no key."""
    assert isinstance(resolve_model("offline"), OfflineModel)


def test_a_provider_and_a_name_give_that_providers_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name such as openai:gpt is LangChain's class for it, with the base URL of one's own."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    model = resolve_model("openai:gpt-5-mini", base_url="http://127.0.0.1:1/v1")
    assert isinstance(model, ChatOpenAI)
    assert (model.model_name, model.openai_api_base) == ("gpt-5-mini", "http://127.0.0.1:1/v1")


@pytest.mark.parametrize("name", ["gpt-5-mini", ":gpt", "openai:", "", ":"])
def test_a_name_without_a_provider_is_refused_with_examples(name: str) -> None:
    """The error says how to write it."""
    with pytest.raises(StepError, match=r"names no provider.*; write 'provider:name', such as"):
        resolve_model(name)


def test_an_unknown_provider_is_refused() -> None:
    """The error is ours, and lists what LangChain supports."""
    with pytest.raises(StepError, match=r"nobody.*\n*.*openai"):
        resolve_model("nobody:nothing")


@pytest.mark.parametrize(
    "thing",
    [
        42,
        None,
        RunnableLambda(str),
        ScriptedModel,
        ScriptedModel([]).with_fallbacks([RunnableLambda(str)]),  # type: ignore[arg-type]
    ],
)
def test_what_is_no_chat_model_is_refused(thing: Any) -> None:
    """A number, a chain or a class is told apart from a model, a fallback that is none too."""
    with pytest.raises(StepError, match=r"a model is a chat model, .* or 'provider:name', not"):
        resolve_model(thing)


def test_a_server_of_ones_own_needs_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """With an address and no key a placeholder is sent, by base_url and by OPENAI_BASE_URL."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with ModelServer(["one", "two"]) as server:
        assert resolve_model("openai:a", base_url=server.url).invoke("A.").text == "one"
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        made = resolve_model("openai:a")
        assert made.invoke("B.").text == "two"
    assert view_of(made) == "alternate"


def test_the_providers_own_server_gets_no_placeholder(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a key the provider's package says which one is missing."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    with pytest.raises(Exception, match="OPENAI_API_KEY"):
        resolve_model("openai:a", base_url="https://api.openai.com/v1")


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"temperature": float("nan")}, "temperature must be a finite number"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1, not 0"),
        ({"timeout": -1}, "timeout is a number of seconds above 0"),
        ({"base_url": "localhost:8080"}, "base_url is an address such as"),
        ({"base_url": {"openai:a": 7}}, "base_url is an address such as"),
    ],
)
def test_settings_that_cannot_be_are_refused(given: Any, problem: str) -> None:
    """What is wrong with a run's settings is found before anything runs."""
    with pytest.raises(TreeError, match=problem):
        ChatRunner("offline", **given)


def test_a_single_address_is_of_a_model_by_its_name() -> None:
    """Beside a chat model that is an object an address would do nothing, so it is refused."""
    with pytest.raises(TreeError, match="base_url is the address of a model that is passed by"):
        compile_graph(Step("A."), model=ScriptedModel([]), base_url="http://127.0.0.1:1/v1")


@pytest.mark.parametrize(
    ("provider", "way_out"),
    [("mistralai", r"\[mistral\]"), ("groq", "package for 'groq'")],
)
def test_a_missing_package_says_what_to_install(
    provider: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider whose package is not installed names the extra, or LangChain's package."""
    package = {"mistralai": "langchain_mistralai", "groq": "langchain_groq"}[provider]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StepError, match=way_out) as raised:
        resolve_model(f"{provider}:some-model")
    assert str(raised.value).count("pip install") == 1  # LangChain proposes one of its own


def test_a_missing_langchain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the langchain package no name can be resolved, and the error says so."""
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(StepError, match=r"provider 'openai' is not installed.*\[openai\]"):
        resolve_model("openai:gpt")


def test_a_tree_takes_a_models_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The run's model and a step's may be names; one name is resolved to one model."""
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    with ModelServer(["one", "two", "three"]) as server:
        monkeypatch.setenv("OPENAI_BASE_URL", server.url)
        monkeypatch.setenv("OPENAI_API_BASE", server.url)
        tree = Block([Step("A."), Step("B.", model="openai:own"), Step("C.", model="openai:own")])
        state = interpret(tree, model="openai:runs", view="as_is")
    assert [str(message.text) for message in state.messages[1::2]] == ["one", "two", "three"]
    assert [exchange.body["model"] for exchange in server.log] == ["runs", "own", "own"]


def test_a_name_that_fits_no_model_is_found_when_the_tree_is_compiled() -> None:
    """Nothing runs before every step's model is there."""
    own = ScriptedModel([])
    tree = Block([Step("A.", model=own), Step("B.", model="nowhere")])
    with pytest.raises(StepError, match="names no provider"):
        compile_graph(tree)
    assert own.calls == []
