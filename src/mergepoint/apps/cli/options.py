"""Options: what the commands share, with their help."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

_CHANGE = "What is run"
_HOW = "How it is run"
_WRITE = "What is written"


class FormName(StrEnum):
    """The forms of a compiled graph."""

    SUBGRAPHS = "subgraphs"
    FUSED = "fused"


class ViewName(StrEnum):
    """The ways a conversation is sent to a provider."""

    AS_IS = "as_is"
    ALTERNATE = "alternate"


class Drawing(StrEnum):
    """The formats of a drawing."""

    MERMAID = "mermaid"
    SVG = "svg"


InputOption = Annotated[
    list[str],
    typer.Option(
        "--input",
        "-i",
        metavar="KEY=VALUE",
        help="An input as text; KEY=@FILE reads a file, KEY=@- stdin. Repeatable.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
InputFileOption = Annotated[
    list[Path],
    typer.Option(
        "--input-file",
        metavar="FILE",
        help="Inputs from a YAML or JSON mapping ('-' is stdin); --input stands over it.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
MessageOption = Annotated[
    list[str],
    typer.Option(
        "--message",
        "-m",
        metavar="TEXT",
        help="A user message that opens the conversation. Repeatable.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
SetOption = Annotated[
    list[str],
    typer.Option(
        "--set",
        metavar="PATH:FIELD=VALUE",
        help="Another value for a field of one node, or of all that a glob fits. JSON, else text; "
        "a prompt may hold {{ key }}. Repeatable.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
WithoutOption = Annotated[
    list[str],
    typer.Option(
        "--without",
        metavar="PATH",
        help="Leave out a node, or all that a glob fits. Repeatable.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
ParallelOption = Annotated[
    bool | None,
    typer.Option(
        "--parallel/--sequential",
        help="Run blocks side by side where their children cannot tell the difference, or all "
        "one by one. Left out: as the tree says.",
        rich_help_panel=_CHANGE,
        show_default=False,
    ),
]
ModelOption = Annotated[
    str,
    typer.Option(
        "--model",
        metavar="PROVIDER:NAME",
        help="Who answers: openai:gpt-5-mini, anthropic:..., ollama:llama3.2; or 'offline', which "
        "is not a language model and needs no key.",
        rich_help_panel=_HOW,
    ),
]
BaseUrlOption = Annotated[
    str | None,
    typer.Option(
        "--base-url",
        metavar="URL",
        help="A server of your own that speaks the provider's interface, such as "
        "http://localhost:11434 for ollama.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
FormOption = Annotated[
    FormName,
    typer.Option(
        "--form",
        help="A LangGraph subgraph for each block, or all in one node. Same results.",
        rich_help_panel=_HOW,
    ),
]
ViewOption = Annotated[
    ViewName | None,
    typer.Option(
        "--view",
        help="Send messages as they are, or joined so that roles alternate. Left out: as the "
        "provider takes them.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
ConcurrencyOption = Annotated[
    int | None,
    typer.Option(
        "--max-concurrency",
        metavar="N",
        min=1,
        help="Calls at once in a parallel block, at most.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
SeedOption = Annotated[
    int,
    typer.Option(
        "--seed",
        metavar="N",
        help="Of the random numbers that prompts see.",
        rich_help_panel=_HOW,
    ),
]
AnswerOption = Annotated[
    list[str],
    typer.Option(
        "--answer",
        metavar="PATH=DECISION",
        help="What is decided at a gate: approve, reject, or a JSON object. Left out: asked on a "
        "terminal, else the run ends there and can be resumed. Repeatable.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
BudgetOption = Annotated[
    list[str],
    typer.Option(
        "--budget",
        metavar="KIND=LIMIT",
        help="What the run may use: usd=0.50, tokens=100000, calls=100, seconds=60; "
        "on_exhausted=keep goes on without the rest. Repeatable.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
PriceOption = Annotated[
    list[str],
    typer.Option(
        "--price",
        metavar="PROVIDER:NAME=IN,OUT",
        help="A model's price in USD a million tokens, of prompts and of answers, where none is "
        "known or another holds; a glob fits several models. Repeatable.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
YesOption = Annotated[
    bool,
    typer.Option(
        "--yes",
        "-y",
        help="Do not ask before a real model is called.",
        rich_help_panel=_HOW,
        show_default=False,
    ),
]
RunIdOption = Annotated[
    str | None,
    typer.Option(
        "--run-id",
        metavar="ID",
        help="The run's id, a new one. Left out: the time and a random end.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
ResumeOption = Annotated[
    str | None,
    typer.Option(
        "--resume",
        metavar="RUN",
        help="Go on with a run that did not end; what is on record is not called again.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
ReuseOption = Annotated[
    str | None,
    typer.Option(
        "--reuse",
        metavar="RUN",
        help="A new run that takes over each answer to a request that is the same.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
ReplayOption = Annotated[
    str | None,
    typer.Option(
        "--replay",
        metavar="RUN",
        help="Every answer from that run; one that is not on record is an error.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
OutOption = Annotated[
    Path | None,
    typer.Option(
        "--out",
        metavar="DIR",
        help="The folder of runs. Left out: runs.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store",
        metavar="URL",
        help="A database of runs in place of the folder: sqlite:///runs.db, "
        "postgresql://user@host/db. Left out: MERGEPOINT_STORE, if that is set.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="JSON on stdout and nothing else there; errors too.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
QuietOption = Annotated[
    bool,
    typer.Option(
        "--quiet",
        "-q",
        help="Only the result and errors.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
TracebackOption = Annotated[
    bool,
    typer.Option(
        "--traceback",
        help="Show Python's traceback of an error too.",
        rich_help_panel=_WRITE,
        show_default=False,
    ),
]
SessionsOption = Annotated[
    str,
    typer.Option(
        metavar="DIR|URL",
        help="Where sessions are kept: a folder, or the URL of a database.",
        rich_help_panel=_WRITE,
    ),
]
