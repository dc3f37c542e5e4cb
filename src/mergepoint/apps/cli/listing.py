"""`mergepoint list`: the graphs that come along."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.options import JsonOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.tree.block import Input

EXAMPLES = ("mergepoint list", "mergepoint list --json | jq -r .[].name")


def list_(*, json: JsonOption = False, traceback: TracebackOption = False) -> None:
    """List the graphs that come along, with their calls and inputs."""
    from mergepoint.apps.cli.output import put, put_json, tell

    found = list(_graphs())
    if json:
        put_json([facts for facts, _ in found])
        return
    for _, text in found:
        put(text)
    if not found:
        tell("no graphs come along")


def _graphs() -> Iterator[tuple[dict[str, Any], str]]:
    from mergepoint.apps.cli.output import count
    from mergepoint.apps.targets import about, graph_file, graph_names, resolve_target
    from mergepoint.core.errors import MergepointError
    from mergepoint.tree.check import inputs_of
    from mergepoint.tree.node import walk
    from mergepoint.tree.step import Step

    for name in graph_names():
        try:
            tree = resolve_target(name).tree
            line = about(graph_file(name)).removeprefix(f"{name}:").strip()
            line = line[:1].upper() + line[1:]
        except MergepointError as error:
            yield {"name": name, "problem": str(error)}, f"{name}\n  cannot be used: {error}"
            continue
        calls = sum(isinstance(node, Step) for _, node in walk(tree))
        inputs = inputs_of(tree)
        facts = {
            "name": name,
            "about": line,
            "calls": calls,
            "inputs": [_input_facts(given) for given in inputs],
        }
        takes = ", ".join(_input_text(given) for given in inputs) or "none"
        yield facts, f"{name}\n  {line}\n  {count(calls, 'call')}; inputs: {takes}"


def _input_facts(given: Input) -> dict[str, Any]:
    from mergepoint.tree.block import REQUIRED

    if given.default is REQUIRED:
        return {"name": given.name, "required": True}
    return {"name": given.name, "required": False, "default": given.default}


def _input_text(given: Input) -> str:
    from mergepoint.tree.block import REQUIRED

    return given.name if given.default is REQUIRED else f"{given.name} (may be left out)"
