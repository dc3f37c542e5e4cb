"""Template: text with `{{ key }}` places; and `reads`, the same declaration for functions."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from mergepoint.core.errors import TreeError

_PLACE = re.compile(r"\{\{\s*([^\s{}]+)\s*\}\}")
_KEY = re.compile(r"[^\s{}]+")

F = TypeVar("F", bound=Callable[..., Any])


def key_problem(key: object) -> str | None:
    """Say what is wrong with the name of an input or output, or None."""
    if not isinstance(key, str):
        return f"a key is text, not {type(key).__name__}"
    if not _KEY.fullmatch(key):
        return (
            f"key {key!r} must be non-blank, without spaces and braces, so a Template can read it"
        )
    return None


@dataclass(frozen=True, slots=True)
class Template:
    """A prompt with places: `{{ key }}` is looked up in inputs, then in outputs.

    There is no logic: a dot is part of the key, and everything that is not a place is text.
    A key in `defaults` is an optional read: it may be missing or blank, then the default stands.
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
        """Give the keys it reads, each once, in order."""
        return tuple(dict.fromkeys(_PLACE.findall(self.text)))

    @property
    def whole(self) -> str | None:
        """Give the key of a template that is a single place and nothing else."""
        place = _PLACE.fullmatch(self.text.strip())
        return place[1] if place else None

    def render(self, read: Callable[[str], Any]) -> str:
        """Give the text with each place filled by `read(key)`; values are never rendered again."""
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
        """Give the keys that must be there."""
        return tuple(key for key in self.keys if key not in self.defaults)


def reads(*keys: str, defaults: Mapping[str, Any] | None = None) -> Callable[[F], F]:
    """Declare what a prompt function reads, so that a typo is found before a call is paid.

    Keys in `defaults` are optional. Inside the function take them with `ctx.read(key)`.
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
    """Give what a prompt declares to read; None where it declares nothing and may read anything."""
    if isinstance(prompt, Template):
        return Reads(prompt.keys, prompt.defaults)
    if callable(prompt):
        return getattr(prompt, "__mergepoint_reads__", None)
    return Reads()


def as_text(value: Any) -> str:
    """Give text as it is, anything else as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
