"""Conversations that share what they have in common: each is a chain of messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, cast, overload

from langchain_core.messages import BaseMessage

from mergepoint.core.merge import State
from mergepoint.report.views import role_of, said
from mergepoint.tree.semantics import Messages

EMPTY: Final = -1


class Chains:
    """The conversations of a run: a state is the state before its last message, and that message.

    A run of 10,000 calls that see each other's messages has 10,000 conversations of 10,000
    messages. Written as chains, these are 20,000 states. `messages` are distinct messages, and
    `states` pairs of a state (-1: the empty one) and a message, both by index. `reads` contains the
    keys that each call reads, by path: other outputs of a view aren't stored.
    """

    def __init__(self, reads: Mapping[str, Sequence[str]]) -> None:
        self.messages: list[BaseMessage] = []
        self.states: list[tuple[int, int]] = []
        self._reads = reads
        self._state: dict[tuple[int, int], int] = {}
        self._joined: dict[tuple[int, int], int] = {}
        self._number: dict[tuple[str, str, str], int] = {}
        self._first: dict[str, int] = {}

    def made(self, made: Messages) -> Messages:
        """Return a state whose messages are a chain."""
        return State(cast("Any", self.chain(made.messages)), made.outputs)

    def view(self, path: str, view: Messages) -> Messages:
        """Return what the call at a path saw, with only the outputs that it reads."""
        keys = self._reads.get(path, ())
        outputs = {key: view.outputs[key] for key in keys if key in view.outputs}
        messages: Sequence[BaseMessage] = view.messages
        chain = messages if isinstance(messages, ChainedMessages) else self.chain(messages)
        return State(cast("Any", chain), outputs)

    def chain(self, messages: Iterable[BaseMessage]) -> ChainedMessages:
        """Return messages as a chain."""
        return ChainedMessages(self, self.extended(EMPTY, messages))

    def extended(self, state: int, messages: Iterable[BaseMessage]) -> int:
        """Return the state after more messages."""
        for message in messages:
            state = self._after(state, self.number(message))
        return state

    def joined(self, left: int, right: int) -> int:
        """Return the state that is one conversation after another."""
        if left == EMPTY or right == EMPTY:
            return right if left == EMPTY else left
        # Back to what is joined already: of a growing conversation, all but the newest messages.
        missing = []
        while right != EMPTY and (left, right) not in self._joined:
            missing.append(right)
            right = self.states[right][0]
        state = left if right == EMPTY else self._joined[left, right]
        for at in reversed(missing):
            state = self._joined[left, at] = self._after(state, self.states[at][1])
        return state

    def number(self, message: BaseMessage) -> int:
        """Return the index of a message; a message that a person edited is another one."""
        key = (str(message.id), role_of(message), said(message))
        if key not in self._number:
            self._number[key] = len(self.messages)
            self._first.setdefault(key[0], len(self.messages))
            self.messages.append(message)
        return self._number[key]

    def of_id(self, message_id: str) -> int:
        """Return the index of the message that was first known under an id, or -1."""
        return self._first.get(message_id, EMPTY)

    def _after(self, state: int, message: int) -> int:
        found = self._state.setdefault((state, message), len(self.states))
        if found == len(self.states):
            self.states.append((state, message))
        return found


class ChainedMessages(Sequence[BaseMessage]):
    """A conversation as a state of its chains; `+` shares what both sides have."""

    __slots__ = ("_chains", "state")

    def __init__(self, chains: Chains, state: int) -> None:
        self._chains = chains
        self.state = state

    def __add__(self, other: Sequence[BaseMessage]) -> ChainedMessages:
        if isinstance(other, ChainedMessages):
            return ChainedMessages(self._chains, self._chains.joined(self.state, other.state))
        return ChainedMessages(self._chains, self._chains.extended(self.state, other))

    def __radd__(self, other: Sequence[BaseMessage]) -> ChainedMessages:
        return self._chains.chain(other) + self

    def __reversed__(self) -> Iterator[BaseMessage]:
        state = self.state
        while state != EMPTY:
            state, message = self._chains.states[state]
            yield self._chains.messages[message]

    def __iter__(self) -> Iterator[BaseMessage]:
        return iter(list(reversed(self))[::-1])

    def __bool__(self) -> bool:
        return self.state != EMPTY

    def __len__(self) -> int:
        return sum(1 for _ in reversed(self))

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> ChainedMessages: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | ChainedMessages:
        if isinstance(index, slice):
            # `keep` begins a sequence of one message with an empty part of this one.
            empty = index == slice(0)
            return self._chains.chain(() if empty else tuple(self)[index])
        if index == -1 or index == len(self) - 1:
            return next(reversed(self))
        return tuple(self)[index]
