"""Announce: how many calls are coming, and to whom, before the first is paid."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

import typer

from mergepoint.apps.cli.errors import CommandError, Declined
from mergepoint.apps.cli.output import count, printable, tell
from mergepoint.core.errors import MergepointError
from mergepoint.tree.loop import Loop
from mergepoint.tree.node import Node, children, root_path, walk
from mergepoint.tree.step import Step

if TYPE_CHECKING:
    from langchain_core.language_models import BaseChatModel


def had_model(model: str, *, base_url: str | None, path: str = "") -> BaseChatModel:
    """Give the chat model of a name.

    Raises CommandError for a name without a provider, a provider that is not installed, and a
    model that its package refuses to make, as it does without a key.
    """
    from mergepoint.models.resolve import OFFLINE, resolve_model

    if base_url is not None and model == OFFLINE:
        raise CommandError("--base-url needs a model: --model provider:name")
    where = f"{path}: " if path else ""
    try:
        return resolve_model(model, base_url=base_url)
    except MergepointError as error:
        raise CommandError(f"{where}{error}") from error
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        raise CommandError(f"{where}model {model!r} cannot be had: {reason}") from error


def calls_by_model(tree: Node, model: BaseChatModel) -> Counter[str]:
    """Give how many steps each real model answers at most, by `provider:name`.

    Steps in a loop count for each of its iterations, those of functions are not known. Raises
    CommandError where a step names a model that cannot be had.
    """
    from mergepoint.models.identity import identity
    from mergepoint.models.offline import OfflineModel

    named: dict[str, BaseChatModel] = {}
    calls: Counter[str] = Counter()
    for path, node, times in unrolled(tree):
        if not isinstance(node, Step):
            continue
        answering = node.model or model
        if isinstance(answering, str):
            if answering not in named:
                named[answering] = had_model(answering, base_url=None, path=path)
            answering = named[answering]
        if not isinstance(answering, OfflineModel):
            calls[identity(answering, node.params)] += times
    return calls


def unrolled(
    tree: Node, path: str | None = None, times: int = 1
) -> Iterator[tuple[str, Node, int]]:
    """Give path and node for all of a tree, and how often the node may be come to."""
    path = root_path(tree) if path is None else path
    yield path, tree, times
    inside = times * tree.max_iterations if isinstance(tree, Loop) else times
    for at, child in children(tree, path):
        yield from unrolled(child, at, inside)


def loops(tree: Node) -> bool:
    """Say whether a tree may make fewer calls than there can be."""
    return any(isinstance(node, Loop) for _, node in walk(tree))


def announce(calls: Counter[str], *, most: bool, yes: bool, quiet: bool) -> None:
    """Say which calls are coming (at `most`); on a terminal, ask whether to go on.

    Raises Declined when the answer is no.
    """
    if not calls or (yes and quiet):
        return
    models = ", ".join(f"{number:,} to {printable(name)}" for name, number in calls.items())
    if len(calls) == 1:
        models = f"all to {printable(next(iter(calls)))}"
    number = count(calls.total(), "model call")
    coming = f"{'up to ' if most else ''}{number} coming: {models}"
    if yes or not (sys.stdin.isatty() and sys.stderr.isatty()):
        tell(f"{coming}.")
    elif not typer.confirm(f"{coming}. Go on?", err=True):
        raise Declined("no call was made")
