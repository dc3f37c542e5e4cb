"""`mergepoint check` and `schema`: find problems in trees and recipes without running them."""

from __future__ import annotations

from typing import Annotated

import typer

from mergepoint.apps.cli.completion import complete_workflows
from mergepoint.apps.cli.errors import WRONG
from mergepoint.apps.cli.options import Blocks, Json, Traceback

CHECK_EXAMPLES = (
    "mergepoint check my.yaml",
    "mergepoint check my.py:tree recipes/*.yaml",
    "mergepoint check my.yaml --json | jq -r '.[].problems[]'",
)
SCHEMA_EXAMPLES = ("mergepoint schema > recipe.schema.json",)


def check(
    targets: Annotated[
        list[str],
        typer.Argument(
            help="Workflows: names from 'mergepoint list', FILE.py:NAME, or YAML files.",
            metavar="TARGET",
            autocompletion=complete_workflows,
            show_default=False,
        ),
    ],
    *,
    blocks: Blocks = (),
    json: Json = False,
    traceback: Traceback = False,
) -> None:
    """Report all problems of trees and recipes, with file and line. Nothing is run.

    The exit code is 3 if there is a problem.
    """
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.apps.cli.output import put, put_json, tell
    from mergepoint.core.errors import MergepointError

    load_blocks(blocks)
    found = []
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
    from mergepoint.apps.cli.output import count
    from mergepoint.streams.planning import plan
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


def schema(*, traceback: Traceback = False) -> None:
    """Print the JSON Schema of recipe files, with the parameters of every block.

    Editors complete and check recipe files with it.
    """
    from mergepoint.apps.cli.output import put_json
    from mergepoint.streams.recipe_yaml import recipe_schema

    put_json(recipe_schema())
