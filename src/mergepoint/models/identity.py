"""Identity: the name by which a model is on record."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from langchain_core.language_models import BaseChatModel


def identity(model: BaseChatModel, params: Mapping[str, Any]) -> str:
    """Give `provider:name` of a model called with these parameters."""
    known = model._get_ls_params(**params)
    name = known.get("ls_model_name")
    provider = known.get("ls_provider", model._llm_type)
    return f"{provider}:{name}" if name else str(provider)
