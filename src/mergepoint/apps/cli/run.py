"""`mergepoint run`, `resume` and `demo`: run a tree or a recipe, and resume a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

from mergepoint.apps.cli.framework import SAVING, OnlySet, argument, names_for, option
from mergepoint.apps.cli.options import (
    Enqueue,
    InputOptions,
    JournalArgument,
    ModelOptions,
    NewRunOptions,
    OutputOptions,
    RecordedOptions,
    StoreOptions,
    TargetArgument,
    Yes,
    complete_workflows,
)
from mergepoint.apps.cli.output import CommandError, put_json, tell, tell_fact

if TYPE_CHECKING:
    from mergepoint.apps.cli.invocation import Invocation
    from mergepoint.apps.cli.run_store import RunStore, StoredRun
    from mergepoint.apps.cli.tree_run import TreeJob
    from mergepoint.targets import FoundTarget
    from mergepoint.tree.nodes import Node

DEMO = "image_prompt"

RUN_EXAMPLES = (
    "mergepoint run flat_chat --input topic=rivers",
    "mergepoint run image_prompt --input-file brief.yaml --model openai:gpt-5-mini",
    "mergepoint run my.py:tree --model openai:qwen3 --base-url http://localhost:8080/v1",
    "mergepoint run my.yaml --set 'stage_2/draft:temperature=0.2' --json | jq -r .text",
    "mergepoint run plan_approve -i topic=rain --answer '**/approval=approve'",
    "mergepoint run my.yaml --model openai:gpt-5-mini --reuse last",
    "mergepoint run best_of_n 'A title for a poster of a night market.' --why '*' score",
    "mergepoint run step_back --items questions.txt --json | jq -r .content",
    "mergepoint run my.yaml --enqueue --store postgresql://postgres@localhost/runs",
)
RESUME_EXAMPLES = (
    "mergepoint resume last",
    "mergepoint resume 20261120-110502-1f2e3d --yes --json | jq -r .text",
    "mergepoint resume last my.py:tree --model openai:gpt-5-mini",
    "mergepoint resume last --budget usd=1.50",
    "mergepoint resume last --answer plan/approval=approve",
)
DEMO_EXAMPLES = (
    "mergepoint demo",
    "mergepoint demo --model openai:gpt-5-mini",
    "mergepoint demo --model ollama:llama3.2 --base-url http://localhost:11434",
)


def run(
    target: TargetArgument,
    item: Annotated[list[str] | None, argument("ITEM", "Items of a recipe.")] = None,
    *,
    inputs: InputOptions,
    options: RecordedOptions,
    new: NewRunOptions,
    enqueue: Enqueue = False,
    yes: Yes = False,
    stored: StoreOptions,
    output: OutputOptions,
) -> None:
    """Run a tree or a recipe, and save the run to DIR/ID or a database.

    Prints the result of a tree, or each result of a recipe when it is ready, to stdout. Before
    calling a real model, shows the expected number of calls and, on a terminal, asks to continue.
    """
    from mergepoint.apps.cli.inputs import load_blocks, origin_of, read_inputs
    from mergepoint.apps.cli.invocation import Invocation, with_environment
    from mergepoint.targets import find_target

    # Blocks first: the recipe's file may name them.
    load_blocks(options.blocks)
    found = find_target(target)
    invocation = Invocation(target=target, **asdict(with_environment(options)))
    runs = stored.open()
    if found.recipe is not None:
        from mergepoint.apps.cli.recipe_run import new_recipe_job, run_recipe_job

        _check_kind(target, "recipe", inputs, options, new)
        if inputs.input or inputs.input_file:
            raise CommandError(
                f"{target!r} is a recipe. Pass its items as arguments or by --items, and its "
                "parameters by --knob, not by --input."
            )
        if enqueue:
            _enqueue(found, invocation, item or (), inputs, new, stored, output)
            return
        job = new_recipe_job(invocation, found, item or (), runs, new)
        run_recipe_job(job, output=output, yes=yes)
        return
    _check_kind(target, "tree", inputs, options, new)
    if item:
        raise CommandError(
            f"{target!r} is a tree, and only recipes take items. Pass its inputs by --input "
            "KEY=VALUE."
        )
    if enqueue:
        _enqueue(found, invocation, (), inputs, new, stored, output)
        return
    _run_tree(
        _tree_job(
            found,
            invocation,
            runs,
            output=output,
            origin=origin_of(runs, reuse=new.reuse, replay=new.replay),
            inputs=read_inputs(inputs.input, inputs.input_file),
            more=inputs,
            settings={"seed": new.seed, "run_id": new.run_id},
        ),
        yes=yes,
        output=output,
    )


def resume(
    run: JournalArgument,
    target: Annotated[
        str | None,
        argument(
            "TARGET",
            "Workflow to run, if it has moved. Default: the recorded target.",
            complete_workflows,
        ),
    ] = None,
    *,
    inputs: InputOptions,
    given: Annotated[Mapping[str, Any], OnlySet(RecordedOptions)],
    ignore_recorded: Annotated[
        bool,
        option(
            "--ignore-recorded",
            help="Use only the options of this command, not the recorded ones.",
            panel=SAVING,
        ),
    ] = False,
    enqueue: Enqueue = False,
    yes: Yes = False,
    stored: StoreOptions,
    output: OutputOptions,
) -> None:
    """Resume an unfinished run without repeating recorded calls.

    Uses the recorded target and options; options that you pass here override them. A budget
    covers the whole run, including earlier usage. Only inputs that are masked in the journal are
    set again.
    """
    from mergepoint.apps.cli.inputs import check_resumed, load_blocks, read_inputs
    from mergepoint.apps.cli.invocation import resumed
    from mergepoint.journal.recipe_records import is_recipe
    from mergepoint.targets import find_target

    runs = stored.open()
    found_run = runs.find_journal(run)
    is_of_recipe = is_recipe(found_run.read()[0].tree)
    kind = "recipe" if is_of_recipe else "tree"
    # Check before the target is loaded: it may have moved, and the message would be about that.
    _check_kind(found_run.name, kind, inputs, RecordedOptions(**given))
    named = {} if target is None else {"target": target}
    invocation = resumed(found_run, {**given, **named}, ignores=ignore_recorded)
    load_blocks(invocation.blocks)
    found = find_target(invocation.target)
    if (found.recipe is not None) != is_of_recipe:
        raise CommandError(
            f"Run {found_run.name} is a run of a {kind}, and {invocation.target!r} isn't a {kind}."
        )
    if enqueue:
        from mergepoint.apps.cli.enqueue import put_order, resume_order

        put_order(resume_order(found, invocation, found_run, inputs), runs, stored.url, output)
        return
    values = read_inputs(inputs.input, inputs.input_file)
    if found.recipe is not None:
        from mergepoint.apps.cli.recipe_run import resumed_recipe_job, run_recipe_job

        job = resumed_recipe_job(invocation, found, values, found_run)
        run_recipe_job(job, output=output, yes=yes)
        return
    check_resumed(found_run, values, inputs.message)
    origin = {"resume": found_run}
    _run_tree(
        _tree_job(
            found, invocation, runs, output=output, origin=origin, inputs=values, more=inputs
        ),
        yes=yes,
        output=output,
    )


def demo(
    *,
    options: ModelOptions,
    yes: Yes = False,
    stored: StoreOptions,
    output: OutputOptions,
) -> None:
    """Run the tree 'image_prompt' on an example brief.

    It needs no API key: by default, the offline model answers. It isn't a language model, but
    shows which messages each step sees.
    """
    from mergepoint.apps.cli.inputs import read_inputs
    from mergepoint.apps.cli.invocation import Invocation, with_environment
    from mergepoint.targets import find_target

    found = find_target(DEMO)
    inputs = read_inputs([], [found.example] if found.example else [])
    invocation = Invocation(target=DEMO, **asdict(with_environment(options)))
    job = _tree_job(found, invocation, stored.open(), output=output, inputs=inputs)
    if not output.quiet:
        for label, value in {"graph": DEMO, **inputs, "model": options.model}.items():
            tell_fact(label, " ".join(str(value).split()))
        if options.model == "offline":
            tell_fact("", "(not a language model; it needs no API key)", style="yellow")
    _run_tree(job, yes=yes, output=output)


def _enqueue(
    found: FoundTarget,
    invocation: Invocation,
    item: Sequence[str],
    inputs: InputOptions,
    new: NewRunOptions,
    stored: StoreOptions,
    output: OutputOptions,
) -> None:
    """Add a new run to the queue of its database."""
    from mergepoint.apps.cli.enqueue import order_of, put_order

    order = order_of(found, invocation, item, inputs, new)
    put_order(order, stored.open(), stored.url, output)


def _check_kind(name: str, kind: str, *groups: Any) -> None:
    """Raise CommandError for options that are for the other kind of workflow."""
    if wrong := names_for(kind, *groups):
        other = "trees" if kind == "recipe" else "recipes"
        raise CommandError(f"{', '.join(wrong)}: only for {other}, and {name!r} is a {kind}.")


def _tree_job(
    found: FoundTarget,
    invocation: Invocation,
    runs: RunStore,
    *,
    output: OutputOptions,
    inputs: Mapping[str, Any],
    origin: Mapping[str, StoredRun] | None = None,
    more: InputOptions | None = None,
    settings: Mapping[str, Any] | None = None,
) -> TreeJob:
    """Return the job of a tree, changed as the invocation says.

    Raises CommandError for invalid changes, inputs and answers, and for a model that isn't
    available; TreeError for a tree that is invalid after the changes.
    """
    from mergepoint.apps.cli.gate_answers import with_files_read
    from mergepoint.apps.cli.inputs import (
        change_tree,
        check_inputs,
        read_budget,
        read_prices,
        typed,
    )
    from mergepoint.apps.cli.invocation import model_settings
    from mergepoint.apps.cli.tree_run import TreeJob, resolve_model_or_refuse
    from mergepoint.tree.validate import checked, inputs_of

    assert found.tree is not None  # noqa: S101  (recipes have jobs of another kind)
    more, origin = more or InputOptions(), origin or {}
    answers_as_typed = with_files_read(more.answer)
    tree, note = change_tree(
        found.tree,
        settings=invocation.set,
        gone=invocation.without,
        parallel=invocation.parallel,
    )
    checked(tree)
    inputs = typed(inputs_of(tree), inputs)
    # The journal of a resumed run has its inputs; only masked ones are passed again.
    if "resume" not in origin:
        check_inputs(inputs_of(tree), inputs, example=found.example)
    if note and not output.quiet:
        tell(note)
    return TreeJob(
        invocation=invocation,
        tree=tree,
        model=resolve_model_or_refuse(invocation.model, model_settings(invocation)),
        runs=runs,
        inputs=inputs,
        messages=more.message,
        origin=origin,
        budget=read_budget(invocation.budget),
        prices=read_prices(invocation.price),
        answers=_answers(answers_as_typed, tree, origin),
        answers_as_typed=answers_as_typed,
        source=found.file,
        **(settings or {}),
    )


def _answers(
    typed: Sequence[str], tree: Node, origin: Mapping[str, StoredRun]
) -> Mapping[str, Any]:
    """Return the decisions of --answer. Raises CommandError for those that can't count."""
    from mergepoint.apps.cli.gate_answers import check_edits, check_new_answers, read_answers

    answers = read_answers(typed, tree)
    if answers and (before := origin.get("resume") or origin.get("replay")):
        header, records = before.read()
        check_new_answers(answers, records, tree)
        if "resume" in origin:
            check_edits(answers, header, records, tree)
    return answers


def _run_tree(job: TreeJob, *, yes: bool, output: OutputOptions) -> None:
    """Announce a run, carry it out, and write the result."""
    from collections import Counter

    from mergepoint.apps.cli.explain import tell_prediction
    from mergepoint.apps.cli.inputs import tell_masked_inputs
    from mergepoint.apps.cli.invocation import model_settings
    from mergepoint.apps.cli.summary import put_result, tell_heading, tell_summary, to_json
    from mergepoint.apps.cli.tree_run import (
        announce,
        answered_calls,
        calls_by_model,
        can_make_fewer_calls,
        run_job,
    )

    answered = Counter[str]()
    if (resumed := job.origin.get("resume")) is not None:
        answered = answered_calls(resumed.read()[1], job.tree)
    else:
        tell_masked_inputs(job.inputs, job.messages)
    # With --reuse and --replay, the journal decides which calls are made.
    if not {"reuse", "replay"} & job.origin.keys():
        calls = calls_by_model(job.tree, job.model, model_settings(job.invocation), answered)
        if calls and resumed is None and not output.quiet:
            tell_prediction(job)
        most, recorded = can_make_fewer_calls(job.tree), answered.total()
        announce(calls, most=most, yes=yes, quiet=output.quiet, recorded=recorded)
    finished = run_job(job, quiet=output.quiet)
    if output.json:
        put_json(to_json(finished))
    else:
        if not output.quiet:
            tell_heading(finished.transcript)
        put_result(job.tree, finished.transcript)
    if not output.quiet:
        tell_summary(job.tree, finished)
