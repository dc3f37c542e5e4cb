"""The options of the commands, and the completion of their values in the shell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mergepoint.apps.cli.framework import AGENT, MODEL, RECIPE, SAVING, TREE, option
from mergepoint.apps.cli.run_store import (
    JOURNAL,
    LAST,
    RUNS,
    TRANSCRIPT,
    RunStore,
    database_url,
    run_folders,
)
from mergepoint.core.errors import MergepointError
from mergepoint.journal.checked_lines import read_lines
from mergepoint.tree.load import graph_names, recipe_graphs


# Completion reads names only, and no library that is slow to import: the shell waits for it.
def complete_workflows(incomplete: str) -> list[str]:
    """Return the bundled trees and recipes, and files of this folder that may hold one."""
    from mergepoint.streams.recipe_yaml import LIBRARY

    files = [str(file) for kind in ("*.py", "*.yaml", "*.yml") for file in Path().glob(kind)]
    names = (*graph_names(), *LIBRARY.names(), *recipe_graphs(), *sorted(files))
    return [name for name in names if name.startswith(incomplete)]


def complete_runs(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the runs, newest first."""
    return _starting((LAST, *_run_ids(ctx.params, (JOURNAL, TRANSCRIPT))), incomplete)


def complete_journals(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the runs with a journal, newest first."""
    return _starting((LAST, *_run_ids(ctx.params, (JOURNAL,))), incomplete)


def complete_shown(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return everything that `mergepoint show` takes: runs, then workflows."""
    return [*complete_runs(ctx, incomplete), *complete_workflows(incomplete)]


def complete_sessions(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return `last` and the ids of the sessions, most recent first."""
    from mergepoint.session.session_store import sessions_at

    try:
        found = sessions_at(str(ctx.params.get("sessions") or "sessions")).sessions()
    except (MergepointError, OSError):
        found = []
    return _starting((LAST, *(one.session_id for one in found)), incomplete)


def complete_paths(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the paths of the calls in the run that the command line names."""
    # An error would be printed into the command line that is being typed.
    try:
        known = _call_paths(str(ctx.params.get("run")), ctx.params)
    except (MergepointError, OSError, ValueError, KeyError, TypeError):
        return []
    return _starting(known, incomplete)


def _starting(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]


def _run_ids(params: Mapping[str, Any], marks: tuple[str, ...]) -> list[str]:
    out, store = params.get("out"), params.get("store")
    if database_url(out, store) is None:
        return [folder.name for folder in run_folders(out or Path(RUNS), marks=marks)]
    try:
        return [run.run_id for run in RunStore.at(out, store).all()]
    except MergepointError:
        return []


def _call_paths(run: str, params: Mapping[str, Any]) -> list[str]:
    """Return the paths of the calls of a run or transcript file, read without any library."""
    out, store = params.get("out"), params.get("store")
    if database_url(out, store) is not None:
        found = RunStore.at(out, store).find(run)
        return list(dict.fromkeys(record.path for record in found.store.read(found.run_id)[1]))
    folder = out or Path(RUNS)
    is_transcript = Path(run).is_file() and not (folder / run).is_dir()
    file = Path(run) if is_transcript else _transcript(run, folder)
    if file.is_file():
        steps = json.loads(file.read_text(encoding="utf-8", errors="surrogatepass"))["steps"]
    else:
        # A run in progress may have an incomplete last line; the first line is the header.
        steps = read_lines(file.with_name(JOURNAL), until_fault=True).values[1:]
    return list(dict.fromkeys(str(step["path"]) for step in steps))


def _transcript(run: str, out: Path) -> Path:
    known = run_folders(out)
    folder = known[0] if run == LAST and known else out / run
    return (folder if folder.is_dir() else Path(run)) / TRANSCRIPT


OFFLINE = "offline"
SESSIONS = "sessions"

# Arguments.

TargetArgument = Annotated[
    str,
    typer.Argument(
        help="Workflow: a name from 'mergepoint list', FILE.py:NAME, or a YAML file.",
        metavar="TARGET",
        autocompletion=complete_workflows,
        show_default=False,
    ),
]
JournalArgument = Annotated[
    str,
    typer.Argument(
        help="Run: an ID, 'last', or a run's folder.",
        metavar="RUN",
        autocompletion=complete_journals,
        show_default=False,
    ),
]
SessionArgument = Annotated[
    str,
    typer.Argument(
        metavar="ID",
        help="Session: an ID, or 'last' for the most recent one.",
        autocompletion=complete_sessions,
    ),
]


Json = Annotated[bool, option("--json", help="Print JSON to stdout, also for errors.")]
Quiet = Annotated[bool, option("--quiet", "-q", help="Print only the result and errors.")]
Traceback = Annotated[
    bool, option("--traceback", help="Show the whole Python traceback of an error.")
]
Yes = Annotated[bool, option("--yes", "-y", help="Don't ask for confirmation.")]
Blocks = Annotated[
    tuple[str, ...],
    option(
        "--blocks",
        metavar="FILE",
        help="Python file with your own blocks (@block).",
        only="recipe",
        panel=RECIPE,
    ),
]
Knobs = Annotated[
    tuple[str, ...],
    option(
        "--knob",
        "-k",
        metavar="NAME=VALUE",
        help="Set a recipe parameter. VALUE is parsed as JSON if possible.",
        only="recipe",
        panel=RECIPE,
    ),
]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The way in which results and errors are written."""

    json: Json = False
    quiet: Quiet = False
    traceback: Traceback = False


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The place where runs are stored."""

    # None instead of the folder: --out overrides the variable only if it is set.
    out: Annotated[
        Path | None,
        option("--out", metavar="DIR", help="Folder of runs.", default=RUNS, panel=SAVING),
    ] = None
    store: Annotated[
        str | None,
        option(
            "--store",
            metavar="URL",
            help="Database of runs, such as sqlite:///runs.db or postgresql://user@host/db.",
            default="the variable MERGEPOINT_STORE, if set",
            panel=SAVING,
        ),
    ] = None

    def open(self) -> RunStore:
        """Return the runs in the folder or database. Raises CommandError for both at once."""
        return RunStore.at(self.out, self.store)


Sessions = Annotated[
    str,
    option(
        "--sessions",
        metavar="DIR|URL",
        help="Folder or database URL of the sessions.",
        stated=True,
        panel=SAVING,
    ),
]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to call, and its settings."""

    model: Annotated[
        str,
        option(
            "--model",
            metavar="PROVIDER:NAME",
            help="Model to call, for example openai:gpt-5-mini or ollama:llama3.2. 'offline' is a "
            "rule-based stand-in that needs no API key.",
            stated=True,
        ),
    ] = OFFLINE
    base_url: Annotated[
        tuple[str, ...],
        option(
            "--base-url",
            metavar="[PROVIDER:NAME=]URL",
            help="Base URL of a server with the provider's API, for example "
            "http://localhost:11434. With a name or glob, only for models that match.",
            stated=True,
            panel=MODEL,
        ),
    ] = ()
    temperature: Annotated[
        float | None,
        option(
            "--temperature",
            metavar="T",
            help="Sampling temperature of calls that don't set their own.",
            stated=True,
            panel=MODEL,
        ),
    ] = None
    max_tokens: Annotated[
        int | None,
        option(
            "--max-tokens",
            metavar="N",
            min=1,
            help="Maximum tokens per answer, for calls that don't set their own.",
            stated=True,
            panel=MODEL,
        ),
    ] = None
    timeout: Annotated[
        float | None,
        option(
            "--timeout",
            metavar="SECONDS",
            help="Timeout per attempt, for calls that don't set their own.",
            default="600",
            stated=True,
            panel=MODEL,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Limits of a run, and the prices they are computed with."""

    budget: Annotated[
        tuple[str, ...],
        option(
            "--budget",
            metavar="KIND=LIMIT",
            help="Limit for the run: usd=0.50, tokens=100000, calls=100, or seconds=60. With "
            "on_exhausted=keep, calls that exceed it are skipped.",
            stated=True,
        ),
    ] = ()
    price: Annotated[
        tuple[str, ...],
        option(
            "--price",
            metavar="PROVIDER:NAME=IN,OUT",
            help="Price per million input (IN) and output (OUT) tokens in USD. Overrides the "
            "built-in price. PROVIDER:NAME can be a glob.",
            stated=True,
            panel=MODEL,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class RecordedOptions(BudgetOptions, ModelOptions):
    """The options that are recorded with a run, so that `mergepoint resume` can reuse them."""

    set: Annotated[
        tuple[str, ...],
        option(
            "--set",
            metavar="PATH:FIELD=VALUE",
            help="Override a field of every node that PATH matches. VALUE is parsed as JSON if "
            "possible; prompts can use {{ key }}.",
            only="tree",
            panel=TREE,
        ),
    ] = ()
    without: Annotated[
        tuple[str, ...],
        option(
            "--without",
            metavar="PATH",
            help="Remove every node that PATH matches.",
            only="tree",
            panel=TREE,
        ),
    ] = ()
    parallel: Annotated[
        bool | None,
        option(
            "--parallel/--sequential",
            help="Run independent children in parallel, or run everything sequentially.",
            default="as declared in the tree",
            only="tree",
            panel=TREE,
        ),
    ] = None
    max_concurrency: Annotated[
        int | None,
        option(
            "--max-concurrency",
            metavar="N",
            min=1,
            help="Maximum number of concurrent calls in a parallel block.",
            only="tree",
            panel=TREE,
        ),
    ] = None
    form: Annotated[
        Literal["subgraphs", "fused"],
        option(
            "--form",
            help="LangGraph form: a subgraph per block, or one node. Same results.",
            only="tree",
            panel=TREE,
        ),
    ] = "subgraphs"
    view: Annotated[
        Literal["as_is", "alternate"] | None,
        option(
            "--view",
            help="Send messages unchanged, or merge them so that roles alternate.",
            default="as the provider requires",
            only="tree",
            panel=TREE,
        ),
    ] = None
    blocks: Blocks = ()
    wanted: Annotated[
        int | None,
        option(
            "--wanted",
            "-n",
            metavar="N",
            min=1,
            help="Stop after N results.",
            only="recipe",
            panel=RECIPE,
        ),
    ] = None
    method: Annotated[
        Literal["json_schema", "function_calling", "json_mode", "prompt"] | None,
        option(
            "--method",
            help="Way to request structured output; 'prompt' works with every server.",
            default="the provider's",
            only="recipe",
            panel=RECIPE,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The inputs of a run; they are recorded in its journal."""

    input: Annotated[
        tuple[str, ...],
        option(
            "--input",
            "-i",
            metavar="KEY=VALUE",
            help="Input as text; KEY=@FILE reads a file, KEY=@- reads stdin.",
        ),
    ] = ()
    input_file: Annotated[
        tuple[Path, ...],
        option(
            "--input-file",
            metavar="FILE",
            help="YAML or JSON file with inputs ('-' for stdin). --input overrides it.",
        ),
    ] = ()
    message: Annotated[
        tuple[str, ...],
        option(
            "--message",
            "-m",
            metavar="TEXT",
            help="User message that opens the conversation.",
            only="tree",
            panel=TREE,
        ),
    ] = ()
    answer: Annotated[
        tuple[str, ...],
        option(
            "--answer",
            metavar="PATH=DECISION",
            help="Decision for the gate at PATH: approve, reject, or a JSON object.",
            default="ask on a terminal; otherwise stop with exit code 4",
            only="tree",
            panel=TREE,
        ),
    ] = ()


@dataclass(frozen=True, kw_only=True)
class NewRunOptions:
    """The options of a run that can only be set when it starts."""

    items: Annotated[
        tuple[str, ...],
        option(
            "--items",
            metavar="FILE",
            help="Read items from FILE ('-' for stdin), one per line: text, or a JSON object with "
            "content and props.",
            only="recipe",
            panel=RECIPE,
        ),
    ] = ()
    knob: Knobs = ()
    why: Annotated[
        tuple[str, str] | None,
        option(
            "--why",
            metavar="ID PROP",
            help="Show which stage set PROP on the result ID ('*' for all results).",
            only="recipe",
            panel=RECIPE,
        ),
    ] = None
    seed: Annotated[
        int,
        option("--seed", metavar="N", help="Seed for random numbers in prompts.", panel=MODEL),
    ] = 0
    run_id: Annotated[
        str | None,
        option(
            "--run-id",
            metavar="ID",
            help="ID of the new run.",
            default="the time and a random suffix",
            panel=SAVING,
        ),
    ] = None
    reuse: Annotated[
        str | None,
        option(
            "--reuse",
            metavar="RUN",
            help="Start a new run, and reuse RUN's answers to identical requests.",
            panel=SAVING,
        ),
    ] = None
    replay: Annotated[
        str | None,
        option(
            "--replay",
            metavar="RUN",
            help="Replay RUN without calling a model. Fails if an answer isn't recorded.",
            panel=SAVING,
        ),
    ] = None


Approval = Literal["everything", "plans", "programs", "nothing"]
Runner = Literal["bubblewrap", "monty", "unsafe_subprocess"]


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of the agent, for the terminal and the browser."""

    skills: Annotated[
        tuple[Path, ...],
        option(
            "--skills",
            metavar="DIR",
            help="Folder of skills.",
            default="the bundled skills",
            stated=True,
            panel=AGENT,
        ),
    ] = ()
    file: Annotated[
        tuple[Path, ...],
        option("--file", metavar="FILE", help="File that programs may read.", stated=True),
    ] = ()
    ask: Annotated[
        Approval, option("--ask", help="Actions that need your approval.", stated=True)
    ] = "everything"
    runner: Annotated[
        Runner | None,
        option(
            "--runner",
            help="Sandbox that runs programs. 'unsafe_subprocess' provides no isolation.",
            default="the first isolated runner that works here",
            stated=True,
            panel=AGENT,
        ),
    ] = None


@dataclass(frozen=True, kw_only=True)
class ChatOptions(BudgetOptions, ModelOptions, AgentOptions):
    """The options of a chat; those that differ are part of the command that resumes it."""

    sessions: Sessions = SESSIONS
