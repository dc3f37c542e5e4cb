"""`mergepoint batch`: run many inputs through one tree or recipe."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any, Literal

from mergepoint.apps.cli.framework import SAVING, OptionGroup, argument, names_for, option, setting
from mergepoint.apps.cli.options import (
    BudgetOptions,
    ModelOptions,
    NewRunOptions,
    OutputOptions,
    RecordedOptions,
    TargetArgument,
    Yes,
)
from mergepoint.apps.cli.output import CommandError, put, put_json

if TYPE_CHECKING:
    from mergepoint.apps.cli.batch_job import BatchJob

EXAMPLES = (
    "mergepoint batch flat_chat topics.jsonl",
    "mergepoint batch my.yaml inputs.csv --out results.jsonl --model openai:gpt-5-mini",
    "mergepoint batch my.py:tree inputs.jsonl --dry-run --json | jq .to_run",
    "mergepoint batch my.py:tree inputs.jsonl --resume",
    "mergepoint batch best_of_n questions.jsonl --knob n=4 --budget usd=5 --concurrency 20",
    "mergepoint batch my.yaml inputs.csv && mergepoint view results.jsonl",
    "cat inputs.jsonl | mergepoint batch my.yaml - --out - --quiet | jq -r .text",
)

RESULTS = "results.jsonl"


def _same(kind: type[OptionGroup], name: str) -> Any:
    """Return an option of other commands as a field of this one's options."""
    known = next(one for one in fields(kind) if one.name == name)
    return known.metadata["option"].to_field(value=known.default)


@dataclass(frozen=True, kw_only=True)
class MemberOptions(BudgetOptions, ModelOptions):
    """The options of the runs of a batch; the budget is that of the whole batch."""

    budget: tuple[str, ...] = setting(
        "--budget",
        value=(),
        metavar="KIND=LIMIT",
        help="Limit for the whole batch: usd=5, tokens=1000000, or calls=1000.",
    )
    set: tuple[str, ...] = _same(RecordedOptions, "set")
    without: tuple[str, ...] = _same(RecordedOptions, "without")
    parallel: bool | None = _same(RecordedOptions, "parallel")
    view: Literal["as_is", "alternate"] | None = _same(RecordedOptions, "view")
    blocks: tuple[str, ...] = _same(RecordedOptions, "blocks")
    wanted: int | None = _same(RecordedOptions, "wanted")
    method: Literal["json_schema", "function_calling", "json_mode", "prompt"] | None = _same(
        RecordedOptions, "method"
    )
    knob: tuple[str, ...] = _same(NewRunOptions, "knob")
    seed: int = _same(NewRunOptions, "seed")


@dataclass(frozen=True, kw_only=True)
class BatchOptions:
    """The options of a batch itself."""

    out: str = setting(
        "--out",
        value=RESULTS,
        metavar="FILE",
        help="File of results, one JSON line per input ('-' for stdout). An existing one is "
        "continued.",
    )
    engine: Literal["local", "ray", "queue"] = setting(
        "--engine",
        value="local",
        help="Where the inputs run: on this machine, on a Ray cluster, or by workers of a queue.",
    )
    ray_address: str | None = setting(
        "--ray-address",
        value=None,
        metavar="HOST:PORT",
        help="Address of the Ray cluster for --engine ray ('auto' for the one on this machine).",
        default="the variable RAY_ADDRESS, or a new cluster on this machine",
    )
    workers: int = setting(
        "--workers", value=1, metavar="N", min=1, help="Number of worker processes."
    )
    concurrency: int = setting(
        "--concurrency",
        value=100,
        metavar="N",
        min=1,
        help="Maximum number of runs in progress, over all workers.",
    )
    requests_per_minute: int | None = setting(
        "--requests-per-minute",
        value=None,
        metavar="N",
        min=1,
        help="Maximum number of model calls in any minute, over all workers.",
    )
    tokens_per_minute: int | None = setting(
        "--tokens-per-minute",
        value=None,
        metavar="N",
        min=1,
        help="Maximum number of tokens in any minute, over all workers.",
    )
    max_attempts: int = setting(
        "--max-attempts",
        value=3,
        metavar="N",
        min=1,
        help="Number of workers that may die with an input before it fails.",
    )
    in_order: bool = setting(
        "--in-order", value=False, help="Write results in the order of the inputs."
    )
    limit: int | None = setting(
        "--limit", value=None, metavar="N", min=1, help="Run the first N inputs only."
    )
    store: str | None = setting(
        "--store",
        value=None,
        metavar="DIR|URL",
        help="Folder or database of the runs' journals.",
        default="the variable MERGEPOINT_STORE, or a folder next to the results",
        panel=SAVING,
    )
    batch_id: str | None = setting(
        "--batch-id",
        value=None,
        metavar="ID",
        help="ID of the batch, with which its runs are found again.",
        default="made from --out",
        panel=SAVING,
    )


def batch(
    target: TargetArgument,
    inputs: Annotated[
        str,
        argument(
            "INPUTS",
            "JSONL or CSV file, a folder with a file per input, or '-' for JSONL from stdin.",
        ),
    ],
    *,
    options: BatchOptions,
    members: MemberOptions,
    resume: Annotated[
        bool, option("--resume", help="Also run the inputs again whose result is a failure.")
    ] = False,
    dry_run: Annotated[
        bool, option("--dry-run", help="Check the inputs, and show what would run.")
    ] = False,
    yes: Yes = False,
    output: OutputOptions,
) -> None:
    """Run many inputs through a tree or a recipe, and write a line of JSON for each.

    A line of INPUTS is an object of inputs, with an optional 'id'. All inputs are checked before
    the first one runs. After an interruption or a kill, the same command goes on: finished inputs
    and recorded calls aren't repeated. Before calling a real model, shows the expected calls and
    cost and, on a terminal, asks to continue.
    """
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.targets import find_target

    if options.out == "-" and output.json:
        raise CommandError("Can't use --json with --out -: both write to stdout.")
    if members.blocks and (options.engine != "local" or options.workers > 1):
        raise CommandError(
            "--blocks is for one worker in this process. For more, import the blocks in the file "
            "of the recipe, and pass it as FILE.py:NAME."
        )
    if options.ray_address is not None and options.engine != "ray":
        raise CommandError(f"--ray-address: only for --engine ray, not {options.engine}.")
    load_blocks(members.blocks)
    found = find_target(target)
    kind = "tree" if found.recipe is None else "recipe"
    if wrong := names_for(kind, members):
        other = "trees" if kind == "recipe" else "recipes"
        raise CommandError(f"{', '.join(wrong)}: only for {other}, and {target!r} is a {kind}.")
    job = _job(target, inputs, options, members, resume=resume)
    if dry_run:
        plan = job.plan(found)
        if output.json:
            put_json(plan.to_json())
        else:
            for line in plan.lines():
                put(line)
        return
    job.run(found, yes=yes, output=output)


def _job(
    target: str, inputs: str, options: BatchOptions, members: MemberOptions, *, resume: bool
) -> BatchJob:
    from mergepoint.apps.cli.batch_job import BatchJob

    return BatchJob(target=target, inputs=inputs, options=options, members=members, resume=resume)
