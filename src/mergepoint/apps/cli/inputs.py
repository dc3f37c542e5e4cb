"""Inputs: from `--input` and `--input-file` to the values that a run is given."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mergepoint.apps.cli.errors import CommandError
from mergepoint.core.path import nearest
from mergepoint.tree.block import REQUIRED, Input

STDIN = "-"


def read_inputs(pairs: Sequence[str], files: Sequence[Path]) -> dict[str, Any]:
    """Give the inputs of `key=value` pairs and of files; a pair stands over a file.

    Raises CommandError for what is no pair, for a key given twice, and for a file that cannot be
    read or holds no mapping.
    """
    values: dict[str, Any] = {}
    for file in files:
        values.update(_mapping(file))
    seen: set[str] = set()
    for pair in pairs:
        key, separator, value = pair.partition("=")
        if not separator or not key:
            raise CommandError(f"--input {pair!r}: write it as key=value or key=@file")
        if key in seen:
            raise CommandError(f"--input {key}=...: given twice; keep one of the two")
        seen.add(key)
        values[key] = _text(Path(value[1:]), key) if value.startswith("@") else value
    return values


def check_inputs(
    declared: Sequence[Input], values: Mapping[str, Any], *, example: Path | None = None
) -> None:
    """Compare what is given with what the tree declares; `example` is a file of such inputs.

    Raises CommandError that lists everything that is missing, unknown or blank.
    """
    known = [given.name for given in declared]
    takes = f"the tree takes: {', '.join(known) or 'no inputs'}"
    faults = [
        f"input {name!r} is not declared{nearest(name, known)}; {takes}"
        for name in values
        if name not in known
    ]
    faults += [
        f"input {given.name!r} is missing; add --input {given.name}=TEXT, or put it in a file "
        "for --input-file"
        for given in declared
        if given.name not in values and given.default is REQUIRED
    ]
    if faults and example is not None:
        faults.append(f"an example: --input-file {example}")
    if faults:
        raise CommandError("\n  ".join(faults))


def _text(file: Path, key: str) -> str:
    if str(file) == STDIN:
        return sys.stdin.read()
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CommandError(
            f"--input {key}=@{file}: {_problem(error)}; a value that begins with '@' can be "
            "given in an --input-file"
        ) from error


def _mapping(file: Path) -> dict[str, Any]:
    from mergepoint.tree.strict_yaml import YamlError, load, load_file

    try:
        if str(file) == STDIN:
            value = load(sys.stdin.read(), source="<stdin>").value
        elif file.suffix == ".json":
            value = json.loads(file.read_text(encoding="utf-8"))
        else:
            value = load_file(file).value
    except (OSError, UnicodeDecodeError, YamlError, json.JSONDecodeError) as error:
        raise CommandError(f"--input-file {file}: {_problem(error)}") from error
    if not isinstance(value, dict):
        raise CommandError(
            f"--input-file {file}: it holds a {type(value).__name__}; write a mapping of "
            "names to values"
        )
    return value


def _problem(error: Exception) -> str:
    if isinstance(error, OSError):
        return error.strerror or str(error)
    if isinstance(error, UnicodeDecodeError):
        return "it is not UTF-8 text"
    if isinstance(error, json.JSONDecodeError):
        return f"line {error.lineno} is not JSON: {error.msg}"
    return str(error)
