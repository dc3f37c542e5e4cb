"""`mergepoint list`: the graphs that come along."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.options import JsonOption, TracebackOption

if TYPE_CHECKING:
    from mergepoint.tree.block import Input
    from mergepoint.tree.node import Node

EXAMPLES = ("mergepoint list", "mergepoint list --json | jq -r .[].name")


def list_(*, json: JsonOption = False, traceback: TracebackOption = False) -> None:
    """List the graphs and examples of recipes that come along, with their calls and inputs."""
    from mergepoint.apps.cli.output import put, put_json, tell

    found = [*_graphs(), *_recipes()]
    if json:
        put_json([facts for facts, _ in found])
        return
    for _, text in found:
        put(text)
    if not found:
        tell("no graphs come along")


def _graphs() -> Iterator[tuple[dict[str, Any], str]]:
    from mergepoint.core.errors import MergepointError
    from mergepoint.tree.check import inputs_of
    from mergepoint.tree.target import about, graph_file, graph_names, resolve_target

    for name in graph_names():
        try:
            tree = resolve_target(name).tree
            line = about(graph_file(name)).removeprefix(f"{name}:").strip()
            line = line[:1].upper() + line[1:]
        except MergepointError as error:
            yield {"name": name, "problem": str(error)}, f"{name}\n  cannot be used: {error}"
            continue
        inputs = inputs_of(tree)
        facts = {
            "name": name,
            "about": line,
            **_numbers(tree),
            "inputs": [_input_facts(given) for given in inputs],
        }
        takes = ", ".join(_input_text(given) for given in inputs) or "none"
        yield facts, f"{name}\n  {line}\n  {_calls(tree)}; inputs: {takes}"


def _recipes() -> Iterator[tuple[dict[str, Any], str]]:
    from mergepoint.streams.recipe_yaml import load_recipe
    from mergepoint.tree.target import recipe_graphs

    for name, file in recipe_graphs().items():
        recipe = load_recipe(file)
        facts = {"name": name, "about": recipe.about, "recipe": recipe.name, "calls": recipe.calls}
        calls = f"a recipe, {recipe.calls} calls: mergepoint recipe run {name}"
        yield facts, f"{name}\n  {recipe.about}\n  {calls}"


def _numbers(tree: Node) -> dict[str, int]:
    """Give how many calls of models and functions there are at most, and how many gates."""
    from mergepoint.apps.cli.announce import unrolled
    from mergepoint.tree.gate import Gate

    found: Counter[str] = Counter()
    for _, node, times in unrolled(tree):
        found[node.kind] += 1 if isinstance(node, Gate) else times
    return {"calls": found["step"], "functions": found["call"], "gates": found["gate"]}


def _calls(tree: Node) -> str:
    from mergepoint.apps.cli.announce import loops
    from mergepoint.apps.cli.output import count

    numbers = _numbers(tree)
    most = "up to " if loops(tree) else ""
    parts = [f"{most}{count(numbers['calls'], 'call')}"]
    parts += [count(numbers["functions"], "function")] if numbers["functions"] else []
    parts += [count(numbers["gates"], "gate")] if numbers["gates"] else []
    return ", ".join(parts)


def _input_facts(given: Input) -> dict[str, Any]:
    from mergepoint.tree.block import REQUIRED

    if given.default is REQUIRED:
        return {"name": given.name, "required": True}
    return {"name": given.name, "required": False, "default": given.default}


def _input_text(given: Input) -> str:
    from mergepoint.tree.block import REQUIRED

    return given.name if given.default is REQUIRED else f"{given.name} (may be left out)"
