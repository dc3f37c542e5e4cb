"""`mergepoint recipe run`: a recipe on items, its Things as they come."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from mergepoint.apps.cli.options import (
    BaseUrlOption,
    BudgetOption,
    JsonOption,
    ModelOption,
    OutOption,
    PriceOption,
    QuietOption,
    ReplayOption,
    ResumeOption,
    ReuseOption,
    RunIdOption,
    SeedOption,
    StoreOption,
    TracebackOption,
)
from mergepoint.apps.cli.recipe.found import KnobOption, RecipeArgument

EXAMPLES = (
    "mergepoint recipe run best_of_n 'A title for a poster of a night market.'",
    "mergepoint recipe run self_consistency -i questions.txt --model openai:gpt-5-mini -k n=9",
    "cat questions.txt | mergepoint recipe run step_back -i - --json | jq -r .content",
    "mergepoint recipe run best_of_n 'A title, please.' --why '*' score",
    "mergepoint recipe run graphs/research",
)

ItemsArgument = Annotated[
    list[str] | None,
    typer.Argument(help="Items, each a text.", metavar="ITEM", show_default=False),
]
FileOption = Annotated[
    list[str],
    typer.Option(
        "--items",
        "-i",
        metavar="FILE",
        help="Items from a file, a line each, JSON objects as content and props; '-' is stdin.",
        show_default=False,
    ),
]
WantedOption = Annotated[
    int | None,
    typer.Option(
        "--wanted", "-n", metavar="N", min=1, help="So many Things at most.", show_default=False
    ),
]
WhyOption = Annotated[
    tuple[str, str] | None,
    typer.Option(
        metavar="ID PROP",
        help="Tell who set a prop of the Thing with this id, or of all: '*'.",
        show_default=False,
    ),
]


def run(
    recipe: RecipeArgument,
    items: ItemsArgument = None,
    *,
    file: FileOption = [],  # noqa: B006  (typer makes a new list for each call)
    knob: KnobOption = [],  # noqa: B006
    wanted: WantedOption = None,
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    seed: SeedOption = 0,
    budget: BudgetOption = [],  # noqa: B006
    price: PriceOption = [],  # noqa: B006
    run_id: RunIdOption = None,
    resume: ResumeOption = None,
    reuse: ReuseOption = None,
    replay: ReplayOption = None,
    out: OutOption = None,
    store: StoreOption = None,
    why: WhyOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Run a recipe: each Thing goes to stdout as it comes, with --json as a line of JSON.

    Every call is written to DIR/ID/journal.jsonl, or to a database; 'mergepoint runs show' tells
    of it.
    """
    from mergepoint.apps.cli.announce import had_model
    from mergepoint.apps.cli.homes import Homes, check_run_id
    from mergepoint.apps.cli.origin import origin_of
    from mergepoint.apps.cli.output import tell
    from mergepoint.apps.cli.recipe.found import found, read_knobs
    from mergepoint.apps.cli.recipe.items import items_beside, read_items
    from mergepoint.apps.cli.recipe.running import Running
    from mergepoint.apps.cli.spending import read_budget, read_prices
    from mergepoint.apps.cli.way_on import recipe_way_on

    asked, library = found(recipe)
    homes = Homes.at(out, store)
    if run_id is not None:
        check_run_id(run_id)
    origin = origin_of(homes, resume=resume, reuse=reuse, replay=replay)
    options: dict[str, Any] = {
        "model": had_model(model, base_url=base_url),
        "knobs": read_knobs(knob),
        "seed": seed,
        "run_id": run_id,
        "runs": homes.store,
        "budget": read_budget(budget),
        "prices": read_prices(price),
        "library": library,
        **{way: home.named for way, home in origin.items()},
    }
    if resume is None and not items and not file and (file := items_beside(asked)):
        tell(f"No items are given; those of the example are taken: {file[0]}")
    given = None if resume is not None else read_items(items or (), file)
    repeated = {
        "--knob": knob,
        "--wanted": wanted,
        "--model": None if model == "offline" else model,
        "--base-url": base_url,
        "--budget": budget,
        "--price": price,
    }

    def way_on(run_id: str) -> str:
        home = origin.get("resume", homes.home(run_id))
        return recipe_way_on(home, shlex.quote(recipe), repeated)

    running = Running(json=json, quiet=quiet, why=why, way_on=way_on)
    running.run(asked, given, options, wanted=wanted)
