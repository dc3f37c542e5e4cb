"""The identity of a model: its name, provider, and settings; and Runnables made of models."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import orjson
from langchain_core.language_models import BaseChatModel, LangSmithParams
from langchain_core.runnables import Runnable, RunnableConfig, RunnableWithFallbacks
from langchain_core.runnables.base import RunnableBindingBase
from langchain_core.runnables.config import ensure_config, merge_configs
from langchain_core.runnables.configurable import DynamicRunnable
from pydantic import BaseModel

from mergepoint.core.errors import StepError
from mergepoint.journal.fingerprint import setting_digest
from mergepoint.models.budget import output_cap, output_cap_of
from mergepoint.models.langchain_internals import (
    chosen_chat_model,
    is_init_chat_model,
    model_type,
    tracing_params,
)

# Users pass chat models, or Runnables of them: `.with_fallbacks()`, `.with_retry()`,
# `.with_config()`, `.bind()`, `.bind_tools()`, `.configurable_fields()`, and the result of
# `init_chat_model` for a model that each call configures. Such a Runnable is taken apart here, so
# that the calls of the models inside are recorded, and rebuilt.


ChatModel: TypeAlias = BaseChatModel | Runnable[Any, Any]
"""A chat model, or a Runnable that is made of some."""

CONFIGURABLE: Final = "configurable"
"""The recorded name of a model that is known only from the config of a call."""

PART = "_mergepoint_part"


@dataclass(frozen=True, slots=True)
class ModelBinding:
    """The settings that a chat model carries from the Runnable around it.

    `bound` are default parameters of its calls. Those named in `settings` come from a run or a
    stage, and yield to those of an inner one. `whole` identifies the Runnable, and is empty for a
    model by itself: it is part of request fingerprints, because any model of the Runnable may
    answer.
    """

    bound: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    whole: str = ""
    settings: frozenset[str] = frozenset()


_ALONE = ModelBinding()


def part_of(model: BaseChatModel) -> ModelBinding:
    """Return what a model carries; a model that nobody prepared carries nothing."""
    found: ModelBinding = vars(model).get(PART, _ALONE)
    return found


def carrying(model: BaseChatModel, part: ModelBinding) -> BaseChatModel:
    """Return a copy of a model with these settings."""
    copied = copy.copy(model)
    object.__setattr__(copied, PART, part)
    return copied


def is_chat_model(model: object) -> bool:
    """Return whether an object is a chat model, or a Runnable that consists of chat models.

    A model that each call configures counts; whether it can be created is known only then.
    """
    if isinstance(model, BaseChatModel) or _is_configurable(model):
        return True
    inner = _inside(model)
    return bool(inner) and all(map(is_chat_model, inner))


def is_dynamic(model: ChatModel) -> bool:
    """Return whether the config of a call decides which model answers."""
    if isinstance(model, BaseChatModel):
        return False
    return _is_configurable(model) or any(map(is_dynamic, _inside(model)))


def configured(model: ChatModel, config: RunnableConfig | None) -> ChatModel:
    """Return the model that a config selects.

    Raises StepError if the config does not select one.
    """
    if isinstance(model, DynamicRunnable):
        chosen, settings = model.prepare(config)
        made = configured(chosen, settings)
        return made if model.config is None else made.with_config(_without_choice(model.config))
    if _is_configurable(model):
        try:
            return configured(chosen_chat_model(model, config), config)
        except (ValueError, TypeError) as error:
            raise StepError(
                f"the configurable model could not be made ({error}); give its fields in the "
                "config, such as config={'configurable': {'model': 'openai:gpt-5-mini'}}"
            ) from error
    if isinstance(model, RunnableBindingBase):
        inside = merge_configs(model.config, ensure_config(config))
        return model.model_copy(update={"bound": configured(model.bound, inside)})
    return _with_inside(model, lambda one: configured(one, config))


def parts(
    model: ChatModel, bound: Mapping[str, Any] | None = None
) -> Iterator[tuple[BaseChatModel, Mapping[str, Any]]]:
    """Yield the chat models inside in the order of trial, each with the parameters of its calls.

    Raises StepError for an object that is not a chat model.
    """
    given = bound or {}
    if isinstance(model, BaseChatModel):
        yield model, {**part_of(model).bound, **given}
        return
    if isinstance(model, RunnableBindingBase):
        given = {**model.kwargs, **given}
    inner = _inside(model)
    if not inner:
        raise StepError(not_a_model(model))
    for one in inner:
        yield from parts(one, given)


def rebuilt(
    model: ChatModel,
    change: Callable[[BaseChatModel, Mapping[str, Any]], ChatModel],
    bound: Mapping[str, Any] | None = None,
) -> ChatModel:
    """Return a Runnable with each chat model inside replaced by the result of `change`.

    `change` gets the model, and the parameters that the Runnables around bind to its calls.
    """
    given = bound or {}
    if isinstance(model, BaseChatModel):
        return change(model, given)
    if isinstance(model, RunnableBindingBase):
        given = {**model.kwargs, **given}
    return _with_inside(model, lambda one: rebuilt(one, change, given))


def identity(model: ChatModel, params: Mapping[str, Any]) -> str:
    """Return the recorded name of a model called with these parameters: `provider:name`.

    That of a Runnable contains each model inside once: `openai:a or anthropic:b`.
    """
    if isinstance(model, BaseChatModel):
        return _name_of(model, tracing_params(model, **params))
    if is_dynamic(model):
        try:
            return identity(configured(model, None), params)
        except StepError:
            return CONFIGURABLE
    return " or ".join(identities(model, params))


def _name_of(model: BaseChatModel, traced: LangSmithParams) -> str:
    name = traced.get("ls_model_name")
    provider = traced["ls_provider"] if "ls_provider" in traced else model_type(model)
    return f"{provider}:{name}" if name else str(provider)


def identities(model: ChatModel, params: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the recorded names of all models inside, each once."""
    if is_dynamic(model):
        try:
            model = configured(model, None)
        except StepError:
            return (CONFIGURABLE,)
    found = (identity(one, {**bound, **params}) for one, bound in parts(model))
    return tuple(dict.fromkeys(found))


def not_a_model(given: object) -> str:
    """Return the error message for an object that is not a chat model."""
    return (
        "a model is a chat model, one with fallbacks, retries, bound arguments or configurable "
        f"fields, or 'provider:name', not {type(given).__name__}"
    )


def _is_configurable(model: object) -> bool:
    """Return whether a config chooses the model."""
    return isinstance(model, DynamicRunnable) or is_init_chat_model(model)


def _inside(model: object) -> tuple[ChatModel, ...]:
    if isinstance(model, RunnableBindingBase):
        return (model.bound,)
    if isinstance(model, RunnableWithFallbacks):
        return (model.runnable, *model.fallbacks)
    return ()


def _with_inside(model: ChatModel, change: Callable[[ChatModel], ChatModel]) -> ChatModel:
    if isinstance(model, RunnableBindingBase):
        return model.model_copy(update={"bound": change(model.bound)})
    if isinstance(model, RunnableWithFallbacks):
        inside = {
            "runnable": change(model.runnable),
            "fallbacks": [change(one) for one in model.fallbacks],
        }
        return model.model_copy(update=inside)
    return model


def _without_choice(config: RunnableConfig) -> RunnableConfig:
    rest: Any = {name: value for name, value in config.items() if name != "configurable"}
    found: RunnableConfig = rest
    return found


def declared(
    model: BaseChatModel, stop: Sequence[str] | None, options: Mapping[str, Any]
) -> tuple[str, str, dict[str, Any]]:
    """Return the recorded name and the provider of a call's model, and the call's parameters.

    They include bound tools and response formats. If the call does not set them, temperature and
    output limit are those that the model declares: models that differ in them must not answer for
    each other, and budgets need the limit.
    """
    traced = tracing_params(model, **options)
    params: dict[str, Any] = plain_options(options)
    if stop:
        params["stop"] = list(stop)
    temperature = traced.get("ls_temperature")
    if temperature is not None:
        params.setdefault("temperature", temperature)
    cap = None if output_cap(params) else output_cap_of(model)
    if cap is not None:
        params["max_tokens"] = cap
    return _name_of(model, traced), str(traced.get("ls_provider", "")), params


def plain_options(value: Any) -> Any:
    """Return the options of a call, or a value in them, as plain data, as far as possible.

    Pydantic models become JSON schemas, since class names say too little.
    """
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    try:
        plain = orjson.loads(orjson.dumps(value))
        if plain == value:
            return plain
    except (TypeError, ValueError):
        pass
    if isinstance(value, Mapping):
        return {key: plain_options(item) for key, item in value.items()}
    return [*map(plain_options, value)] if isinstance(value, list | tuple) else value


def composed(
    model: ChatModel, change: Callable[[BaseChatModel], ChatModel], whole: str | None = None
) -> ChatModel:
    """Return a Runnable of chat models with each replaced by the result of `change`.

    Each model carries the parameters that the Runnables around bind to its calls, and the
    Runnable's identity.
    """
    name = whole_name(model) if whole is None else whole

    def changed(one: BaseChatModel, bound: Mapping[str, Any]) -> ChatModel:
        part = part_of(one)
        return change(
            carrying(one, ModelBinding({**part.bound, **bound}, name, part.settings - set(bound)))
        )

    return rebuilt(model, changed)


def whole_name(model: ChatModel) -> str:
    """Return a digest of the models in a Runnable, and of the parameters bound to their calls."""
    found = [
        setting_digest(identity(one, bound), plain_options(bound), "", None).hex()
        for one, bound in parts(model)
    ]
    return ".".join(found)
