"""`mergepoint recipe schema`: what editors know of recipe files."""

from __future__ import annotations

from mergepoint.apps.cli.options import TracebackOption

EXAMPLES = ("mergepoint recipe schema > recipe.schema.json",)


def schema(*, traceback: TracebackOption = False) -> None:
    """Print the JSON Schema of recipe files, with the params of every block."""
    from mergepoint.apps.cli.output import put_json
    from mergepoint.streams.recipe_schema import recipe_schema

    put_json(recipe_schema())
