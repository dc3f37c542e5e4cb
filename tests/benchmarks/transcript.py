"""HandTranscript: the callback handler that people write to keep what their graph asked."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult


@dataclass(slots=True)
class Entry:
    """One call: where, what was asked, what was answered, and the tokens of both."""

    path: str
    prompt: str
    response: str = ""
    tokens: int = 0


class HandTranscript(BaseCallbackHandler):
    """Collects path, prompt, response and usage of every call.

    The path is that of the graph's nodes, or what a bare loop put into the metadata. It runs
    inline, which costs an async run far less than the default, a thread for each event.
    """

    run_inline = True

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self._open: dict[UUID, Entry] = {}

    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Open an entry."""
        metadata = metadata or {}
        path = metadata.get("path")
        if path is None:
            namespace = str(metadata.get("langgraph_checkpoint_ns", ""))
            path = "/".join(part.partition(":")[0] for part in namespace.split("|"))
        self._open[run_id] = Entry(path, str(messages[0][-1].content))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Close an entry."""
        entry = self._open.pop(run_id)
        generation = response.generations[0][0]
        entry.response = generation.text
        if isinstance(generation, ChatGeneration):
            usage = getattr(generation.message, "usage_metadata", None)
            entry.tokens = usage["total_tokens"] if usage else 0
        self.entries.append(entry)

    def rows(self) -> list[tuple[str, str, str, int]]:
        """Give (path, prompt, response, total tokens) for each call."""
        return [(entry.path, entry.prompt, entry.response, entry.tokens) for entry in self.entries]
