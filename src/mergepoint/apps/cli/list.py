"""`mergepoint list`: the bundled trees and recipes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.options import Json, Traceback

if TYPE_CHECKING:
    from mergepoint.streams.recipe import Recipe
    from mergepoint.tree.nodes import Input, Node

EXAMPLES = (
    "mergepoint list",
    "mergepoint list --json | jq -r '.[] | select(.kind == \"recipe\").name'",
)


def list_workflows(*, json: Json = False, traceback: Traceback = False) -> None:
    """List the bundled trees and recipes, with their calls and inputs."""
    from mergepoint.apps.cli.output import put, put_json

    found = [*_trees(), *_recipes()]
    if json:
        put_json([facts for facts, _ in found])
        return
    for kind, title in (("tree", "Trees"), ("recipe", "Recipes")):
        put(f"{title}:")
        for facts, lines in found:
            if facts["kind"] == kind:
                put(f"  {facts['name']}")
                for line in lines:
                    put(f"    {line}")


def _trees() -> Iterator[tuple[dict[str, Any], list[str]]]:
    from mergepoint.core.errors import MergepointError
    from mergepoint.tree.load import about, graph_file, graph_names, resolve_target

    for name in graph_names():
        try:
            tree = resolve_target(name).tree
            line = about(graph_file(name)).removeprefix(f"{name}:").strip()
        except MergepointError as error:
            yield {"name": name, "kind": "tree", "problem": str(error)}, [f"invalid: {error}"]
            continue
        yield tree_facts(name, tree, line[:1].upper() + line[1:])


def tree_facts(name: str, tree: Node, line: str) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON form of a tree, and the lines about it."""
    from mergepoint.tree.validate import inputs_of

    inputs = inputs_of(tree)
    facts = {
        "name": name,
        "kind": "tree",
        "about": line,
        **_numbers(tree),
        "inputs": [_input_facts(declared) for declared in inputs],
    }
    listed = ", ".join(_input_text(declared) for declared in inputs) or "none"
    return facts, [*([line] if line else []), f"{_calls(tree)}; inputs: {listed}"]


def _recipes() -> Iterator[tuple[dict[str, Any], list[str]]]:
    from mergepoint.streams.recipe_yaml import LIBRARY, load_recipe
    from mergepoint.tree.load import recipe_graphs

    for name in LIBRARY.names():
        yield recipe_facts(name, LIBRARY.find(name))
    for name, file in recipe_graphs().items():
        yield recipe_facts(name, load_recipe(file))


def recipe_facts(name: str, recipe: Recipe) -> tuple[dict[str, Any], list[str]]:
    """Return the JSON form of a recipe, and the lines about it."""
    from mergepoint.core.frozen_json import thaw

    facts = {
        "name": name,
        "kind": "recipe",
        "about": recipe.about,
        "calls": recipe.calls,
        "paper": recipe.paper,
        "knobs": thaw(recipe.knobs),
    }
    return facts, [recipe.about, f"calls per item: {recipe.calls}"]


def _numbers(tree: Node) -> dict[str, int]:
    """Return the maximum numbers of model calls, function calls and gates."""
    from mergepoint.apps.cli.tree_run import most_model_calls, unrolled
    from mergepoint.tree.nodes import Gate

    found: Counter[str] = Counter()
    for _, node, times in unrolled(tree):
        found[node.kind] += 1 if isinstance(node, Gate) else times * most_model_calls(node)
    return {"calls": found["step"], "functions": found["call"], "gates": found["gate"]}


def _calls(tree: Node) -> str:
    from mergepoint.apps.cli.output import count
    from mergepoint.apps.cli.tree_run import can_make_fewer_calls

    numbers = _numbers(tree)
    most = "up to " if can_make_fewer_calls(tree) else ""
    parts = [f"{most}{count(numbers['calls'], 'call')}"]
    parts += [count(numbers["functions"], "function")] if numbers["functions"] else []
    parts += [count(numbers["gates"], "gate")] if numbers["gates"] else []
    return ", ".join(parts)


def _input_facts(declared: Input) -> dict[str, Any]:
    from mergepoint.tree.nodes import REQUIRED

    kind = {"type": declared.json_type} if declared.json_type else {}
    if declared.default is REQUIRED:
        return {"name": declared.name, "required": True, **kind}
    return {"name": declared.name, "required": False, "default": declared.default, **kind}


def _input_text(declared: Input) -> str:
    from mergepoint.tree.nodes import REQUIRED

    facts = [declared.json_type, "" if declared.default is REQUIRED else "optional"]
    about = ", ".join(filter(None, facts))
    return f"{declared.name} ({about})" if about else declared.name
