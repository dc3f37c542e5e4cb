"""App: the command line as a whole. What is heavy is imported inside of the commands."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import typer

from mergepoint.apps.cli import demo, graph, listing, resume, run, show, ui
from mergepoint.apps.cli.chat import chat
from mergepoint.apps.cli.errors import REFUSED
from mergepoint.apps.cli.guard import GuardedGroup
from mergepoint.apps.cli.output import put
from mergepoint.apps.cli.plain_command import PlainCommand
from mergepoint.apps.cli.recipe import check as check_recipe
from mergepoint.apps.cli.recipe import draw as draw_recipe
from mergepoint.apps.cli.recipe import list as list_recipes
from mergepoint.apps.cli.recipe import run as run_recipe
from mergepoint.apps.cli.recipe import schema as recipe_schema
from mergepoint.apps.cli.recipe import show as show_recipe
from mergepoint.apps.cli.runs import check, export, repair, tail
from mergepoint.apps.cli.runs import list as list_runs
from mergepoint.apps.cli.runs import show as show_run
from mergepoint.apps.cli.session import check as check_session
from mergepoint.apps.cli.session import export as export_session
from mergepoint.apps.cli.session import list as list_sessions
from mergepoint.apps.cli.session import repair as repair_session
from mergepoint.apps.cli.session import show as show_session

EXIT_CODES = (
    "Exit codes: 0 done; 1 the run failed; 2 it was asked for in a way that cannot be done, and "
    "nothing was run; 3 a check found something wrong; 4 the run waits for a decision at a "
    "gate; 130 interrupted, or declined; 141 the reader of the output is gone."
)

app = typer.Typer(
    name="mergepoint",
    cls=GuardedGroup,
    invoke_without_command=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # plain help is shorter, and its examples can be copied
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main() -> Any:
    """Run the command, and leave the process with its exit code."""
    return app()


def _epilog(examples: tuple[str, ...]) -> str:
    """Give an epilog; the mark keeps its lines as they are."""
    shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)])
    return f"{shown}\n\n{EXIT_CODES}"


def _version(*, wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        put(version("mergepoint"))
        raise typer.Exit


def _help_alone(ctx: typer.Context) -> None:
    """Answer a group that was asked for nothing with its help."""
    if ctx.invoked_subcommand is None:
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(REFUSED)


@app.callback(
    epilog=_epilog((*demo.EXAMPLES[:1], *run.EXAMPLES[:2], *show.EXAMPLES[:2])),
)
def _root(
    ctx: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _version(wanted=value),
            is_eager=True,
            help="Show the version.",
        ),
    ] = False,
) -> None:
    """LLM workflows in which every node runs on a copy and state changes at one point."""
    _help_alone(ctx)


def _add(
    name: str,
    command: Callable[..., None],
    line: str,
    examples: tuple[str, ...],
    *,
    to: typer.Typer = app,
) -> None:
    to.command(name, cls=PlainCommand, short_help=line, epilog=_epilog(examples))(command)


_add("demo", demo.demo, "From an example brief to an image prompt, without a key.", demo.EXAMPLES)
_add("run", run.run, "Run a tree, and write everything down.", run.EXAMPLES)
_add("graph", graph.graph, "Draw a tree as Mermaid or SVG.", graph.EXAMPLES)
_add("resume", resume.resume, "Go on with a run that did not end.", resume.EXAMPLES)
_add("show", show.show, "Show what a call saw, and where its answer went.", show.EXAMPLES)
_add("list", listing.list_, "List the graphs that come along.", listing.EXAMPLES)

_add("chat", chat.chat, "Talk with an agent that writes and runs programs.", chat.EXAMPLES)
_add("ui", ui.ui, "Talk with it in the browser.", ui.EXAMPLES)

runs = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@runs.callback(epilog=_epilog((*list_runs.EXAMPLES[:1], *tail.EXAMPLES[:1], *check.EXAMPLES[:1])))
def _runs(ctx: typer.Context) -> None:
    """See, check, repair and export runs, those that were killed too."""
    _help_alone(ctx)


_add("list", list_runs.list_, "List the runs, the newest first.", list_runs.EXAMPLES, to=runs)
_add("show", show_run.show, "Show how far a run came.", show_run.EXAMPLES, to=runs)
_add("tail", tail.tail, "Show records as they are appended.", tail.EXAMPLES, to=runs)
_add("check", check.check, "Say what is wrong with runs.", check.EXAMPLES, to=runs)
_add("repair", repair.repair, "Cut a damaged journal to what is good.", repair.EXAMPLES, to=runs)
_add("export", export.export, "Give the transcript of a journal.", export.EXAMPLES, to=runs)
app.add_typer(runs, name="runs", short_help="See, check, repair and export runs.")

sessions = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@sessions.callback(epilog=_epilog((*list_sessions.EXAMPLES[:1], *show_session.EXAMPLES[:2])))
def _sessions(ctx: typer.Context) -> None:
    """List, show, export, check and repair sessions."""
    _help_alone(ctx)


_add("list", list_sessions.list_, "List the sessions.", list_sessions.EXAMPLES, to=sessions)
_add("show", show_session.show, "Show a session.", show_session.EXAMPLES, to=sessions)
_add("export", export_session.export, "Give it as YAML.", export_session.EXAMPLES, to=sessions)
_add("check", check_session.check, "Say what is wrong.", check_session.EXAMPLES, to=sessions)
_add("repair", repair_session.repair, "Keep what is good.", repair_session.EXAMPLES, to=sessions)
app.add_typer(sessions, name="session", short_help="List, show, check and repair sessions.")

recipes = typer.Typer(invoke_without_command=True, rich_markup_mode=None)


@recipes.callback(epilog=_epilog((*list_recipes.EXAMPLES[:1], *run_recipe.EXAMPLES[:2])))
def _recipes(ctx: typer.Context) -> None:
    """List, show, draw, check and run recipes: streams of Things through blocks."""
    _help_alone(ctx)


for _name, _module, _command, _line in (
    ("list", list_recipes, list_recipes.list_, "List the recipes that come along."),
    ("show", show_recipe, show_recipe.show, "Show what a recipe does, stage by stage."),
    ("draw", draw_recipe, draw_recipe.draw, "Draw a recipe as Mermaid text."),
    ("check", check_recipe, check_recipe.check, "Say what is wrong with recipes."),
    ("schema", recipe_schema, recipe_schema.schema, "Print the JSON Schema of recipe files."),
    ("run", run_recipe, run_recipe.run, "Run a recipe on items."),
):
    _add(_name, _command, _line, _module.EXAMPLES, to=recipes)
app.add_typer(recipes, name="recipe", short_help="List, show, check and run recipes of streams.")
