"""Token usage and cost of calls, and the context that merging saved."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from operator import attrgetter
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.core.paths import ancestors
from mergepoint.journal.call_records import CallRecord, sound_usage
from mergepoint.journal.replay import Replay
from mergepoint.tree.leaves import Content
from mergepoint.tree.nodes import Loop, Node, Order, walk


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Model calls, their tokens and their cost in USD; `+` adds two.

    `cost` is the sum of the known costs. `estimated` counts calls without usage from the provider,
    whose cost is an upper bound. `unknown_cost_calls` counts those without any cost, because they
    failed or have no price.
    """

    calls: int = 0
    input_tokens: int = 0
    output_tokens: int = 0
    total_tokens: int = 0
    cost: float = 0.0
    estimated: int = 0
    unknown_cost_calls: int = 0

    def __add__(self, other: Usage) -> Usage:
        if not isinstance(other, Usage):
            return NotImplemented
        return _sum((self, other))

    @classmethod
    def of(cls, record: CallRecord) -> Usage:
        """Return the usage of a call; zero for a replayed answer, or if no model was called."""
        if record.source != "live" or record.kind not in ("step", "inner"):
            return cls()
        usage = None if record.message is None else sound_usage(record.message.usage_metadata)
        told = usage or {}
        return cls(
            calls=1,
            input_tokens=int(told.get("input_tokens") or 0),
            output_tokens=int(told.get("output_tokens") or 0),
            total_tokens=int(told.get("total_tokens") or 0),
            cost=record.cost or 0.0,
            estimated=int(record.answered and usage is None),
            unknown_cost_calls=int(record.cost is None),
        )

    @property
    def known_cost(self) -> float | None:
        """Return the cost in USD, or None if no call's cost is known."""
        return None if self.calls == self.unknown_cost_calls else self.cost

    def to_json(self) -> dict[str, Any]:
        """Return the usage as JSON data."""
        return dict(zip(_NAMES, _VALUES(self), strict=True))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Usage:
        """Return the usage stored in a transcript's JSON."""
        return cls(**{name: data[name] for name in _NAMES})


_NAMES = tuple(known.name for known in fields(Usage))
_VALUES = attrgetter(*_NAMES)


def usage_of(records: Iterable[CallRecord]) -> Usage:
    """Return what all calls used together."""
    return _sum([Usage.of(record) for record in records])


def _sum(used: Sequence[Usage]) -> Usage:
    sums = zip(*map(_VALUES, used), strict=True)
    total = Usage(**dict(zip(_NAMES, map(sum, sums), strict=True))) if used else Usage()
    # Costs are whole picodollars, so this removes the error of adding floats.
    return replace(total, cost=round(total.cost, 12))


def usage_by_path(records: Iterable[CallRecord], order: Callable[[str], Any]) -> dict[str, Usage]:
    """Return the usage at each path of a call and each path above, including everything below.

    So parents add up. Failed attempts count. `order` returns a key to sort the paths by.
    """
    found: dict[str, list[Usage]] = {}
    for record in records:
        used = Usage.of(record)
        if used.calls:
            for path in (*reversed(ancestors(record.key.path)), record.key.path):
                found.setdefault(path, []).append(used)
    return {path: _sum(found[path]) for path in sorted(found, key=order)}


@dataclass(frozen=True, slots=True)
class ContextSaving:
    """Words by white space: `sent` in all, `by_path` for each call, `shared` in one list.

    `shared` is what a careful LangGraph graph with one list of messages would have sent: each node
    sees the list and returns only its answer, without its prompt; parallel nodes do not see each
    other; a node with `merge="none"` writes its answer to a key of its own.
    """

    sent: int = 0
    shared: int = 0
    by_path: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        records: Iterable[CallRecord],
        seen: Replay,
        base: Sequence[BaseMessage],
        tree: Node,
        at: str,
    ) -> ContextSaving:
        """Count the words of answered steps in tree order; `at` is the path of the tree.

        Calls and gates send nothing; the messages that a Call made count where they are seen.
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
        shared, listed = 0, _List(tree, at, count(base))
        for record in records:
            if record.kind == "step":
                own = count(record.lead) + count_words(record.prompt)
                view = seen.views.get(record.key.path)
                by_path[record.key.path] = own + (count(view.messages) if view is not None else 0)
                shared += own + listed.seen_at(record.key.path)
                listed.add(record.key.path, count_words(record.response))
            listed.add(record.key.path, count(record.messages))
        return cls(sum(by_path.values()), shared, by_path)


class _List:
    """The number of words that a node sees in a list of messages that all nodes share."""

    def __init__(self, tree: Node, at: str, base: int) -> None:
        nodes = dict(walk(tree, at))
        self._parallel = {at for at, node in nodes.items() if getattr(node, "parallel", False)}
        self._apart = {at for at, node in nodes.items() if node.merge == "none"}
        self._loops = any(node.kind == Loop.kind for node in nodes.values())
        self._static = Order(tree, at).static if self._loops else str
        self._base = base
        self._below: dict[str, int] = {}  # words from below a path that are seen there

    def add(self, path: str, words: int) -> None:
        """Add an answer, up to the first node around it that does not share its messages."""
        for at in (path, *ancestors(path)):
            self._below[at] = self._below.get(at, 0) + words
            if at in self._apart or (self._loops and self._static(at) in self._apart):
                return
        self._base += words

    def seen_at(self, path: str) -> int:
        """Return the number of words that a node sees, not those of isolated or parallel nodes."""
        words, child = self._base, path
        for at in ancestors(path):
            static = self._static(at) if self._loops else at
            if static in self._parallel:
                words -= self._below.get(at, 0) - self._below.get(child, 0)
            if static in self._apart:
                words += self._below.get(at, 0)
            child = at
        return words


def count_words(content: Content | list[str | dict[str, object]]) -> int:
    """Count the words of a message's content; blocks other than text have none."""
    if isinstance(content, str):
        return len(content.split())
    texts = (block if isinstance(block, str) else block.get("text", "") for block in content)
    return sum(len(text.split()) for text in texts if isinstance(text, str))
