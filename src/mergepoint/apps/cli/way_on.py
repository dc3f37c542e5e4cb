"""Way on: the line by which a run goes on, as it can be pasted."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.command import Command, as_kept, key_in_address, read_command
from mergepoint.apps.cli.errors import CommandError
from mergepoint.core.errors import MergepointError

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home

_UNKNOWN = "TARGET --model PROVIDER:NAME"
_KEY = {"--base-url": "URL", "--set": "VALUE"}  # said in place of what may hold a key


def way_on(home: Home, *, now: Command | None = None, answers: Sequence[str] = ()) -> str | None:
    """Give the line that goes on with a run, None where nothing is on record.

    `now` is what it was run with this time; what differs from what it began with is said again.
    Words in capitals stand for what was not written down, because it holds a key.
    """
    if not home.has_journal:
        return None
    given = [word for answer in answers for word in ("--answer", shlex.quote(answer))]
    try:
        recipe = home.tree().get("stage")
    except MergepointError:
        return None
    if recipe is not None:
        return recipe_way_on(home, _recipe_name(str(recipe)))
    try:
        begun = read_command(home)
    except CommandError:
        begun = None
        if now is None:
            return _line("mergepoint run", _UNKNOWN, "--resume", home.name, *given)
    if now is None:
        told = _UNKNOWN if begun is None else ""
        return _line("mergepoint resume", home.name, told, *_keys(begun), *given)
    now = as_kept(now, home.folder)
    changes = None if begun is None else _changes(begun, now)
    if changes is not None:
        return _line("mergepoint resume", home.name, *changes, *_keys(now), *given)
    return _line("mergepoint run", *_all(now), *_keys(now), "--resume", home.name, *given)


def approving(gates: Iterable[str]) -> list[str]:
    """Give an answer to each gate that is open."""
    return [f"{path}=approve" for path in gates]


def recipe_way_on(home: Home, recipe: str, options: Mapping[str, Any] | None = None) -> str:
    """Give the line that goes on with a recipe's run; `options` are those it was run with.

    Values of a list are said one by one; None is not.
    """
    words: list[str] = []
    for name, value in (options or {}).items():
        for one in value if isinstance(value, list) else [value]:
            if one is not None:
                said = _KEY[name] if name == "--base-url" and key_in_address(one) else str(one)
                words += [name, shlex.quote(said)]
    return _line("mergepoint recipe run", recipe, *words, "--resume", home.name)


def _line(*words: str) -> str:
    return " ".join(filter(None, words))


def _recipe_name(name: str) -> str:
    """Give the name of a recipe that comes along; another's file is not on record."""
    from mergepoint.streams.library import LIBRARY

    return shlex.quote(name) if name in LIBRARY else "RECIPE"


def _changes(begun: Command, now: Command) -> list[str] | None:
    """Give what `mergepoint resume` has to be told; None for what it cannot be told."""
    address = begun.base_url if begun.model == now.model else None
    same = replace(
        now,
        target=begun.target,
        model=begun.model,
        base_url=begun.base_url,
        budget=begun.budget,
        prices=begun.prices,
        left_out=begun.left_out,
    )
    lost = [
        any(one != "--base-url" for one in (*begun.left_out, *now.left_out)),
        address is not None and now.base_url is None,
        bool(begun.budget) and not now.budget,
        bool(begun.prices) and not now.prices,
    ]
    if same != begun or any(lost):
        return None
    said = replace(
        now,
        model="" if now.model == begun.model else now.model,
        base_url=None if now.base_url == address else now.base_url,
        budget=() if now.budget == begun.budget else now.budget,
        prices=() if now.prices == begun.prices else now.prices,
    )
    target = [] if now.target == begun.target else [shlex.quote(now.target)]
    return [*target, *_answering(said), *_spending(said)]


def _all(now: Command) -> Iterator[str]:
    """Give all that a command says, in the words of `mergepoint run`."""
    yield shlex.quote(now.target)
    for name, values in (("--set", now.set), ("--without", now.without)):
        for value in values:
            yield from (name, shlex.quote(value))
    if now.parallel is not None:
        yield "--parallel" if now.parallel else "--sequential"
    yield from _answering(replace(now, model="" if now.model == "offline" else now.model))
    if now.form != "subgraphs":
        yield from ("--form", now.form)
    if now.view is not None:
        yield from ("--view", now.view)
    if now.max_concurrency is not None:
        yield from ("--max-concurrency", str(now.max_concurrency))
    yield from _spending(now)


def _answering(command: Command) -> Iterator[str]:
    if command.model:
        yield from ("--model", shlex.quote(command.model))
    if command.base_url is not None:
        yield from ("--base-url", shlex.quote(command.base_url))


def _spending(command: Command) -> Iterator[str]:
    for name, values in (("--budget", command.budget), ("--price", command.prices)):
        for value in values:
            yield from (name, shlex.quote(value))


def _keys(command: Command | None) -> Iterator[str]:
    """Give the options that held keys, with capitals in the place of these."""
    for one in () if command is None else command.left_out:
        name, _, field = one.partition(" ")
        yield name
        yield f"{shlex.quote(field)}={_KEY[name]}" if field else _KEY[name]
