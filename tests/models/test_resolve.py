"""From a name to a chat model, with a clear word when there is none."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from langchain_core.runnables import RunnableLambda
from langchain_openai import ChatOpenAI

from mergepoint.core.errors import StepError
from mergepoint.models.offline import OfflineModel
from mergepoint.models.resolve import resolve_model
from mergepoint.run.graph import compile_graph
from mergepoint.run.interpret import interpret
from mergepoint.testing.scripted import ScriptedModel
from mergepoint.testing.server import ModelServer
from mergepoint.tree.block import Block
from mergepoint.tree.step import Step


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
    with pytest.raises(StepError, match="names no provider; write 'provider:name', such as"):
        resolve_model(name)


def test_an_unknown_provider_is_refused() -> None:
    """The error is ours, and lists what LangChain supports."""
    with pytest.raises(StepError, match=r"nobody.*\n*.*openai"):
        resolve_model("nobody:nothing")


@pytest.mark.parametrize(
    "thing", [42, None, RunnableLambda(str), ScriptedModel([]).bind(stop=["x"]), ScriptedModel]
)
def test_what_is_no_chat_model_is_refused(thing: Any) -> None:
    """A number, a chain, a class or a bound model is told apart from a model."""
    with pytest.raises(StepError, match="a model is a chat model or 'provider:name', not"):
        resolve_model(thing)


@pytest.mark.parametrize(
    ("provider", "way_out"),
    [("mistralai", r"mergepoint\[mistral\]"), ("groq", "package for 'groq'")],
)
def test_a_missing_package_says_what_to_install(
    provider: str, way_out: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A provider whose package is not installed names the extra, or LangChain's package."""
    package = {"mistralai": "langchain_mistralai", "groq": "langchain_groq"}[provider]
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(StepError, match=way_out):
        resolve_model(f"{provider}:some-model")


def test_a_missing_langchain_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the langchain package no name can be resolved, and the error says so."""
    monkeypatch.setitem(sys.modules, "langchain.chat_models", None)
    with pytest.raises(
        StepError, match=r"provider 'openai' is not installed.*mergepoint\[openai\]"
    ):
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
