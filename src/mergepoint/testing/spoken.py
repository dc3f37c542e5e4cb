"""Spoken: a Runnable that gives messages, as a value, so that a test can see which."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import Runnable, RunnableConfig

from mergepoint.testing.seen import digest

FORMS = ("new", "whole", "one", "mapping")


@dataclass(frozen=True)
class Spoken(Runnable[Any, Any]):
    """Answers the messages that it is given with one that tells what they were.

    `form`: "new" a list of what is new, "whole" the conversation with the new at its end, "one" a
    single message, "mapping" what a graph would give. With `asks` a user's message comes first.
    """

    form: str = "new"
    _: KW_ONLY
    asks: bool = False

    def invoke(
        self,
        input: list[BaseMessage],  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> Any:
        """Give the messages."""
        said = AIMessage(f"spoken {digest('', input, {})}")
        new: list[BaseMessage] = [HumanMessage("And?"), said] if self.asks else [said]
        if self.form == "one":
            return said
        if self.form == "mapping":
            return {"messages": [*input, *new], "score": [len(input)], "nothing": {}}
        return [*input, *new] if self.form == "whole" else new
