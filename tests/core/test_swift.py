"""Swift classes are made faster, and are what they were in every other respect."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import KW_ONLY, FrozenInstanceError, dataclass, field, replace
from inspect import signature
from typing import Any

import pytest

from mergepoint.core.swift import swift


@dataclass(frozen=True, slots=True)
class Plain:
    """Fields of every kind."""

    first: int
    second: str = "b"
    made: list[int] = field(default_factory=list)
    _: KW_ONLY
    named: int
    later: dict[str, int] = field(default_factory=dict)
    fixed: int = field(init=False, default=7)
    fresh: list[int] = field(init=False, default_factory=list)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.first + self.named)


@swift
@dataclass(frozen=True, slots=True)
class Quick:
    """The same."""

    first: int
    second: str = "b"
    made: list[int] = field(default_factory=list)
    _: KW_ONLY
    named: int
    later: dict[str, int] = field(default_factory=dict)
    fixed: int = field(init=False, default=7)
    fresh: list[int] = field(init=False, default_factory=list)
    total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "total", self.first + self.named)


@swift
@dataclass(frozen=True, slots=True)
class Below(Quick):
    """A class with the fields of another, and one of its own."""

    more: int = field(default=1, kw_only=True)


@swift
@dataclass(frozen=True, slots=True)
class Empty:
    """No fields at all."""


Make = Callable[[Any], Any]
MADE: dict[str, Make] = {
    "least": lambda kind: kind(1, named=2),
    "all": lambda kind: kind(1, "x", [1], named=2, later={"a": 1}),
    "by name": lambda kind: kind(first=1, second="", made=[], named=0, later={}),
    "replaced": lambda kind: replace(kind(1, named=2), named=5, second="z"),
}


def held(value: Any) -> dict[str, Any]:
    """Give every field of a value."""
    names = ("first", "second", "made", "named", "later", "fixed", "fresh", "total")
    return {name: getattr(value, name) for name in names}


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("kind", [Quick, Below])
def test_a_swift_value_is_what_the_plain_one_is(kind: type, made: str) -> None:
    """Fields, defaults, factories, what comes after the init; equal, shown, pickled."""
    found, wanted = MADE[made](kind), MADE[made](Plain)
    assert held(found) == held(wanted)
    assert found == MADE[made](kind)
    assert repr(found).replace(kind.__name__, "Plain").replace(", more=1", "") == repr(wanted)
    assert pickle.loads(pickle.dumps(found)) == found  # noqa: S301  (our own)


def test_what_a_factory_makes_is_not_shared() -> None:
    """Two values have a list each."""
    one, other = Quick(1, named=2), Quick(1, named=2)
    one.made.append(1)
    one.fresh.append(1)
    assert (other.made, other.fresh) == ([], [])


def test_its_signature_is_the_same() -> None:
    """Parameters, their defaults and annotations stay, for `help` and for type checkers."""
    assert str(signature(Quick)) == str(signature(Plain))
    assert Empty() == Empty()


def test_it_is_frozen() -> None:
    """Nobody sets or deletes a field."""
    value: Any = Quick(1, named=2)
    with pytest.raises(FrozenInstanceError):
        value.first = 2
    with pytest.raises(FrozenInstanceError):
        del value.first


@pytest.mark.parametrize("given", [(), (1, 2, 3, 4), {"first": 1, "named": 1, "other": 1}])
def test_wrong_arguments_are_refused_in_the_same_words(given: Any) -> None:
    """Too few, too many and unknown ones: a TypeError that names what is wrong."""

    def told(kind: Any) -> str:
        with pytest.raises(TypeError) as refused:
            kind(**given) if isinstance(given, dict) else kind(*given)
        return str(refused.value).replace(kind.__name__, "K")

    assert told(Quick) == told(Plain)


def test_a_class_without_slots_is_refused() -> None:
    """There is nothing to write to directly; the error says what to say."""

    @dataclass(frozen=True)
    class Loose:
        first: int
        second: int = 2

    with pytest.raises(TypeError, match=r"Loose\.first is in no slot; say slots=True"):
        swift(Loose)
