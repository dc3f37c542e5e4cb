"""Prompts: templates with places, and the context that prompt functions read."""

from __future__ import annotations

import copy
import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from types import MappingProxyType, NoneType
from typing import Any, TypeVar, overload

from langchain_core.messages import BaseMessage
from pydantic import BaseModel

from mergepoint.core.errors import MissingKey, StepError, TreeError
from mergepoint.core.paths import nearest

_PLACE = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")
_KEY = re.compile(r"[^\s{}]+")

F = TypeVar("F", bound=Callable[..., Any])


def key_problem(key: object) -> str | None:
    """Return what is wrong with the name of an input or output, or None."""
    if not isinstance(key, str):
        return f"a key is text, not {type(key).__name__}"
    if not _KEY.fullmatch(key):
        return (
            f"key {key!r} must be non-blank, without spaces and braces, so a Template can read it"
        )
    return None


def keys_in(text: str) -> tuple[str, ...]:
    """Return the keys of the places in text, each once, in order."""
    return tuple(dict.fromkeys(_PLACE.findall(text)))


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with places: `{{ key }}` is looked up in inputs, then in outputs.

    There is no logic: a dot is part of the key, and everything that is not a place is text. A key
    in `defaults` is an optional read: if it is missing or blank, the default is used.
    """

    text: str
    _: KW_ONLY
    defaults: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) or not self.text.strip():
            raise TreeError.of("a Template needs text that is not blank")
        if not isinstance(self.defaults, Mapping):
            raise TreeError.of(f"defaults is a mapping of keys to text, not {self.defaults!r}")
        object.__setattr__(self, "defaults", MappingProxyType(dict(self.defaults)))
        for key, value in self.defaults.items():
            if key not in self.keys:
                raise TreeError.of(f"default for {key!r}, which the template does not read")
            if not isinstance(value, str):
                raise TreeError.of(f"the default for {key!r} is text, not {value!r}")

    @property
    def keys(self) -> tuple[str, ...]:
        """Return the keys it reads, each once, in order."""
        return keys_in(self.text)

    @property
    def whole(self) -> str | None:
        """Return the key of a template that is a single place and nothing else."""
        place = _PLACE.fullmatch(self.text.strip())
        return place[1] if place else None

    def render(self, read: Callable[[str], Any]) -> str:
        """Return the text with each place filled by `read(key)`; values are not rendered again."""
        return _PLACE.sub(lambda place: as_text(read(place[1])), self.text)


@dataclass(frozen=True, slots=True)
class Reads:
    """The keys that a prompt declares to read; those in `defaults` are optional."""

    keys: tuple[str, ...] = ()
    defaults: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "defaults", MappingProxyType(dict(self.defaults)))

    @property
    def required(self) -> tuple[str, ...]:
        """Return the keys that must have a value."""
        return tuple(key for key in self.keys if key not in self.defaults)


def reads(*keys: str, defaults: Mapping[str, Any] | None = None) -> Callable[[F], F]:
    """Declare what a prompt function reads, so that `check` finds a typo before any call.

    Inside the function, take the values with `ctx.read(key)`.

    Args:
        keys: Names of inputs or outputs.
        defaults: Optional keys, with the values to use if they are missing.
    """
    declared = Reads(tuple(dict.fromkeys([*keys, *(defaults or {})])), dict(defaults or {}))
    for key in declared.keys:
        if problem := key_problem(key):
            raise TreeError.of(f"@reads: {problem}")

    def declare(function: F) -> F:
        function.__mergepoint_reads__ = declared  # type: ignore[attr-defined]
        return function

    return declare


def declared_reads(prompt: object) -> Reads | None:
    """Return the keys that a prompt declares; None for a function that may read anything."""
    if isinstance(prompt, Template):
        return Reads(prompt.keys, prompt.defaults)
    if callable(prompt):
        return getattr(prompt, "__mergepoint_reads__", None)
    return Reads()


def as_text(value: Any) -> str:
    """Return text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def copied(value: Any) -> Any:
    """Return a deep copy, so that changes do not reach the original.

    Lists and mappings are copied by hand, in a third of the time that `deepcopy` takes. An object
    that Python cannot copy, such as an open file, is returned as it is.
    """
    kind = type(value)
    # Exact types only: a subclass may have state of its own, which `deepcopy` copies too.
    if kind in _FIXED:
        return value
    if kind is dict:
        if _FIXED.issuperset(map(type, value.values())):
            return value.copy()
        return {key: copied(item) for key, item in value.items()}
    if kind is list:
        if _FIXED.issuperset(map(type, value)):
            return value.copy()
        return [copied(item) for item in value]
    if isinstance(value, BaseMessage):
        return copied_message(value)
    try:
        return copy.deepcopy(value)
    except Exception:  # noqa: BLE001  (`__deepcopy__` may raise anything)
        return value


def copied_message(message: M) -> M:
    """Return a deep copy of a message, so that changes do not reach the original.

    It avoids pydantic's `model_copy(deep=True)`, which takes ten times as long for a text message:
    a call copies its whole conversation.
    """
    if message.__pydantic_private__ is not None:
        return message.model_copy(deep=True)
    made = object.__new__(type(message))
    fields = message.__dict__.copy()
    for name, value in fields.items():
        kind = type(value)
        if kind in _FIXED:
            continue
        inner = value.values() if kind is dict else value
        is_flat = kind in (dict, list) and _FIXED.issuperset(map(type, inner))
        fields[name] = value.copy() if is_flat else copied(value)
    _SET_DICT(made, "__dict__", fields)
    _SET_FIELDS(made, message.__pydantic_fields_set__.copy())
    extra = message.__pydantic_extra__
    _SET_EXTRA(made, copied(extra) if extra else {})
    _SET_PRIVATE(made, None)
    return made


M = TypeVar("M", bound=BaseMessage)
_FIXED = frozenset({str, int, float, bool, bytes, NoneType})
_SET_DICT = object.__setattr__
# The slots of pydantic's BaseModel. All are set on a new object: comparing or copying one with
# an empty slot raises AttributeError.
_SET_FIELDS, _SET_EXTRA, _SET_PRIVATE = (
    vars(BaseModel)[f"__pydantic_{name}__"].__set__ for name in ("fields_set", "extra", "private")
)


class MessageCopies(Sequence[BaseMessage]):
    """Messages that are copied on access, so that user code cannot change the state."""

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
        return copied_message(self._messages[index])

    def __repr__(self) -> str:
        return f"MessageCopies({list(self._messages)!r})"


class ValueCopies(Mapping[str, Any]):
    """A read-only mapping that returns copies, and suggests similar keys if one is missing."""

    __slots__ = ("_kind", "_values")

    def __init__(self, values: Mapping[str, Any], kind: str) -> None:
        self._values = values
        self._kind = kind

    def __getitem__(self, key: str) -> Any:
        if key not in self._values:
            raise MissingKey(key, f"no {self._kind} {key!r}{nearest(key, self._values)}")
        return copied(self._values[key])

    def __contains__(self, key: object) -> bool:
        return (
            key in self._values
        )  # Mapping's default would copy the value, or search for similar keys

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ValueCopies({dict(self._values)!r})"


@dataclass(frozen=True)
class PromptContext:
    """The argument of a prompt function: the conversation, inputs and outputs at its step.

    `messages` is the base of the step, `inputs` the run's inputs, `outputs` the captures so far.
    All three return copies. `rng` is seeded only by the run's seed and the path, so it produces the
    same numbers on every engine and in every replay.
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
        """Return a context whose values are copied on access."""
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
        """Return the random number generator of this run at this path."""
        # A text seed is hashed with SHA-512, so it doesn't depend on PYTHONHASHSEED.
        return random.Random(f"{self.seed}/{self.path}")  # noqa: S311  (sampling, no secrets)

    def read(self, key: str) -> Any:
        """Return an input, or an output, or the declared default, in this order.

        Raises MissingKey (a ValueError) if the key is missing, empty or blank, and has no default.
        """
        optional = key in self.reads.defaults
        for values in (self.inputs, self.outputs):
            if key in values:
                value = values[key]
                if value is not None and (not isinstance(value, str) or value.strip()):
                    return value
                # A blank input counts as missing, and must not be replaced by an output.
                if optional:
                    break
                raise MissingKey(key, f"{key!r} is there but blank")
        if optional:
            return copied(self.reads.defaults[key])
        known = [*self.inputs, *self.outputs]
        raise MissingKey(
            key,
            f"missing key {key!r}{nearest(key, known)}; available here: "
            f"{', '.join(sorted(known)) or 'none'}",
        )


@dataclass(frozen=True)
class CallContext(PromptContext):
    """The argument of a Call's function: a PromptContext with access to models.

    `call_id` stays the same when the call runs again, after a crash or a failure. `model()` returns
    the run's chat model, or the one that you name, instrumented: each of its calls is budgeted,
    retried and recorded on its own, and its recorded answer is used when the function runs again.
    """

    call_id: str = ""
    models: Callable[[Any], Any] | None = None

    def model(self, model: Any = None) -> Any:
        """Return a chat model whose calls are recorded one by one, and not repeated on a rerun.

        Use it like any chat model (tools, structured output, streams; in threads and tasks) until
        the function has returned. After that, it raises StepError. Raises TreeError if no model is
        named and the run has none.

        Args:
            model: A chat model or "provider:name"; None means the run's model.
        """
        if self.models is None:
            raise StepError("this context has no models; it is not the one of a running call")
        return self.models(model)
