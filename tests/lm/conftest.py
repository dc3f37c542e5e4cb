"""One server for all tests of this folder; it ends with them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from langchain_core.language_models import BaseChatModel

from tests.lm.llama import Llama, Proxy, llama


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Llama]:
    """Serve SmolLM2-135M."""
    with llama(tmp_path_factory.mktemp("llama") / "log.txt") as serving:
        yield serving


@pytest.fixture
def proxy(server: Llama) -> Iterator[Proxy]:
    """Count what the server is asked."""
    with Proxy(server.port).serving() as counting:
        yield counting


@pytest.fixture(autouse=True)
def _at_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write runs into a folder of the test's own, and have no key."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)


@pytest.fixture
def model(proxy: Proxy) -> BaseChatModel:
    """Return the small model behind the counting proxy, without any key."""
    from mergepoint.models.providers import resolve_model

    made = resolve_model("openai:smollm2", base_url=proxy.url)
    assert isinstance(made, BaseChatModel)
    return made
