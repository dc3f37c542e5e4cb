"""Changes: another tree for one run, by `--set`, `--without`, `--parallel`, `--sequential`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from mergepoint.apps.cli.errors import CommandError
from mergepoint.apps.cli.output import count
from mergepoint.tree.block import Block
from mergepoint.tree.check import check
from mergepoint.tree.node import Node, children, walk
from mergepoint.tree.overrides import with_overrides, without
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template

# A name holds no colon, so the first `:word=` ends the path; the value may hold anything.
_SETTING = re.compile(r"(?P<path>[^:]+):(?P<field>[A-Za-z_]+)=(?P<value>.*)", re.DOTALL)
_TEXTS = ("prompt", "system")


def changed(
    tree: Node, *, settings: Sequence[str], gone: Sequence[str], parallel: bool | None
) -> tuple[Node, str]:
    """Give the tree with nodes taken out, then fields set, then blocks side by side or not.

    The text beside it says which blocks are side by side now, and which cannot be.

    Raises CommandError for a setting that cannot be read, and TreeError for one that fits no
    node or that the node refuses.
    """
    if gone:
        tree = without(tree, gone)
    overrides: dict[str, dict[str, Any]] = {}
    for path, field, value in map(read_setting, settings):
        text = field in _TEXTS and isinstance(value, str)
        overrides.setdefault(path, {})[field] = _template_or_text(value) if text else value
    if overrides:
        tree = with_overrides(tree, overrides)
    if parallel is None:
        return tree, ""
    return _side_by_side(tree) if parallel else (_one_by_one(tree), "")


def read_setting(text: str) -> tuple[str, str, Any]:
    """Give path, field and value of a `--set`. Raises CommandError for what is none."""
    found = _SETTING.fullmatch(text)
    if found is None:
        raise CommandError(
            f"--set {text!r}: write it as path:field=value, such as "
            "'stage_2/draft:temperature=0.2' or '**/draft:model=openai:gpt-5-mini'"
        )
    return found["path"], found["field"], _value(found["value"])


def _value(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return text


def _refuse(constant: str) -> NoReturn:
    raise ValueError(constant)


def _template_or_text(text: str) -> str | Template:
    """Give a Template where the text has places, as there is no other way to write one here."""
    if not text.strip():
        return text
    template = Template(text)
    return template if template.keys else text


def _one_by_one(tree: Node) -> Node:
    blocks = {path: {"parallel": False} for path, node in _blocks(tree) if node.parallel}
    return with_overrides(tree, blocks) if blocks else tree


def _side_by_side(tree: Node) -> tuple[Node, str]:
    """Give the tree with those blocks in parallel whose children cannot tell the difference.

    They keep no messages and read nothing that another of them captures. Raises CommandError
    when there is no such block.
    """
    found: list[str] = []
    refused: list[str] = []
    for path, block in _blocks(tree):
        if block.parallel or not _is_wide(block):
            continue
        if problem := _dependence(tree, path, block):
            refused.append(f"{path}: {problem}")
        else:
            found.append(path)
    stay = "".join(f"\n  stays in sequence: {reason}" for reason in refused)
    if not found and not any(block.parallel for _, block in _blocks(tree)):
        raise CommandError(
            "--parallel: no block can run side by side; it takes one whose children all have "
            "merge='none' and read nothing from each other (to force one: "
            f"--set path:parallel=true){stay}"
        )
    said = f"--parallel: {count(len(found), 'block')} now side by side{stay}"
    wide = with_overrides(tree, {path: {"parallel": True} for path in found}) if found else tree
    return wide, said


def _blocks(tree: Node) -> Iterator[tuple[str, Block]]:
    return ((path, node) for path, node in walk(tree) if isinstance(node, Block))


def _is_wide(block: Block) -> bool:
    return len(block.nodes) > 1 and all(child.merge == "none" for child in block.nodes)


def _dependence(tree: Node, path: str, block: Block) -> str | None:
    """Say why the children may tell whether they run side by side; None where they cannot."""
    faults = check(with_overrides(tree, {path: {"parallel": True}}))
    known = {str(fault) for fault in check(tree)}
    for fault in faults:
        if str(fault) not in known:
            return str(fault)
    if not _captures(block):
        return None
    for at, child in children(block, path)[1:]:
        for step_path, node in walk(child, at):
            if isinstance(node, Step) and node.reads is None:
                return f"{step_path}: its prompt is a function that does not declare what it reads"
    return None


def _captures(block: Block) -> bool:
    return any(node.capture_key for child in block.nodes[:-1] for _, node in walk(child))
