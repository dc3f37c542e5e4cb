"""What mergepoint uses of LangChain's and LangGraph's private parts is as it expects."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import langchain_core.language_models.chat_models as chat_models
import pytest
from langchain_core.language_models import FakeListChatModel
from langchain_core.messages import BaseMessage, HumanMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers import _streaming
from langgraph.graph import END, START, MessagesState, StateGraph
from langsmith import tracing_context

import mergepoint
from mergepoint.engine.callbacks import Recorder, StreamingRecorder
from mergepoint.models import langchain_internals as internals
from mergepoint.testing.scripted_model import ScriptedModel

SOURCE = Path(mergepoint.__file__).parent
PRIVATE = re.compile(
    r"(?:from|import) (?:langchain_core|langgraph|langchain)[\w.]*\._\w+"
    r"|from (?:langchain_core|langgraph|langchain)[\w.]* import [^\n]*\b_[a-z]\w*"
    r"|(?<!def )(?<!super\(\)\.)\b(?:_get_ls_params|_llm_type)\b(?!:)"
    r"|_ConfigurableModel|_a?stream_chat_model_events|branch:to:|langgraph_checkpoint_ns"
)


def test_private_names_are_used_in_one_module() -> None:
    """Whoever needs another private name lists it there, with its reason and a test."""
    found = {
        f"{path.relative_to(SOURCE)}: {use}"
        for path in SOURCE.rglob("*.py")
        for use in PRIVATE.findall(path.read_text(encoding="utf-8"))
        if path.name != "langchain_internals.py"
    }
    assert not found


def test_traces_are_told_provider_name_and_temperature() -> None:
    """A chat model without a method of its own for that is known by its class."""
    params = internals.tracing_params(FakeListChatModel(responses=["x"]), temperature=0.5)
    assert params["ls_provider"] == "fakelistchatmodel"
    assert params["ls_temperature"] == 0.5
    assert internals.model_type(FakeListChatModel(responses=["x"])) == "fake-list-chat-model"


def test_tracing_is_asked_of_langchain() -> None:
    """Runs are traced where LangSmith's variables say so."""
    assert not internals.is_traced()
    with tracing_context(enabled=True):
        assert internals.is_traced()


def test_older_content_blocks_are_converted_as_before_a_call() -> None:
    """A model is asked with the blocks that the function returns, and copies are converted."""
    seen: list[list[BaseMessage]] = []

    class Reading(FakeListChatModel):
        def _call(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> str:
            seen.append(messages)
            return super()._call(messages, *args, **kwargs)

    old = {"type": "file", "source_type": "base64", "mime_type": "text/plain", "data": "eA=="}
    message = HumanMessage(content=[old])
    Reading(responses=["x"]).invoke([message])
    [[asked]] = seen
    [converted] = internals.normalized([message])
    assert converted.content == asked.content
    assert message.content == [old]


def test_a_configurable_model_is_known_and_chooses_by_config() -> None:
    """The class that `init_chat_model` returns has its name, and makes the model by a config."""
    langchain = pytest.importorskip("langchain.chat_models")
    pytest.importorskip("langchain_openai")
    model = langchain.init_chat_model(configurable_fields=("model", "model_provider", "api_key"))
    config: RunnableConfig = {
        "configurable": {"model": "gpt-5-mini", "model_provider": "openai", "api_key": "x"}
    }
    assert internals.is_init_chat_model(model)
    assert not internals.is_init_chat_model(FakeListChatModel(responses=["x"]))
    chosen = internals.chosen_chat_model(model, config)
    assert internals.tracing_params(chosen)["ls_model_name"] == "gpt-5-mini"


def test_sources_of_events_are_read_where_a_model_has_them() -> None:
    """LangChain asks a chat model for these attributes by name."""
    source = Path(chat_models.__file__).read_text(encoding="utf-8")
    assert all(f'"{name}"' in source for name in internals.EVENT_SOURCES)


def test_a_handler_with_token_taps_makes_models_stream() -> None:
    """LangChain's protocol has these methods and no others, and a plain recorder lacks them."""
    protocol = _streaming._StreamingCallbackHandler
    declared = {name for name in vars(protocol) if name.startswith("tap_")}
    assert declared == set(internals.TOKEN_TAPS)
    assert isinstance(StreamingRecorder(), protocol)
    assert not isinstance(Recorder(), protocol)
    heard: list[str] = []
    model = ScriptedModel(["Rain falls."])

    class Heard(StreamingRecorder):
        def on_llm_new_token(self, token: Any, **kwargs: Any) -> None:
            heard.append(str(token))

    model.invoke("x", {"callbacks": [Heard()]})
    assert "".join(heard) == "Rain falls."


def test_the_nodes_around_a_call_are_in_its_metadata() -> None:
    """In a node of a graph inside of a graph both are named, the outermost first."""
    found: list[str] = []

    def note(state: MessagesState, config: RunnableConfig) -> dict[str, Any]:
        found.append(internals.node_namespace(config.get("metadata", {})))
        return {}

    inner = StateGraph(MessagesState).add_node("in", note)
    inner.add_edge(START, "in").add_edge("in", END)
    outer = StateGraph(MessagesState).add_node("out", inner.compile())
    outer.add_edge(START, "out").add_edge("out", END)
    outer.compile().invoke({"messages": []})
    assert [part.partition(":")[0] for part in found[0].split("|")] == ["out", "in"]
