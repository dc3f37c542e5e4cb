"""A provider's own client that talks to a server of these tests."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from langchain_openai import ChatOpenAI
from langchain_openai.chat_models import _client_utils

T = TypeVar("T")
_OPEN: list[Any] = []
_build = _client_utils._build_async_httpx_client


def _noted(*args: Any, **options: Any) -> Any:
    _OPEN.append(_build(*args, **options))
    return _OPEN[-1]


_client_utils._build_async_httpx_client = _noted


def client(url: str, **options: Any) -> ChatOpenAI:
    """Return a client pointed at a server; it tries once."""
    return ChatOpenAI(
        model="scripted",
        base_url=url,
        api_key="none needed",  # type: ignore[arg-type]
        **{"max_retries": 0, "timeout": 10, **options},
    )


def on_a_loop(work: Coroutine[Any, Any, T]) -> T:
    """Run on an event loop of its own, and close what clients have open before it ends.

    LangChain keeps a client's connections for later calls; one that outlives its loop is warned of
    in whichever test runs when it is collected.
    """

    async def whole() -> T:
        try:
            return await work
        finally:
            while _OPEN:
                await _OPEN.pop().aclose()
            _client_utils._cached_async_httpx_client.cache_clear()  # the next client opens anew

    return asyncio.run(whole())
