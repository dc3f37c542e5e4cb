"""Providers: models by name, their settings, and the form in which each is sent a conversation.

A name is "provider:name"; an error names the missing package.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Any, Literal, get_args, overload
from urllib.parse import urlsplit

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.errors import StepError, TreeError, install_command
from mergepoint.core.paths import nearest
from mergepoint.models.budget import cap_name, output_cap, output_cap_of
from mergepoint.models.identity import (
    ChatModel,
    ModelBinding,
    carrying,
    composed,
    is_chat_model,
    not_a_model,
    part_of,
)
from mergepoint.models.langchain_internals import normalized, tracing_params
from mergepoint.tree.leaves import Method, method_problem
from mergepoint.tree.policy import DEFAULT_TIMEOUT, Policy, seconds_problem

_EXTRAS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google_genai": "google",
    "mistralai": "mistral",
    "ollama": "ollama",
}
_KEYS = {
    "openai": "OPENAI_API_KEY",
    "anthropic": "ANTHROPIC_API_KEY",
    "mistralai": "MISTRAL_API_KEY",
}
_BASE_URLS = {"openai": ("OPENAI_BASE_URL", "OPENAI_API_BASE")}
_PROVIDERS_OWN = frozenset({"api.openai.com", "api.anthropic.com", "api.mistral.ai"})
_STARTS = {
    "openai": ("gpt", "o1", "o3", "o4", "chatgpt"),
    "anthropic": ("claude",),
    "google_genai": ("gemini", "gemma"),
    "mistralai": ("mistral", "ministral", "codestral", "magistral"),
    "ollama": ("llama", "qwen", "phi", "deepseek", "smollm"),
}
OFFLINE = "offline"
PLACEHOLDER_KEY = "no-key"
"""The key for a custom server if none is set: clients of providers refuse to send none."""

# A pipeline whose stages keep only their last response has consecutive assistant messages, and may
# begin with one. Some providers reject that. For them, consecutive messages with the same role are
# joined, and the conversation begins with a user line. The state does not change.

View = Literal["as_is", "alternate"]
VIEWS: tuple[str, ...] = get_args(View)

OPENING = "(The conversation so far.)"

# Providers whose APIs, or common chat templates, reject anything but alternating roles.
_ALTERNATING = frozenset(
    {"anthropic", "mistral", "mistralai", "google_genai", "google_vertexai", "huggingface", "vllm"}
)
_OPENAI = "api.openai.com"


def _number_problem(temperature: object) -> str | None:
    if temperature is None:
        return None
    is_number = isinstance(temperature, int | float) and not isinstance(temperature, bool)
    if is_number and math.isfinite(temperature):  # type: ignore[arg-type]
        return None
    return f"temperature must be a finite number, not {temperature!r}"


def _tokens_problem(tokens: object) -> str | None:
    if tokens is None or (type(tokens) is int and tokens > 0):
        return None
    return f"max_tokens must be an integer of at least 1, not {tokens!r}"


def _address_problem(given: object) -> str | None:
    if given is None:
        return None
    found = given.values() if isinstance(given, Mapping) else [given]
    odd = [one for one in found if not _is_address(one)]
    return (
        f"base_url is an address such as http://localhost:8080/v1, not {odd[0]!r}" if odd else None
    )


def _is_address(given: object) -> bool:
    if not isinstance(given, str):
        return False
    address = urlsplit(given)
    return address.scheme in ("http", "https") and bool(address.hostname)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSettings:
    """Default settings of a run's model calls; steps, stages and functions can override them.

    Args:
        temperature: Sent to the provider.
        max_tokens: The output limit of each answer, sent to the provider.
        timeout: Seconds for each attempt.
        base_url: The address of the run's model, or a mapping from names of models, or globs, to
            addresses.
        method: The method of structured output in stages of recipes.

    Raises:
        TreeError: A setting is invalid; the error lists all problems.
    """

    temperature: float | None = None
    max_tokens: int | None = None
    timeout: float | None = None
    base_url: str | Mapping[str, str] | None = None
    method: Method | None = None

    def __post_init__(self) -> None:
        found = [
            _number_problem(self.temperature),
            _tokens_problem(self.max_tokens),
            None if self.timeout is None else seconds_problem("timeout", self.timeout),
            _address_problem(self.base_url),
            method_problem(self.method),
        ]
        if problems := [problem for problem in found if problem]:
            raise TreeError.of("; ".join(problems))
        if isinstance(self.base_url, Mapping):
            object.__setattr__(self, "base_url", MappingProxyType(dict(self.base_url)))

    def over(self, other: ModelSettings) -> ModelSettings:
        """Return these settings, completed by those of another."""
        if self == NO_SETTINGS:
            return other
        fields = ("temperature", "max_tokens", "timeout", "base_url", "method")
        own = {name: getattr(self, name) for name in fields if getattr(self, name) is not None}
        return replace(other, **own)

    def policy(self, policy: Policy) -> Policy:
        """Return a policy with a timeout: its own, or this one, or the default."""
        if policy.timeout is not None:
            return policy
        return replace(policy, timeout=self.timeout or DEFAULT_TIMEOUT)

    def of(self, model: str | ChatModel | None) -> ModelSettings:
        """Return the settings of a run of this model: a single address becomes that of its name.

        Raises TreeError for an address of a model that is not passed by name.
        """
        if not isinstance(self.base_url, str):
            return self
        if not isinstance(model, str):
            raise TreeError.of(
                "base_url is the address of a model that is passed by name, such as "
                "model='openai:qwen3'; for models that steps name, pass a mapping, such as "
                "base_url={'openai:qwen3': 'http://localhost:8080/v1'}"
            )
        return replace(self, base_url={model: self.base_url})

    def address(self, name: str) -> str | None:
        """Return the address of a model's server, or None for the provider's own."""
        if not isinstance(self.base_url, Mapping):
            return self.base_url
        if name in self.base_url:
            return self.base_url[name]
        fitting = (url for glob, url in self.base_url.items() if fnmatchcase(name, glob))
        return next(fitting, None)

    def on(self, model: ChatModel, *, declared: bool = False) -> ChatModel:
        """Return a model whose calls have these settings by default.

        With `declared`, settings that the model itself declares win: it was chosen for one step.
        """
        if self.temperature is None and self.max_tokens is None:
            return model
        change = partial(self._on_one, declared=declared)
        return change(model) if isinstance(model, BaseChatModel) else composed(model, change, "")

    def _on_one(self, model: BaseChatModel, *, declared: bool) -> BaseChatModel:
        part = part_of(model)
        bound = {name: value for name, value in part.bound.items() if name not in part.settings}
        defaults = {name: part.bound[name] for name in part.settings}
        own = tracing_params(model, **bound).get("ls_temperature") if declared else None
        if self.temperature is not None and own is None and "temperature" not in bound:
            defaults["temperature"] = self.temperature
        capped = output_cap(bound) or (declared and output_cap_of(model))
        if self.max_tokens is not None and not capped:
            defaults[cap_name(type(model))] = self.max_tokens
        return carrying(model, ModelBinding({**bound, **defaults}, part.whole, frozenset(defaults)))


NO_SETTINGS = ModelSettings()


class Resolver:
    """Resolves each model name of a run once.

    `settings` are the run's; a single address in them is that of its `main` model. Raises TreeError
    if that model is not passed by name.
    """

    def __init__(
        self, main: str | ChatModel | None = None, settings: ModelSettings = NO_SETTINGS
    ) -> None:
        self.settings = settings.of(main)
        self._named: dict[str, ChatModel] = {}

    def resolve(self, model: str | ChatModel, *, own: bool = True) -> ChatModel:
        """Return a chat model with the run's settings; `own` says that a step or stage sets it.

        Raises the errors of `resolve_model`.
        """
        if not isinstance(model, str):
            return self.settings.on(resolve_model(model), declared=own)
        if model not in self._named:
            made = resolve_model(model, base_url=self.settings.address(model))
            self._named[model] = self.settings.on(made)
        return self._named[model]


@overload
def resolve_model(model: str, *, base_url: str | None = None) -> BaseChatModel: ...
@overload
def resolve_model(model: str | ChatModel, *, base_url: str | None = None) -> ChatModel: ...
def resolve_model(model: str | ChatModel, *, base_url: str | None = None) -> ChatModel:
    """Return a chat model: the object itself, the offline model, or one of a provider.

    Args:
        model: A chat model, "offline", or "provider:name" with a provider of LangChain's
            `init_chat_model`.
        base_url: The address of a server with the provider's API; for `openai` the default is the
            variable OPENAI_BASE_URL. With an address but without the provider's key, a placeholder
            is sent as the key.

    Raises:
        StepError: The name has no provider, or a package is not installed.
    """
    if not isinstance(model, str):
        if not is_chat_model(model):
            raise StepError(not_a_model(model))
        return model
    if model == OFFLINE:
        from mergepoint.offline.model import OfflineModel

        return OfflineModel()
    provider, separator, name = model.partition(":")
    if not separator or not provider or not name:
        raise StepError(
            f"model {model!r} names no provider{_guess(model)}; write 'provider:name', such as "
            f"'openai:gpt-5-mini' or 'ollama:llama3.2', or {OFFLINE!r}"
        )
    if near := nearest(provider, _EXTRAS) if provider not in providers() else "":
        raise StepError(f"model {model!r}: there is no provider {provider!r}{near}")
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise _missing(provider, error) from error
    options = _options(provider, base_url)
    try:
        made = init_chat_model(name, model_provider=provider, **options)
    except ImportError as error:
        raise _missing(provider, error) from error
    except ValueError as error:
        raise StepError(f"model {model!r}: {error}") from error
    if not isinstance(made, BaseChatModel):
        raise StepError(f"model {model!r} is a {type(made).__name__}, not a chat model")
    return made


def _options(provider: str, base_url: str | None) -> dict[str, Any]:
    """Return the address of a model's server, and a placeholder if no key is set."""
    named = (os.environ.get(name) for name in _BASE_URLS.get(provider, ()))
    address = base_url or next(filter(None, named), None)
    if address is None:
        return {}
    options: dict[str, Any] = {"base_url": address}
    if provider == "openai":
        options["stream_usage"] = True  # LangChain asks only OpenAI's own server for it
    own = urlsplit(address).hostname not in _PROVIDERS_OWN
    if own and provider in _KEYS and not os.environ.get(_KEYS[provider]):
        options["api_key"] = PLACEHOLDER_KEY
    return options


def providers() -> frozenset[str]:
    """Return the known providers: ours, and LangChain's if it is installed."""
    try:
        from langchain.chat_models import base
    except ImportError:
        return frozenset(_EXTRAS)
    return frozenset(_EXTRAS) | frozenset(getattr(base, "_BUILTIN_PROVIDERS", ()))


def _guess(model: str) -> str:
    """Return a suggestion for a model name without provider: `(did you mean 'openai:...'?)`."""
    for provider, starts in _STARTS.items():
        if model.lower().startswith(starts):
            return f" (did you mean {f'{provider}:{model}'!r}?)"
    return nearest(model, [OFFLINE])


def _missing(provider: str, error: ImportError) -> StepError:
    extra = _EXTRAS.get(provider)
    if extra is not None:
        fix = install_command(extra)
    else:
        fix = f"pip install langchain and LangChain's package for {provider!r}"
    # LangChain suggests another command, which does not install the tested versions.
    reason = re.sub(r"\.? Please install it with `[^`]*`\.?", "", str(error))
    return StepError(f"the provider {provider!r} is not installed ({reason}); {fix}")


def view_problem(view: object) -> str | None:
    """Return the problem of a view's name, or None."""
    if view in VIEWS:
        return None
    return f"view={view!r}; allowed are {', '.join(map(repr, VIEWS))}"


def view_of(model: BaseChatModel) -> View:
    """Return the default view of a model's provider (see `default_view`)."""
    return default_view(model, str(tracing_params(model).get("ls_provider", "")))


def default_view(model: BaseChatModel, provider: str) -> View:
    """Return a provider's default view.

    An OpenAI-compatible server at another address counts as alternating: local servers use the chat
    templates of their models, and many of those reject consecutive messages with the same role.
    """
    if provider in _ALTERNATING:
        return "alternate"
    if provider == "openai":
        base = getattr(model, "openai_api_base", None) or os.environ.get("OPENAI_BASE_URL")
        return "alternate" if base and urlsplit(str(base)).hostname != _OPENAI else "as_is"
    return "as_is"


def as_langchain_sends(messages: list[BaseMessage]) -> list[BaseMessage]:
    """Return messages with content blocks in the form that LangChain passes to a chat model.

    LangChain converts blocks of older versions when a model is called, before the model's own code.
    """
    if {str}.issuperset(map(type, map(attrgetter("content"), messages))):
        return messages
    return normalized(messages)


def seen_through(view: View, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages in the form in which they are sent.

    With `alternate`, system messages come first, a user message follows, and roles alternate.
    """
    if view == "as_is":
        return list(messages)
    sent: list[BaseMessage] = []
    # sorted() is stable, so the other messages keep their order.
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
    # Joining keeps content only: tool calls would be lost, and their results have no call.
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
