"""Mutants: one expression of a module's source replaced, its functions' code swapped in place.

Code objects are swapped, not functions: whoever imported the function runs the mutant too, and
classes stay the same, so nothing can fail for another reason than the changed expression.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from types import CodeType, FunctionType, ModuleType

import pytest

BROKEN = frozenset({"NameError", "TypeError", "AttributeError", "UnboundLocalError", "ImportError"})
"""What a mutant that cannot even run would raise: that would prove nothing."""


@dataclass(frozen=True)
class Mutant:
    """A fault: its name, where it is, the expression and its replacement."""

    name: str
    module: str
    old: str
    new: str


def apply(mutant: Mutant, monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the mutant in place until the test ends.

    Raises AssertionError unless the expression occurs exactly once and changes one function.
    """
    module = importlib.import_module(mutant.module)
    source = inspect.getsource(module)
    assert source.count(mutant.old) == 1, f"{mutant.old!r} must occur once in {mutant.module}"
    file = str(module.__file__)
    before = dict(_codes(compile(source, file, "exec")))
    after = dict(_codes(compile(source.replace(mutant.old, mutant.new), file, "exec")))
    assert before.keys() == after.keys()
    changed = [name for name, code in before.items() if _body(code) != _body(after[name])]
    assert len(changed) == 1, f"the mutant must change one function, not {changed}"
    monkeypatch.setattr(_live(module, changed[0]), "__code__", after[changed[0]])


def _codes(code: CodeType, prefix: str = "") -> Iterator[tuple[str, CodeType]]:
    """Yield the code of functions and methods by qualified name; not of what is inside them."""
    for inner in code.co_consts:
        if not isinstance(inner, CodeType) or inner.co_name.startswith("<"):
            continue
        if inner.co_flags & inspect.CO_NEWLOCALS:
            yield inner.co_qualname, inner
        else:
            yield from _codes(inner)


def _body(code: CodeType) -> tuple[object, ...]:
    """Return what a function does, without the lines on which it stands."""
    constants = tuple(_body(c) if isinstance(c, CodeType) else (type(c), c) for c in code.co_consts)
    return code.co_code, constants, code.co_names, code.co_varnames, code.co_freevars


def _live(module: ModuleType, name: str) -> FunctionType:
    owner: object = module
    *classes, last = name.split(".")
    for part in classes:
        owner = vars(owner)[part]
    found = vars(owner)[last]
    if isinstance(found, property):
        found = found.fget
    elif isinstance(found, cached_property):
        found = found.func
    elif isinstance(found, classmethod | staticmethod):
        found = found.__func__
    found = inspect.unwrap(found)
    assert isinstance(found, FunctionType)
    return found
