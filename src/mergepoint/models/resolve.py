"""Resolve: from "provider:name" to a chat model, with a clear word when a package is missing."""

from __future__ import annotations

from typing import Any

from langchain_core.language_models import BaseChatModel

from mergepoint.core.errors import StepError

_EXTRAS = {
    "openai": "openai",
    "anthropic": "anthropic",
    "google_genai": "google",
    "mistralai": "mistral",
    "ollama": "ollama",
}
OFFLINE = "offline"


def resolve_model(model: str | BaseChatModel, *, base_url: str | None = None) -> BaseChatModel:
    """Give a chat model as it is, the offline one for "offline", or a provider's.

    Providers are those of LangChain's `init_chat_model`; `base_url` points to a server of one's
    own that speaks the provider's interface.

    Raises StepError for a name without a provider and for a package that is not installed.
    """
    if isinstance(model, BaseChatModel):
        return model
    if not isinstance(model, str):
        raise StepError(
            f"a model is a chat model or 'provider:name', not {type(model).__name__}; what is "
            "bound to a model goes into the step's params"
        )
    if model == OFFLINE:
        from mergepoint.models.offline import OfflineModel

        return OfflineModel()
    provider, separator, name = model.partition(":")
    if not separator or not provider or not name:
        raise StepError(
            f"model {model!r} names no provider; write 'provider:name', such as "
            f"'openai:gpt-5-mini' or 'ollama:llama3.2', or {OFFLINE!r}"
        )
    try:
        from langchain.chat_models import init_chat_model
    except ImportError as error:
        raise _missing(provider, error) from error
    options: dict[str, Any] = {} if base_url is None else {"base_url": base_url}
    try:
        made = init_chat_model(name, model_provider=provider, **options)
    except ImportError as error:
        raise _missing(provider, error) from error
    except ValueError as error:
        raise StepError(f"model {model!r}: {error}") from error
    if not isinstance(made, BaseChatModel):
        raise StepError(f"model {model!r} gave a {type(made).__name__}, not a chat model")
    return made


def _missing(provider: str, error: ImportError) -> StepError:
    extra = _EXTRAS.get(provider)
    if extra is not None:
        way_out = f"pip install 'mergepoint[{extra}]'"
    else:
        way_out = f"pip install langchain and LangChain's package for {provider!r}"
    return StepError(f"the provider {provider!r} is not installed ({error}); {way_out}")
