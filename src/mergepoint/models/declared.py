"""Declared: what a model is called with, as plain data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from langchain_core.language_models import BaseChatModel
from pydantic import BaseModel

from mergepoint.models.bound import output_cap, output_cap_of


def declared(
    model: BaseChatModel, stop: Sequence[str] | None, options: Mapping[str, Any]
) -> dict[str, Any]:
    """Give the parameters of a call, bound tools and forms of answers among them.

    Where the call does not say, its temperature and the limit of its answer are those that the
    model declares: models that differ in them do not answer for each other, and a budget knows
    the limit.
    """
    params = {name: _plain(value) for name, value in options.items()}
    if stop:
        params["stop"] = list(stop)
    temperature = model._get_ls_params(**options).get("ls_temperature")
    if temperature is not None:
        params.setdefault("temperature", temperature)
    cap = None if output_cap(params) else output_cap_of(model)
    return params if cap is None else {**params, "max_tokens": cap}


def _plain(value: Any) -> Any:
    """Give a value in which pydantic models are their JSON schemas; as classes they say nothing."""
    if isinstance(value, type) and issubclass(value, BaseModel):
        return value.model_json_schema()
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
