"""Command: what a run was started with, written beside it, so that a resume need not repeat it.

Keys are never written: an address or a setting that holds one is left out, and named.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.folders import COMMAND

if TYPE_CHECKING:
    from mergepoint.apps.targets import Target
    from mergepoint.models.view import View
    from mergepoint.run.graph import Form
    from mergepoint.tree.node import Node

FORMAT = "mergepoint.command/1"

_SECRET = re.compile(
    r"api[_-]?key|secret|password|authorization|bearer|access[_-]?token|\bsk-", re.IGNORECASE
)


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
        from mergepoint.apps.targets import resolve_target
        from mergepoint.tree.check import checked

        found = resolve_target(self.target)
        tree, said = changed(
            found.tree, settings=self.set, gone=self.without, parallel=self.parallel
        )
        checked(tree)
        return found, tree, said


def write_command(command: Command, folder: Path) -> None:
    """Write a command into the folder of its run, without keys.

    Files are named from that folder, so that the whole project can be moved. Raises CommandError
    where nothing can be written.
    """
    from mergepoint.record.whole import write_whole

    kept = _without_keys(replace(command, target=_from(command.target, Path(), folder)))
    text = json.dumps({"format": FORMAT, **asdict(kept)}, indent=2)
    try:
        write_whole(folder / COMMAND, f"{text}\n".encode())
    except OSError as error:
        raise CommandError(f"cannot write {folder / COMMAND}: {error.strerror}") from error


def read_command(folder: Path) -> Command | None:
    """Give the command of a run, None where none was written, as by a run from Python.

    Raises CommandError for a file that holds something else.
    """
    file = folder / COMMAND
    if not file.is_file():
        return None
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
        return _command(data, folder)
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise CommandError(
            f"{file} cannot be used: {error}; remove it, and give TARGET and --model"
        ) from error


def _command(data: Mapping[str, Any], folder: Path) -> Command:
    if data["format"] != FORMAT:
        raise ValueError(f"its format is {data['format']!r}, this version reads {FORMAT}")
    fields = {name: value for name, value in data.items() if name != "format"}
    lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list)}
    command = Command(**{**fields, **lists})
    return replace(command, target=_from(command.target, folder, Path()))


def _from(target: str, here: Path, there: Path) -> str:
    """Give a target that is named from one folder as it is named from another."""
    from mergepoint.apps.targets import split_target

    file, name = split_target(target)
    if file is None:
        return target
    seen = os.path.relpath((here / file).resolve(), there.resolve())
    return f"{seen}:{name}" if file.suffix == ".py" else seen


def _without_keys(command: Command) -> Command:
    left_out: list[str] = []
    if command.base_url is not None:
        address = urlsplit(command.base_url)
        if address.username or address.password or address.query:
            left_out.append("--base-url")
            command = replace(command, base_url=None)
    secret = [setting for setting in command.set if _SECRET.search(setting)]
    if secret:
        left_out += [f"--set {setting.partition('=')[0]}" for setting in secret]
        command = replace(command, set=tuple(one for one in command.set if one not in secret))
    return replace(command, left_out=tuple(left_out))
