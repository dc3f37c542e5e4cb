"""Items: what a recipe is run on, from arguments and files."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mergepoint.apps.cli.errors import CommandError
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.thing import Thing

ITEMS_FILE = "items.txt"


def read_items(texts: Sequence[str], files: Sequence[str]) -> list[Any]:
    """Give the items of arguments and files, in order.

    A line of a file that begins with a brace is a JSON object: its `content`, and its `props` or
    everything else as props. Raises CommandError for lines that are none, for a file that cannot
    be read, and where there are no items at all.
    """
    items: list[Any] = list(texts)
    for file in files:
        for number, line in enumerate(_lines(file), 1):
            if line.strip():
                items.append(_item(line, f"{file}:{number}"))
    if not items:
        raise CommandError("there are no items; give them as arguments, or by --items FILE")
    return items


def items_beside(recipe: Recipe) -> list[str]:
    """Give the file of example items beside a recipe's own file, in a list; or nothing."""
    source = getattr(recipe.document, "source", "")
    file = Path(source).with_name(ITEMS_FILE) if source else None
    return [str(file)] if file is not None and file.is_file() else []


def _lines(file: str) -> list[str]:
    if file == "-":
        return sys.stdin.read().splitlines()
    try:
        return Path(file).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(f"--items {file}: cannot be read: {error}") from error


def _item(line: str, place: str) -> Any:
    if not line.lstrip().startswith("{"):
        return line
    try:
        data = json.loads(line)
    except ValueError as error:
        raise CommandError(f"{place}: no JSON object: {error}") from error
    if not isinstance(data, Mapping) or "content" not in data:
        raise CommandError(f"{place}: an item is text, or a JSON object with content")
    props = data.get("props", {key: value for key, value in data.items() if key != "content"})
    try:
        return Thing(data["content"], props)
    except (TypeError, ValueError) as error:
        raise CommandError(f"{place}: {error}") from error
