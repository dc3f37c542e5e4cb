"""`mergepoint run`: run a tree, and write everything down."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.arguments import TargetArgument
from mergepoint.apps.cli.options import (
    AnswerOption,
    BaseUrlOption,
    BudgetOption,
    ConcurrencyOption,
    FormName,
    FormOption,
    InputFileOption,
    InputOption,
    JsonOption,
    MessageOption,
    ModelOption,
    OutOption,
    ParallelOption,
    PriceOption,
    QuietOption,
    ReplayOption,
    ResumeOption,
    ReuseOption,
    RunIdOption,
    SeedOption,
    SetOption,
    StoreOption,
    TracebackOption,
    ViewOption,
    WithoutOption,
    YesOption,
)

if TYPE_CHECKING:
    from mergepoint.apps.cli.command import Command
    from mergepoint.apps.cli.home import Home
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.job import Job

EXAMPLES = (
    "mergepoint run flat_chat --input topic=rivers",
    "mergepoint run image_prompt --input-file brief.yaml --model openai:gpt-5-mini",
    "mergepoint run my.py:tree --model openai:qwen3 --base-url http://localhost:8080/v1",
    "mergepoint run my.yaml --model ollama:llama3.2 --base-url http://localhost:11434",
    "mergepoint run image_prompt -i brief=@brief.txt --without '**/tot_enclave'",
    "mergepoint run my.yaml --set 'stage_2/draft:temperature=0.2' --json | jq -r .text",
    "mergepoint run plan_approve -i topic=rain --answer '**/approval=approve'",
    "mergepoint run my.yaml --model openai:gpt-5-mini --reuse last",
    "mergepoint run my.yaml --model openai:qwen3 --budget usd=0.50 --price 'openai:qwen3=0.25,2'",
)


def run(
    target: TargetArgument,
    *,
    given: InputOption = [],  # noqa: B006  (typer makes a new list for each call)
    input_file: InputFileOption = [],  # noqa: B006
    message: MessageOption = [],  # noqa: B006
    set_: SetOption = [],  # noqa: B006
    without: WithoutOption = [],  # noqa: B006
    parallel: ParallelOption = None,
    model: ModelOption = "offline",
    base_url: BaseUrlOption = None,
    form: FormOption = FormName.SUBGRAPHS,
    view: ViewOption = None,
    max_concurrency: ConcurrencyOption = None,
    seed: SeedOption = 0,
    answer: AnswerOption = [],  # noqa: B006
    budget: BudgetOption = [],  # noqa: B006
    price: PriceOption = [],  # noqa: B006
    yes: YesOption = False,
    run_id: RunIdOption = None,
    resume: ResumeOption = None,
    reuse: ReuseOption = None,
    replay: ReplayOption = None,
    out: OutOption = None,
    store: StoreOption = None,
    json: JsonOption = False,
    quiet: QuietOption = False,
    traceback: TracebackOption = False,
) -> None:
    """Run a tree: its result goes to stdout, how it came about to DIR/ID, or to a database.

    Before a real model is called it says how many calls are coming, and on a terminal it asks.
    """
    from mergepoint.apps.cli.command import Command
    from mergepoint.apps.cli.homes import Homes
    from mergepoint.apps.cli.inputs import read_inputs
    from mergepoint.apps.cli.origin import check_resumed, origin_of

    command = Command(
        target=target,
        set=tuple(set_),
        without=tuple(without),
        parallel=parallel,
        model=model,
        base_url=base_url,
        form=form.value,
        view=None if view is None else view.value,
        max_concurrency=max_concurrency,
        budget=tuple(budget),
        prices=tuple(price),
    )
    inputs = read_inputs(given, input_file)
    if resume is not None:
        check_resumed(inputs, message, run_id)
    homes = Homes.at(out, store)
    origin = origin_of(homes, resume=resume, reuse=reuse, replay=replay)
    job = job_of(command, homes, quiet=quiet, origin=origin, inputs=inputs, answers=answer)
    job = replace(job, messages=message, seed=seed, run_id=run_id)
    run_job(job, yes=yes, json=json, quiet=quiet)


def job_of(
    command: Command,
    homes: Homes,
    *,
    quiet: bool,
    origin: Mapping[str, Home] = MappingProxyType({}),
    inputs: Mapping[str, Any] = MappingProxyType({}),
    answers: Sequence[str] = (),
) -> Job:
    """Give the job of a command, and tell what there is to say about its tree.

    Raises what `Command.tree` does, and CommandError for inputs and answers that do not fit, and
    for a model that cannot be had.
    """
    from mergepoint.apps.cli.announce import had_model
    from mergepoint.apps.cli.gates import read_answers
    from mergepoint.apps.cli.inputs import check_inputs
    from mergepoint.apps.cli.job import Job
    from mergepoint.apps.cli.output import tell
    from mergepoint.apps.cli.spending import read_budget, read_prices
    from mergepoint.tree.check import inputs_of

    found, tree, said = command.tree()
    if "resume" not in origin:
        check_inputs(inputs_of(tree), inputs, example=found.example)
    if said and not quiet:
        tell(said)
    return Job(
        command=command,
        tree=tree,
        model=had_model(command.model, base_url=command.base_url),
        homes=homes,
        inputs=inputs,
        origin=origin,
        budget=read_budget(command.budget),
        prices=read_prices(command.prices),
        answers=read_answers(answers, tree),
        said=tuple(answers),
        source=found.file,
    )


def run_job(
    job: Job,
    *,
    yes: bool,
    json: bool,
    quiet: bool,
    extra: Mapping[str, Any] | None = None,
) -> None:
    """Announce a job, run it, and write what came out; `extra` goes into the JSON."""
    from mergepoint.apps.cli.announce import announce, calls_by_model, loops
    from mergepoint.apps.cli.job import carry_out
    from mergepoint.apps.cli.output import put_json
    from mergepoint.apps.cli.summary import put_result, tell_heading, tell_summary, to_json

    calls = calls_by_model(job.tree, job.model)
    announce(calls, most=loops(job.tree), yes=yes, quiet=quiet)
    finished = carry_out(job, quiet=quiet)
    if json:
        put_json(to_json(finished))
    else:
        if not quiet:
            tell_heading(finished.transcript)
        put_result(job.tree, finished.transcript)
    if not quiet:
        tell_summary(job.tree, finished)
