"""PromptContext: what a prompt function is given, a view it can read and not change."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, overload

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import MissingKey, StepError
from mergepoint.core.path import nearest
from mergepoint.tree.template import Reads


class MessageCopies(Sequence[BaseMessage]):
    """Messages that are copied when they are looked at, so that nobody can change the state."""

    __slots__ = ("_messages",)

    def __init__(self, messages: Sequence[BaseMessage]) -> None:
        self._messages = messages

    def __len__(self) -> int:
        return len(self._messages)

    @overload
    def __getitem__(self, index: int) -> BaseMessage: ...
    @overload
    def __getitem__(self, index: slice) -> MessageCopies: ...
    def __getitem__(self, index: int | slice) -> BaseMessage | MessageCopies:
        if isinstance(index, slice):
            return MessageCopies(self._messages[index])
        return self._messages[index].model_copy(deep=True)

    def __repr__(self) -> str:
        return f"MessageCopies({list(self._messages)!r})"


class ValueCopies(Mapping[str, Any]):
    """A read-only map that hands out copies, and names near keys when one is missing."""

    __slots__ = ("_kind", "_values")

    def __init__(self, values: Mapping[str, Any], kind: str) -> None:
        self._values = values
        self._kind = kind

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise MissingKey(key, f"no {self._kind} {key!r}{nearest(key, self._values)}")
        value = self._values[key]
        return value if isinstance(value, str) else copy.deepcopy(value)

    def __contains__(self, key: object) -> bool:
        return key in self._values  # a Mapping would try to read it, and look for near names

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ValueCopies({dict(self._values)!r})"


@dataclass(frozen=True)
class PromptContext:
    """What a prompt function is given.

    `messages` is the base of the step, `inputs` the run's inputs, `outputs` what was captured so
    far. All three hand out copies. `rng` is seeded by the run's seed and the path alone, so it
    gives the same numbers on every engine and in every replay.
    """

    path: str
    run_id: str
    seed: int
    messages: Sequence[BaseMessage]
    inputs: Mapping[str, Any]
    outputs: Mapping[str, Any]
    reads: Reads = field(default_factory=Reads)

    @classmethod
    def over(
        cls,
        path: str,
        *,
        run_id: str,
        seed: int,
        messages: Sequence[BaseMessage],
        inputs: Mapping[str, Any],
        outputs: Mapping[str, Any],
        reads: Reads | None,
    ) -> PromptContext:
        """Give a context whose values are seen through copies."""
        return cls(
            path,
            run_id,
            seed,
            MessageCopies(messages),
            ValueCopies(inputs, "input"),
            ValueCopies(outputs, "output"),
            reads or Reads(),
        )

    @cached_property
    def rng(self) -> random.Random:
        """Give the random numbers of this run at this path."""
        return random.Random(f"{self.seed}/{self.path}")  # noqa: S311  (sampling, no secrets)

    def read(self, key: str) -> Any:
        """Give an input, else an output, else the declared default.

        Raises MissingKey (a ValueError) when the key is nowhere, or holds nothing or blank text
        and has no default.
        """
        optional = key in self.reads.defaults
        for values in (self.inputs, self.outputs):
            if key in values:
                value = values[key]
                if value is not None and (not isinstance(value, str) or value.strip()):
                    return value
                if optional:
                    break
                raise MissingKey(key, f"{key!r} is there but blank")
        if optional:
            return copy.deepcopy(self.reads.defaults[key])
        known = [*self.inputs, *self.outputs]
        raise MissingKey(
            key,
            f"missing key {key!r}{nearest(key, known)}; at this point there are: "
            f"{', '.join(sorted(known)) or 'none'}",
        )


@dataclass(frozen=True)
class CallContext(PromptContext):
    """What a Call's function is given: a PromptContext, and what it needs to call others.

    `call_id` is the same when the call is made again, after a crash or a failure. `model()` gives
    the run's chat model, or the one that is named, behind the door: each of its calls is granted,
    tried and recorded on its own, and found again when the function runs again.
    """

    call_id: str = ""
    models: Callable[[Any], Any] | None = None

    def model(self, model: Any = None) -> Any:
        """Give a chat model whose calls are on record one by one, and not made again.

        It is called in any way that a chat model is (tools, structured output, streams; in threads
        and tasks), until the function has ended: then it raises StepError. Raises TreeError where
        none is named and the run has none.
        """
        if self.models is None:
            raise StepError("this context has no models; it is not the one of a running call")
        return self.models(model)
