"""Private parts of LangChain that mergepoint uses, each with the reason.

No other module uses a private name of LangChain or LangGraph, apart from classes that override a
method of a chat model. A test for each name notices when a release changes it:
`tests/models/test_langchain_internals.py`.

LangGraph: no private name. A run reads the nodes of its host from `langgraph_checkpoint_ns` in the
metadata of a call (`node_namespace`), and a failed parallel child resumes under its old
`checkpoint_ns` (`engine/graph_nodes.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.language_models._utils import _normalize_messages
from langchain_core.messages import BaseMessage
from langchain_core.runnables import RunnableConfig
from langchain_core.tracers.context import _tracing_v2_is_enabled

EVENT_SOURCES: Final = ("_stream_chat_model_events", "_astream_chat_model_events")
"""Methods by which a chat model streams events itself, so that no call reaches `_stream`.

LangChain reads them with `getattr` and uses `_stream` where they are None.
"""

TOKEN_TAPS: Final = ("tap_output_iter", "tap_output_aiter")
"""Methods by which LangChain recognizes a callback handler that wants tokens.

A model that can stream then does so when it is invoked
(`langchain_core.tracers._streaming._StreamingCallbackHandler`, a protocol).
"""

NAMESPACE: Final = "langgraph_checkpoint_ns"
"""The key in the metadata of a call under which LangGraph names the nodes around it."""


def tracing_params(model: BaseChatModel, **options: Any) -> LangSmithParams:
    """Return provider, name, temperature and token limit of a model, as traces show them.

    LangChain has no public method that every chat model implements.
    """
    return model._get_ls_params(**options)


def model_type(model: BaseChatModel) -> str:
    """Return the kind of a model, for a model without a provider in traces."""
    return model._llm_type


def is_traced() -> bool:
    """Return whether LangChain sends all runs of this process to LangSmith, as its variables say.

    A run without a root of its own would then be as many traces as it has calls.
    """
    return bool(_tracing_v2_is_enabled())


def normalized(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return messages with content blocks of the current version.

    LangChain converts older blocks when a model is called, before the model's own code. A retry
    starts after that conversion, with fresh copies, so it has to convert them too.
    """
    return _normalize_messages(messages)


def is_init_chat_model(model: object) -> bool:
    """Return whether a model is the configurable one that `init_chat_model` returns.

    The class is private to the package `langchain`, which need not be installed.
    """
    kind = type(model)
    return kind.__name__ == "_ConfigurableModel" and kind.__module__.startswith("langchain.")


def chosen_chat_model(model: Any, config: RunnableConfig | None) -> Any:
    """Return the chat model that a config chooses from the result of `init_chat_model`.

    Raises ValueError or TypeError if the config does not choose one.
    """
    make: Callable[[RunnableConfig | None], Any] = model._model
    return make(config)


def node_namespace(metadata: Mapping[str, Any]) -> str:
    """Return the nodes around a call in LangGraph's form: `node:<uuid>|node:<uuid>`."""
    return str(metadata.get(NAMESPACE, ""))
