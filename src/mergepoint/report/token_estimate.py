"""Estimates of tokens without a tokenizer, and their correction by what a provider counted."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Final

from langchain_core.messages import BaseMessage

from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import Replay
from mergepoint.report.views import said

CHARACTERS_PER_TOKEN: Final = 4
"""Of English prose. Tokenizers of today's models have 3.5 to 4.5."""
TOKENS_PER_MESSAGE: Final = 4
"""What chat templates put around each message."""
_DENSE: Final = 0x2E80  # from here on, scripts such as Chinese, Japanese and Korean


def estimate_tokens(text: str) -> int:
    """Return an estimate of a text's tokens, at least 1 for text that isn't empty.

    Four characters of ASCII count as a token, two of other scripts, and one of Chinese, Japanese,
    Korean and emoji.
    """
    if text.isascii():
        return -(-len(text) // CHARACTERS_PER_TOKEN)
    plain = sum(character < "\x80" for character in text)
    dense = sum(ord(character) >= _DENSE for character in text)
    quarters = plain + 2 * (len(text) - plain - dense) + 4 * dense
    return -(-quarters // CHARACTERS_PER_TOKEN)


@lru_cache(maxsize=4096)
def _of_text(text: str) -> int:
    return estimate_tokens(text) + TOKENS_PER_MESSAGE


def message_tokens(message: BaseMessage) -> int:
    """Return an estimate of the tokens of a message in a request."""
    return _of_text(said(message))


def json_tokens(value: Any) -> int:
    """Return an estimate of the tokens of JSON data, such as the definition of a tool."""
    return estimate_tokens(json.dumps(value, default=str))


@dataclass(frozen=True, slots=True)
class TokenScale:
    """Factors from our estimates to what providers counted in an earlier run, by model.

    A model that the run didn't call has the factor of all its calls together.
    """

    by_model: Mapping[str, float] = field(default_factory=dict)
    overall: float = 1.0

    def of(self, model: str) -> float:
        """Return the factor of a model."""
        return self.by_model.get(model, self.overall)

    @classmethod
    def measured(cls, records: Iterable[CallRecord], seen: Replay) -> TokenScale:
        """Return the factors of a run, from the calls whose tokens its providers counted."""
        counted: dict[str, list[int]] = {}
        for record in records:
            usage = record.usage if record.kind == "step" and record.answered else None
            view = seen.views.get(record.path)
            if usage is None or view is None or not usage.get("input_tokens"):
                continue
            parts: Sequence[BaseMessage] = (*record.lead, *view.messages, record.made().messages[0])
            ours = sum(map(message_tokens, parts))
            sums = counted.setdefault(record.model, [0, 0])
            sums[0] += int(usage["input_tokens"])
            sums[1] += ours
        factors = {model: theirs / ours for model, (theirs, ours) in counted.items() if ours}
        theirs, ours = (sum(column) for column in zip((0, 0), *counted.values(), strict=True))
        return cls(factors, theirs / ours if ours else 1.0)
