"""The commands of `mergepoint`. Heavy modules are imported inside the commands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from mergepoint.apps.cli import (
    batch,
    chat,
    diff,
    explain,
    inspect_commands,
    run,
    runs,
    sessions,
    show,
    view,
    work,
)
from mergepoint.apps.cli.framework import GuardedGroup, SectionedCommand, with_options
from mergepoint.apps.cli.output import EXIT_CODES, REFUSED, put

_RUNNING = "Run workflows"
_SEEING = "Inspect workflows and runs"
_AGENT = "Chat with an agent"

Entry = tuple[str, Callable[..., None], str, tuple[str, ...], str]

COMMANDS: Sequence[Entry] = (
    ("demo", run.demo, "Run an example without an API key.", run.DEMO_EXAMPLES, _RUNNING),
    ("run", run.run, "Run a tree or a recipe.", run.RUN_EXAMPLES, _RUNNING),
    ("resume", run.resume, "Resume an unfinished run.", run.RESUME_EXAMPLES, _RUNNING),
    ("batch", batch.batch, "Run many inputs.", batch.EXAMPLES, _RUNNING),
    ("work", work.work, "Run what waits in a queue.", work.EXAMPLES, _RUNNING),
    (
        "list",
        inspect_commands.list_workflows,
        "List the bundled workflows.",
        inspect_commands.LIST_EXAMPLES,
        _SEEING,
    ),
    ("show", show.show, "Show a run, a call, or a workflow.", show.EXAMPLES, _SEEING),
    ("view", view.view, "Open a run as a page.", view.EXAMPLES, _SEEING),
    ("diff", diff.diff, "Compare two runs.", diff.EXAMPLES, _SEEING),
    ("explain", explain.explain, "Predict a run and its cost.", explain.EXAMPLES, _SEEING),
    (
        "graph",
        inspect_commands.graph,
        "Draw a tree or a recipe.",
        inspect_commands.GRAPH_EXAMPLES,
        _SEEING,
    ),
    (
        "check",
        inspect_commands.check,
        "Find problems in workflows.",
        inspect_commands.CHECK_EXAMPLES,
        _SEEING,
    ),
    (
        "schema",
        inspect_commands.schema,
        "Print the schema of recipe files.",
        inspect_commands.SCHEMA_EXAMPLES,
        _SEEING,
    ),
    ("chat", chat.chat, "Chat in the terminal.", chat.CHAT_EXAMPLES, _AGENT),
    ("ui", chat.ui, "Chat in the browser.", chat.UI_EXAMPLES, _AGENT),
)
RUNS: Sequence[Entry] = (
    ("list", runs.list_runs, "List the runs, newest first.", runs.LIST_EXAMPLES, ""),
    ("tail", runs.tail, "Show records as they are written.", runs.TAIL_EXAMPLES, ""),
    ("check", runs.check, "Find damaged files.", runs.CHECK_EXAMPLES, ""),
    ("repair", runs.repair, "Repair a journal.", runs.REPAIR_EXAMPLES, ""),
    ("export", runs.export, "Write a transcript, or send spans.", runs.EXPORT_EXAMPLES, ""),
)
SESSIONS: Sequence[Entry] = (
    ("list", sessions.list_sessions, "List the sessions.", sessions.LIST_EXAMPLES, ""),
    ("show", sessions.show, "Show a session.", sessions.SHOW_EXAMPLES, ""),
    ("export", sessions.export, "Write a session as YAML.", sessions.EXPORT_EXAMPLES, ""),
    ("check", sessions.check, "Find damaged sessions.", sessions.CHECK_EXAMPLES, ""),
    ("repair", sessions.repair, "Repair a session.", sessions.REPAIR_EXAMPLES, ""),
)


def main() -> Any:
    """Run the command, and exit with its exit code."""
    return app()


def _lines(title: str, lines: Sequence[str]) -> str:
    """Return a paragraph of a help text; the mark keeps its lines as they are."""
    return "\n".join(["\b", title, *(f"  {line}" for line in lines)])


def _version(*, wanted: bool) -> None:
    from importlib.metadata import version

    if wanted:
        put(version("mergepoint"))
        raise typer.Exit


def _only_help(ctx: typer.Context) -> None:
    """Show the help of a group that was called without a command."""
    if ctx.invoked_subcommand is None:
        # On stderr and with an error code: in a script, a bare group is a mistake.
        typer.echo(ctx.get_help(), err=True)
        raise typer.Exit(REFUSED)


def _group(commands: Sequence[Entry], callback: Callable[..., None], **more: Any) -> typer.Typer:
    """Return a group of commands whose help shows the first example of some."""
    epilog = more.pop("epilog", "")
    # Without rich markup, help is short, and its examples can be copied.
    group = typer.Typer(
        cls=GuardedGroup, invoke_without_command=True, rich_markup_mode=None, **more
    )
    examples = [entry[3][0] for entry in commands[:4]]
    shown = [_lines("Examples:", examples), *([epilog] if epilog else [])]
    group.callback(epilog="\n\n".join(shown))(callback)
    for name, command, line, known, panel in commands:
        group.command(
            name,
            cls=SectionedCommand,
            short_help=line,
            epilog=_lines("Examples:", known),
            rich_help_panel=panel or "Commands",
        )(with_options(command))
    return group


def _root(
    ctx: typer.Context,
    *,
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=lambda value: _version(wanted=value),
            is_eager=True,
            help="Show the version and exit.",
            show_default=False,
        ),
    ] = False,
) -> None:
    """Run LLM workflows whose nodes work on copies of the state and merge at defined points."""
    _only_help(ctx)


def _runs(ctx: typer.Context) -> None:
    """List, follow, check, repair and export stored runs."""
    _only_help(ctx)


def _sessions(ctx: typer.Context) -> None:
    """List, show, export, check and repair the sessions of chats."""
    _only_help(ctx)


app = _group(
    COMMANDS,
    _root,
    name="mergepoint",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog=_lines("Exit codes:", [f"{code:<4} {text}" for code, text in EXIT_CODES.items()]),
)
for _name, _entries, _callback, _line, _panel in (
    ("runs", RUNS, _runs, "List, follow, check, repair, and export runs.", _SEEING),
    ("sessions", SESSIONS, _sessions, "List, show, check, and repair sessions.", _AGENT),
):
    app.add_typer(_group(_entries, _callback), name=_name, short_help=_line, rich_help_panel=_panel)
