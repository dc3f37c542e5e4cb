"""The options of the commands, and the completion of their values in the shell."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from mergepoint.apps.cli.framework import (
    AGENT,
    MODEL,
    RECIPE,
    SAVING,
    TREE,
    argument,
    option,
    setting,
)
from mergepoint.apps.cli.run_store import (
    LAST,
    RUNS,
    RunStore,
    database_url,
    run_folders,
)
from mergepoint.core.errors import MergepointError
from mergepoint.journal.checked_lines import read_lines
from mergepoint.report.run_state import JOURNAL, TRANSCRIPT
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
        return list(dict.fromkeys(record.path for record in found.read()[1]))
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
    argument(
        "TARGET",
        "Workflow: a name from 'mergepoint list', FILE.py:NAME, or a YAML file.",
        complete_workflows,
    ),
]
JournalArgument = Annotated[
    str, argument("RUN", "Run: an ID, 'last', or a run's folder.", complete_journals)
]
SessionArgument = Annotated[
    str, argument("ID", "Session: an ID, or 'last' for the most recent one.", complete_sessions)
]

_JSON = option("--json", help="Print JSON to stdout, also for errors.")
_QUIET = option("--quiet", "-q", help="Print only the result and errors.")
Json = Annotated[bool, _JSON]
Quiet = Annotated[bool, _QUIET]
Yes = Annotated[bool, option("--yes", "-y", help="Don't ask for confirmation.")]
Enqueue = Annotated[
    bool,
    option(
        "--enqueue",
        help="Add the run to the queue of --store; 'mergepoint work' runs it.",
        panel=SAVING,
    ),
]
_BLOCKS = option(
    "--blocks",
    metavar="FILE",
    help="Python file with your own blocks (@block).",
    only="recipe",
    panel=RECIPE,
)
Blocks = Annotated[tuple[str, ...], _BLOCKS]
_KNOBS = option(
    "--knob",
    "-k",
    metavar="NAME=VALUE",
    help="Set a recipe parameter. VALUE is parsed as JSON if possible.",
    only="recipe",
    panel=RECIPE,
)
Knobs = Annotated[tuple[str, ...], _KNOBS]


@dataclass(frozen=True, kw_only=True)
class OutputOptions:
    """The way in which results and errors are written."""

    json: bool = _JSON.to_field(value=False)
    quiet: bool = _QUIET.to_field(value=False)


@dataclass(frozen=True, kw_only=True)
class StoreOptions:
    """The place where runs are stored."""

    # None instead of the folder: --out overrides the variable only if it is set.
    out: Path | None = setting(  # noqa: RUF009  (it is a field)
        "--out", value=None, metavar="DIR", help="Folder of runs.", default=RUNS, panel=SAVING
    )
    store: str | None = setting(
        "--store",
        value=None,
        metavar="URL",
        help="Database of runs, such as sqlite:///runs.db or postgresql://user@host/db.",
        default="the variable MERGEPOINT_STORE, if set",
        panel=SAVING,
    )

    @property
    def url(self) -> str | None:
        """The URL of the database as it was given, with its password; None for a folder."""
        return database_url(self.out, self.store)

    def open(self) -> RunStore:
        """Return the runs in the folder or database. Raises CommandError for both at once."""
        return RunStore.at(self.out, self.store)


_SESSIONS = option(
    "--sessions",
    metavar="DIR|URL",
    help="Folder or database URL of the sessions.",
    stated=True,
    panel=SAVING,
)
Sessions = Annotated[str, _SESSIONS]


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """The model to call, and its settings."""

    model: str = setting(
        "--model",
        value=OFFLINE,
        metavar="PROVIDER:NAME",
        help="Model to call, for example openai:gpt-5-mini or ollama:llama3.2. 'offline' is a "
        "rule-based stand-in that needs no API key.",
        stated=True,
    )
    base_url: tuple[str, ...] = setting(
        "--base-url",
        value=(),
        metavar="[PROVIDER:NAME=]URL",
        help="Base URL of a server with the provider's API, for example "
        "http://localhost:11434. With a name or glob, only for models that match.",
        stated=True,
        panel=MODEL,
    )
    temperature: float | None = setting(
        "--temperature",
        value=None,
        metavar="T",
        help="Sampling temperature of calls that don't set their own.",
        stated=True,
        panel=MODEL,
    )
    max_tokens: int | None = setting(
        "--max-tokens",
        value=None,
        metavar="N",
        min=1,
        help="Maximum tokens per answer, for calls that don't set their own.",
        stated=True,
        panel=MODEL,
    )
    timeout: float | None = setting(
        "--timeout",
        value=None,
        metavar="SECONDS",
        help="Timeout per attempt, for calls that don't set their own.",
        default="600",
        stated=True,
        panel=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class BudgetOptions:
    """Limits of a run, and the prices they are computed with."""

    budget: tuple[str, ...] = setting(
        "--budget",
        value=(),
        metavar="KIND=LIMIT",
        help="Limit for the run: usd=0.50, tokens=100000, calls=100, or seconds=60. With "
        "on_exhausted=keep, calls that exceed it are skipped.",
        stated=True,
    )
    price: tuple[str, ...] = setting(
        "--price",
        value=(),
        metavar="PROVIDER:NAME=IN,OUT",
        help="Price per million input (IN) and output (OUT) tokens in USD. Overrides the "
        "built-in price. PROVIDER:NAME can be a glob.",
        stated=True,
        panel=MODEL,
    )


@dataclass(frozen=True, kw_only=True)
class RecordedOptions(BudgetOptions, ModelOptions):
    """The options that are recorded with a run, so that `mergepoint resume` can reuse them."""

    set: tuple[str, ...] = setting(
        "--set",
        value=(),
        metavar="PATH:FIELD=VALUE",
        help="Override a field of every node that PATH matches. VALUE is parsed as JSON if "
        "possible; prompts can use {{ key }}.",
        only="tree",
        panel=TREE,
    )
    without: tuple[str, ...] = setting(
        "--without",
        value=(),
        metavar="PATH",
        help="Remove every node that PATH matches.",
        only="tree",
        panel=TREE,
    )
    parallel: bool | None = setting(
        "--parallel/--sequential",
        value=None,
        help="Run independent children in parallel, or run everything sequentially.",
        default="as declared in the tree",
        only="tree",
        panel=TREE,
    )
    max_concurrency: int | None = setting(
        "--max-concurrency",
        value=None,
        metavar="N",
        min=1,
        help="Maximum number of concurrent calls in a parallel block.",
        only="tree",
        panel=TREE,
    )
    form: Literal["subgraphs", "fused"] = setting(
        "--form",
        value="subgraphs",
        help="LangGraph form: a subgraph per block, or one node. Same results.",
        only="tree",
        panel=TREE,
    )
    view: Literal["as_is", "alternate"] | None = setting(
        "--view",
        value=None,
        help="Send messages unchanged, or merge them so that roles alternate.",
        default="as the provider requires",
        only="tree",
        panel=TREE,
    )
    blocks: tuple[str, ...] = _BLOCKS.to_field(value=())
    wanted: int | None = setting(
        "--wanted",
        "-n",
        value=None,
        metavar="N",
        min=1,
        help="Stop after N results.",
        only="recipe",
        panel=RECIPE,
    )
    method: Literal["json_schema", "function_calling", "json_mode", "prompt"] | None = setting(
        "--method",
        value=None,
        help="Way to request structured output; 'prompt' works with every server.",
        default="the provider's",
        only="recipe",
        panel=RECIPE,
    )


@dataclass(frozen=True, kw_only=True)
class InputOptions:
    """The inputs of a run; they are recorded in its journal."""

    input: tuple[str, ...] = setting(
        "--input",
        "-i",
        value=(),
        metavar="KEY=VALUE",
        help="Input as text; KEY=@FILE reads a file, KEY=@- reads stdin.",
    )
    input_file: tuple[Path, ...] = setting(
        "--input-file",
        value=(),
        metavar="FILE",
        help="YAML or JSON file with inputs ('-' for stdin). --input overrides it.",
    )
    message: tuple[str, ...] = setting(
        "--message",
        "-m",
        value=(),
        metavar="TEXT",
        help="User message that opens the conversation.",
        only="tree",
        panel=TREE,
    )
    answer: tuple[str, ...] = setting(
        "--answer",
        value=(),
        metavar="PATH=DECISION",
        help="Decision for the gate at PATH: approve, reject, a JSON object, or @FILE with one "
        "('@-' for stdin).",
        default="ask on a terminal; otherwise stop with exit code 4",
        only="tree",
        panel=TREE,
    )


@dataclass(frozen=True, kw_only=True)
class NewRunOptions:
    """The options of a run that can only be set when it starts."""

    items: tuple[str, ...] = setting(
        "--items",
        value=(),
        metavar="FILE",
        help="Read items from FILE ('-' for stdin), one per line: text, or a JSON object with "
        "content and props.",
        only="recipe",
        panel=RECIPE,
    )
    knob: tuple[str, ...] = _KNOBS.to_field(value=())
    why: tuple[str, str] | None = setting(
        "--why",
        value=None,
        metavar="ID PROP",
        help="Show which stage set PROP on the result ID ('*' for all results).",
        only="recipe",
        panel=RECIPE,
    )
    seed: int = setting(
        "--seed", value=0, metavar="N", help="Seed for random numbers in prompts.", panel=MODEL
    )
    run_id: str | None = setting(
        "--run-id",
        value=None,
        metavar="ID",
        help="ID of the new run.",
        default="the time and a random suffix",
        panel=SAVING,
    )
    reuse: str | None = setting(
        "--reuse",
        value=None,
        metavar="RUN",
        help="Start a new run, and reuse RUN's answers to identical requests.",
        panel=SAVING,
    )
    replay: str | None = setting(
        "--replay",
        value=None,
        metavar="RUN",
        help="Replay RUN without calling a model. Fails if an answer isn't recorded.",
        panel=SAVING,
    )


Approval = Literal["everything", "plans", "programs", "nothing"]
Runner = Literal["bubblewrap", "monty", "unsafe_subprocess"]


@dataclass(frozen=True, kw_only=True)
class AgentOptions:
    """The options of the agent, for the terminal and the browser."""

    skills: tuple[Path, ...] = setting(
        "--skills",
        value=(),
        metavar="DIR",
        help="Folder of skills.",
        default="the bundled skills",
        stated=True,
        panel=AGENT,
    )
    file: tuple[Path, ...] = setting(
        "--file", value=(), metavar="FILE", help="File that programs may read.", stated=True
    )
    ask: Approval = setting(  # noqa: RUF009
        "--ask", value="everything", help="Actions that need your approval.", stated=True
    )
    runner: Runner | None = setting(  # noqa: RUF009
        "--runner",
        value=None,
        help="Sandbox that runs programs. 'unsafe_subprocess' provides no isolation.",
        default="the first isolated runner that works here",
        stated=True,
        panel=AGENT,
    )


@dataclass(frozen=True, kw_only=True)
class ChatOptions(BudgetOptions, ModelOptions, AgentOptions):
    """The options of a chat; those that differ are part of the command that resumes it."""

    sessions: str = _SESSIONS.to_field(value=SESSIONS)
