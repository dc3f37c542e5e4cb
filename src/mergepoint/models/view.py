"""Provider's view: how a conversation is sent, without changing the state.

A pipeline whose stages keep only their last response has assistant messages in a row, and may
open with one. Some providers refuse that. For them neighbours of one role are joined, and the
conversation opens with a user line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, get_args
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.errors import StepError

View = Literal["as_is", "alternate"]
VIEWS: tuple[str, ...] = get_args(View)

OPENING = "(The conversation so far.)"

# Providers whose interfaces, or common chat templates, refuse anything but alternation.
_ALTERNATING = frozenset(
    {"anthropic", "mistral", "mistralai", "google_genai", "google_vertexai", "huggingface", "vllm"}
)
_OPENAI = "api.openai.com"


def view_problem(view: object) -> str | None:
    """Say what is wrong with the name of a view, or None."""
    if view in VIEWS:
        return None
    return f"view={view!r}; allowed are {', '.join(map(repr, VIEWS))}"


def view_of(model: BaseChatModel) -> View:
    """Give a provider's default view.

    An OpenAI-compatible server at another address counts as alternating: local servers run the
    chat templates of the models they serve, and many of those refuse neighbours of one role.
    """
    provider = str(model._get_ls_params().get("ls_provider", ""))
    if provider in _ALTERNATING:
        return "alternate"
    if provider == "openai":
        base = getattr(model, "openai_api_base", None)
        return "alternate" if base and urlsplit(str(base)).hostname != _OPENAI else "as_is"
    return "as_is"


def seen_through(view: View, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Give the messages as they are sent.

    With `alternate` what the system says stands at the front, a user opens, and roles take turns.
    """
    if view == "as_is":
        return list(messages)
    sent: list[BaseMessage] = []
    for message in sorted(messages, key=lambda message: message.type != "system"):
        opening = not sent or isinstance(sent[-1], SystemMessage)
        if opening and message.type == "ai":
            sent.append(HumanMessage(OPENING))
        if sent and sent[-1].type == message.type and _joinable(sent[-1], message):
            sent[-1] = _joined(sent[-1], message)
        else:
            sent.append(message)
    return sent


def _joinable(first: BaseMessage, second: BaseMessage) -> bool:
    plain = isinstance(second, HumanMessage | AIMessage | SystemMessage)
    tools = isinstance(first, AIMessage) and (first.tool_calls or second.tool_calls)  # type: ignore[attr-defined]
    return plain and not tools


def _joined(first: BaseMessage, second: BaseMessage) -> BaseMessage:
    kind: dict[str, type[HumanMessage | AIMessage | SystemMessage]] = {
        "human": HumanMessage,
        "ai": AIMessage,
        "system": SystemMessage,
    }
    if first.type not in kind:
        raise StepError(f"a {first.type} message cannot be joined")
    if isinstance(first.content, str) and isinstance(second.content, str):
        return kind[first.type](content=f"{first.content}\n\n{second.content}")
    return kind[first.type](content=[*_blocks(first), *_blocks(second)])


def _blocks(message: BaseMessage) -> list[str | dict[str, object]]:
    if isinstance(message.content, str):
        return [{"type": "text", "text": message.content}]
    return list(message.content)
