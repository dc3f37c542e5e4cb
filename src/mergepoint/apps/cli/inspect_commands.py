"""`mergepoint list`, `check`, `schema` and `graph`: inspect workflows without running them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mergepoint.apps.cli.framework import argument, option
from mergepoint.apps.cli.options import Blocks, Json, TargetArgument, complete_workflows
from mergepoint.apps.cli.output import WRONG, CommandError, count, put, put_json, tell
from mergepoint.core.errors import MergepointError
from mergepoint.tree.load import about, graph_file, graph_names, recipe_graphs

if TYPE_CHECKING:
    from mergepoint.streams.recipe import Recipe
    from mergepoint.tree.nodes import Input, Node


LIST_EXAMPLES = (
    "mergepoint list",
    "mergepoint list --json | jq -r '.[] | select(.kind == \"recipe\").name'",
)


def list_workflows(*, json: Json = False) -> None:
    """List the bundled trees and recipes, with their calls and inputs."""
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
    from mergepoint.targets import find_target

    for name in graph_names():
        try:
            file = graph_file(name)
            found = find_target(file)
            line = about(file).removeprefix(f"{name}:").strip()
        except MergepointError as error:
            yield {"name": name, "kind": "tree", "problem": str(error)}, [f"invalid: {error}"]
            continue
        if (tree := found.tree) is not None:
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


CHECK_EXAMPLES = (
    "mergepoint check my.yaml",
    "mergepoint check my.py:tree recipes/*.yaml",
    "mergepoint check my.yaml --json | jq -r '.[].problems[]'",
)
SCHEMA_EXAMPLES = (
    "mergepoint schema > recipe.schema.json",
    "mergepoint schema --blocks my_blocks.py > recipe.schema.json",
)


def check(
    targets: Annotated[
        list[str],
        argument(
            "TARGET",
            "Workflows: names from 'mergepoint list', FILE.py:NAME, or YAML files.",
            complete_workflows,
        ),
    ],
    *,
    blocks: Blocks = (),
    json: Json = False,
) -> None:
    """Report all problems of trees and recipes, with file and line. Nothing is run.

    The exit code is 3 if there is a problem.
    """
    from mergepoint.apps.cli.inputs import load_blocks

    load_blocks(blocks)
    found = []
    # Every target is checked, so that one run of the command lists all problems.
    for target in targets:
        try:
            size, problem = _size(target), ""
        except MergepointError as error:
            size, problem = "", str(error)
        found.append({"target": target, "ok": not problem, "problems": problem.splitlines()})
        if problem and not json:
            tell(problem)
        elif not json:
            put(f"{target}: OK ({size})")
    if json:
        put_json(found)
    if not all(one["ok"] for one in found):
        raise typer.Exit(WRONG)


def _size(target: str) -> str:
    """Return the kind and size of a workflow that is valid. Raises MergepointError otherwise."""
    from mergepoint.streams.resolved_recipe import plan
    from mergepoint.targets import find_target
    from mergepoint.tree.nodes import walk
    from mergepoint.tree.validate import checked

    found = find_target(target)
    if found.recipe is not None:
        planned = plan(found.recipe, library=found.library)
        return f"recipe, {count(sum(1 for _ in planned.blocks()), 'stage')}"
    assert found.tree is not None  # noqa: S101  (a target is one of both)
    checked(found.tree)
    return f"tree, {count(sum(1 for _ in walk(found.tree)), 'node')}"


def schema(*, blocks: Blocks = ()) -> None:
    """Print the JSON Schema of recipe files, with the parameters of every block.

    Editors complete and check recipe files with it.
    """
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.streams.recipe_yaml import recipe_schema

    load_blocks(blocks)
    put_json(recipe_schema())


GRAPH_EXAMPLES = (
    "mergepoint graph image_prompt",
    "mergepoint graph image_prompt -o image_prompt.svg",
    "mergepoint graph image_prompt --depth 1 --dark -o overview.svg",
    "mergepoint graph my.py:tree --format mermaid > tree.mmd",
    "mergepoint graph tree_of_thoughts -o tree_of_thoughts.svg",
)

Format = Literal["mermaid", "svg"]


def graph(
    target: TargetArgument,
    *,
    format_: Annotated[
        Format | None,
        option("--format", "-f", help="Format.", default="by the suffix of FILE, or mermaid"),
    ] = None,
    output: Annotated[
        Path | None,
        option("--output", "-o", metavar="FILE", help="File to write.", default="stdout"),
    ] = None,
    depth: Annotated[
        int | None,
        option(
            "--depth", metavar="N", min=1, help="Levels of a tree below its root.", default="all"
        ),
    ] = None,
    no_fold: Annotated[
        bool,
        option(
            "--no-fold",
            help="Draw each block of a tree, even if three or more in a row have the same "
            "structure.",
        ),
    ] = False,
    dark: Annotated[bool, option("--dark", help="Use dark colors (SVG).")] = False,
    blocks: Blocks = (),
) -> None:
    """Draw a tree with its merge points, or a recipe. Nothing is run."""
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.targets import find_target

    load_blocks(blocks)
    found = find_target(target)
    svg = _format(format_, output, dark=dark) == "svg"
    theme: Literal["light", "dark"] = "dark" if dark else "light"
    if found.recipe is not None:
        from mergepoint.streams import recipe_drawing
        from mergepoint.streams.resolved_recipe import plan

        if depth is not None or no_fold:
            raise CommandError(f"--depth and --no-fold are only for trees; {target!r} is a recipe.")
        planned = plan(found.recipe, library=found.library)
        text = (
            recipe_drawing.to_svg(planned, theme=theme)
            if svg
            else recipe_drawing.to_mermaid(planned)
        )
    else:
        from mergepoint.report.svg import to_mermaid, to_svg

        assert found.tree is not None  # noqa: S101  (a target is one of both)
        tree, fold = found.tree, not no_fold
        if svg:
            text = to_svg(tree, depth=depth, fold=fold, theme=theme)
        else:
            text = to_mermaid(tree, depth=depth, fold=fold)
    _write(text, output)


def _format(wanted: Format | None, output: Path | None, *, dark: bool) -> Format:
    """Return the format that is set, or that of the file's name, or Mermaid.

    Raises BadParameter for a dark drawing in Mermaid.
    """
    by_name: Format = "svg" if output and output.suffix.lower() == ".svg" else "mermaid"
    if dark and (wanted or by_name) != "svg":
        raise typer.BadParameter("Mermaid takes its colors from its page. Add --format svg.")
    return wanted or by_name


def _write(text: str, output: Path | None) -> None:
    """Write a drawing to stdout, or to a file whose name is then reported."""
    if output is None:
        put(text.rstrip("\n"))
        return
    output.write_text(text.rstrip("\n") + "\n", encoding="utf-8")
    tell(str(output))
