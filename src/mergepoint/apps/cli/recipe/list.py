"""`mergepoint recipe list`: the recipes that come along."""

from __future__ import annotations

from mergepoint.apps.cli.options import JsonOption, TracebackOption

EXAMPLES = ("mergepoint recipe list", "mergepoint recipe list --json | jq -r '.[].name'")


def list_(*, json: JsonOption = False, traceback: TracebackOption = False) -> None:
    """List the recipes: what each is for, and how many calls it makes for one item."""
    from mergepoint.apps.cli.output import put, put_json
    from mergepoint.streams.library import LIBRARY
    from mergepoint.streams.recipe_yaml import load_recipe
    from mergepoint.streams.sealed import plain
    from mergepoint.tree.target import recipe_graphs

    recipes = [LIBRARY.find(name) for name in LIBRARY.names()]
    if json:
        put_json(
            [
                {
                    "name": one.name,
                    "about": one.about,
                    "calls": one.calls,
                    "paper": one.paper,
                    "knobs": plain(one.knobs),
                }
                for one in recipes
            ]
        )
        return
    for one in recipes:
        put(f"{one.name}\n  {one.about}\n  calls: {one.calls}")
    for name, file in recipe_graphs().items():
        put(f"{name}\n  {load_recipe(file).about}\n  an example; see its README.md")
