"""Command: what a run was started with, kept in its journal, so that a resume need not repeat it.

Keys are never written: an address or a setting that holds one is left out, and named.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.home import COMMAND

if TYPE_CHECKING:
    from mergepoint.apps.cli.home import Home
    from mergepoint.models.view import View
    from mergepoint.run.graph import Form
    from mergepoint.tree.node import Node
    from mergepoint.tree.target import Target

FORMAT = "mergepoint.command/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """A target, what is changed in it for this run, and who answers how.

    `left_out` names the options that hold a key.
    """

    target: str
    set: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    parallel: bool | None = None
    model: str = "offline"
    base_url: str | None = None
    form: Form = "subgraphs"
    view: View | None = None
    max_concurrency: int | None = None
    budget: tuple[str, ...] = ()
    prices: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()

    def tree(self) -> tuple[Target, Node, str]:
        """Give the target, its tree as it is to be run, and what there is to say about it.

        Raises TargetError, TreeError or CommandError for what cannot be had or done.
        """
        from mergepoint.apps.cli.changes import changed
        from mergepoint.tree.check import checked
        from mergepoint.tree.target import resolve_target

        found = resolve_target(self.target)
        tree, said = changed(
            found.tree, settings=self.set, gone=self.without, parallel=self.parallel
        )
        checked(tree)
        return found, tree, said


def written(command: Command, folder: Path | None) -> dict[str, Any]:
    """Give a command as it is kept with its run, without keys.

    Files are named from the run's folder, so that the whole project can be moved; a run without a
    folder has their whole paths.
    """
    kept = _without_keys(replace(command, target=_from(command.target, Path(), folder)))
    return {COMMAND: {"format": FORMAT, **asdict(kept)}}


def read_command(home: Home) -> Command | None:
    """Give the command of a run, None where none was written, as by a run from Python.

    Raises CommandError for one that this version does not know.
    """
    data = home.meta().get(COMMAND)
    if data is None:
        return None
    try:
        return _command(data, home.folder)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(
            f"what {home.place} was started with cannot be used: {error}; say how it goes on, by "
            f"mergepoint run TARGET --model PROVIDER:NAME --resume {home.name}"
        ) from error


def as_kept(command: Command, folder: Path | None) -> Command:
    """Give a command as it would come back from its run's record."""
    return _command(written(command, folder)[COMMAND], folder)


def key_in_address(url: str) -> bool:
    """Say whether an address may hold a key."""
    address = urlsplit(url)
    return bool(address.username or address.password or address.query)


def _command(data: Mapping[str, Any], folder: Path | None) -> Command:
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r}, this version reads {FORMAT}")
    fields = {name: value for name, value in data.items() if name != "format"}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    command = Command(**{**fields, **lists})
    return replace(command, target=_from(command.target, folder or Path(), Path()))


def _from(target: str, here: Path, there: Path | None) -> str:
    """Give a target that is named from one folder as it is named from another, or whole."""
    from mergepoint.tree.target import split_target

    file, name = split_target(target)
    if file is None:
        return target
    whole = (here / file).resolve()
    seen = str(whole) if there is None else os.path.relpath(whole, there.resolve())
    return f"{seen}:{name}" if file.suffix == ".py" else seen


def _without_keys(command: Command) -> Command:
    left_out: list[str] = []
    if command.base_url is not None and key_in_address(command.base_url):
        left_out.append("--base-url")
        command = replace(command, base_url=None)
    secret = [setting for setting in command.set if _holds_key(setting)]
    if secret:
        left_out += [f"--set {setting.partition('=')[0]}" for setting in secret]
        command = replace(command, set=tuple(one for one in command.set if one not in secret))
    return replace(command, left_out=tuple(left_out))


def _holds_key(setting: str) -> bool:
    from mergepoint.apps.cli.changes import read_setting
    from mergepoint.record.redact import hides

    _, field, value = read_setting(setting)
    return hides(field, value)
