"""Runs to look at, with a model that says where it was asked and keeps what it saw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel, LanguageModelInput
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

from mergepoint.core.errors import GateOpen
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.context import RunContext
from mergepoint.engine.run_tree import run_generation
from mergepoint.journal.transcript import Transcript
from mergepoint.models.providers import View
from mergepoint.tree.decision import Answerer
from mergepoint.tree.nodes import Node

RUN = "r1"
Line = tuple[str, str]


def line(message: BaseMessage) -> Line:
    """Return a message as role and text."""
    roles = {"human": "user", "ai": "assistant"}
    return roles.get(message.type, message.type), str(message.text)


class Placard(BaseChatModel):
    """A chat model that answers `from <path>`; `says` gives other answers, blank ones fail."""

    says: Mapping[str, str] = {}

    _saw: dict[str, list[Line]] = PrivateAttr(default_factory=dict)

    @property
    def saw(self) -> dict[str, list[Line]]:
        """Return what each path was sent, as role and text."""
        return self._saw

    def bind_tools(
        self, tools: Sequence[Any], *, tool_choice: str | None = None, **kwargs: Any
    ) -> Runnable[LanguageModelInput, AIMessage]:
        """Take tools and answer with text all the same."""
        return self.bind(tools=list(tools))

    @property
    def _llm_type(self) -> str:
        return "placard"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **kwargs: Any,
    ) -> ChatResult:
        assert run_manager is not None
        path = str(run_manager.metadata["mergepoint"]["path"])
        self._saw[path] = [line(message) for message in messages]
        message = AIMessage(
            self.says.get(path, f"from {path}"),
            usage_metadata={"input_tokens": 1_200, "output_tokens": 3, "total_tokens": 1_203},
        )
        return ChatResult(generations=[ChatGeneration(message=message)])


@dataclass(frozen=True)
class Ran:
    """A run that ended, well or not: its transcript, what it left, what the model saw."""

    transcript: Transcript
    messages: tuple[BaseMessage, ...]
    saw: Mapping[str, Sequence[Line]]


def ran(
    tree: Node,
    folder: Path,
    *,
    inputs: Mapping[str, Any] | None = None,
    messages: Sequence[BaseMessage] = (),
    says: Mapping[str, str] | None = None,
    view: View | None = None,
    answerer: Answerer | None = None,
) -> Ran:
    """Run a tree with a Placard, and give what is left to look at; errors are left in it."""
    model = Placard(says=dict(says or {}))
    ctx = RunContext(run_id=RUN, recorder=Recorder(answerer=answerer))
    try:
        run_generation(
            tree, model=model, inputs=inputs, messages=messages, ctx=ctx, view=view, runs=folder
        )
    except (ValueError, GateOpen):
        assert ctx.error is not None
    return Ran(ctx.transcript(), tuple(ctx.messages), model.saw)
