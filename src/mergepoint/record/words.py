"""Words: what was sent, and what would have been sent without merging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from langchain_core.messages import BaseMessage

from mergepoint.record.record import CallRecord
from mergepoint.record.replay import Replay
from mergepoint.tree.step import Content


@dataclass(frozen=True, slots=True)
class Words:
    """Words by white space: `sent` in all, `by_path` for each call, `shared` without merging."""

    sent: int = 0
    shared: int = 0
    by_path: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, records: Iterable[CallRecord], seen: Replay, base: Sequence[BaseMessage]) -> Words:
        """Count the words of answered steps in tree order.

        `shared` is what one list of messages that every step appends to would have sent. Calls
        and gates send nothing; the messages that a Call made count where they are seen.
        """
        counted: dict[int, int] = {}

        def count(messages: Iterable[BaseMessage]) -> int:
            total = 0
            for message in messages:
                key = id(message)
                if key not in counted:
                    counted[key] = count_words(message.content)
                total += counted[key]
            return total

        by_path: dict[str, int] = {}
        everything = count(base)
        shared = 0
        for record in records:
            everything += count(record.messages)
            if record.kind != "step":
                continue
            own = count(record.lead) + count_words(record.prompt)
            view = seen.views.get(record.path)
            by_path[record.path] = own + (count(view.messages) if view is not None else 0)
            shared += own + everything
            everything += count_words(record.prompt) + count_words(record.response)
        return cls(sum(by_path.values()), shared, by_path)


def count_words(content: Content | list[str | dict[str, object]]) -> int:
    """Count the words of a message's content; blocks other than text hold none."""
    if isinstance(content, str):
        return len(content.split())
    texts = (block if isinstance(block, str) else block.get("text", "") for block in content)
    return sum(len(text.split()) for text in texts if isinstance(text, str))
