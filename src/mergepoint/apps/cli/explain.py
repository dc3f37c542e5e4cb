"""`mergepoint explain`: what a run would do, before it is paid."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mergepoint.apps.cli.framework import TREE, argument, option
from mergepoint.apps.cli.options import (
    InputOptions,
    Json,
    Knobs,
    RecordedOptions,
    StoreOptions,
    TargetArgument,
    complete_journals,
)
from mergepoint.apps.cli.output import CommandError, columns, put, put_json, tell

if TYPE_CHECKING:
    from mergepoint.report.explanation import Explanation
    from mergepoint.targets import FoundTarget

EXAMPLES = (
    "mergepoint explain image_prompt --model openai:gpt-5-mini",
    "mergepoint explain image_prompt section_2_choice/draft",
    "mergepoint explain image_prompt --like last --json | jq '.steps[].tokens'",
    "mergepoint explain plan_approve --answer-tokens 400 -o plan.html",
    "mergepoint explain best_of_n --knob n=8 --model openai:gpt-5-mini",
)


def explain(
    target: TargetArgument,
    path: Annotated[
        str | None, argument("PATH", "Path of one step, or a unique ending of it.")
    ] = None,
    *,
    inputs: InputOptions,
    options: RecordedOptions,
    answer_tokens: Annotated[
        tuple[str, ...],
        option(
            "--answer-tokens",
            metavar="[PATH=]N",
            help="Length of answers in tokens; with a path or glob, only of those steps.",
            default="those of --like, or 250",
        ),
    ] = (),
    like: Annotated[
        str | None,
        option(
            "--like",
            metavar="RUN",
            help="Earlier run with the expected answers, iterations, and decisions.",
            completion=complete_journals,
        ),
    ] = None,
    iterations: Annotated[
        tuple[str, ...],
        option(
            "--iterations",
            metavar="PATH=N",
            help="Number of iterations of the loop at PATH.",
            default="those of --like, or 1",
            only="tree",
            panel=TREE,
        ),
    ] = (),
    knob: Knobs = (),
    seed: Annotated[
        int, option("--seed", metavar="N", help="Seed for random numbers in prompts.")
    ] = 0,
    page: Annotated[
        Path | None, option("--output", "-o", metavar="FILE", help="Write a page (HTML) to FILE.")
    ] = None,
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Predict what each step sees, and the calls, tokens, and cost of a run. Nothing is called.

    No model is called, and none is created: no key is needed. The tree is evaluated with
    placeholders for answers, and prompt functions are called with them. With PATH, shows the
    messages that one step will see. Takes all options of 'mergepoint run' about the model and the
    workflow, so that you can replace one word; those that don't change a prediction are ignored.
    """
    from mergepoint.apps.cli.inputs import load_blocks
    from mergepoint.targets import find_target

    load_blocks(options.blocks)
    found = find_target(target)
    # Prompt functions may print, and stdout is for the explanation only.
    with contextlib.redirect_stdout(sys.stderr):
        if found.recipe is not None:
            explained = _recipe(target, found, inputs, options, answer_tokens, like, knob)
        else:
            if knob:
                raise CommandError(f"--knob: only for recipes, and {target!r} is a tree.")
            explained = _tree(
                found,
                inputs,
                options,
                tokens=answer_tokens,
                like=None if like is None else _transcript(like, stored),
                iterations=_numbers(iterations, "--iterations"),
                seed=seed,
            )
    # As typed, without folders: the root's own name is often `pipeline`.
    explained = replace(explained, workflow=Path(target).name)
    _shown(explained, path, page, json=json)


def _tree(
    found: FoundTarget,
    inputs: InputOptions,
    options: RecordedOptions,
    *,
    tokens: Sequence[str],
    **more: Any,
) -> Explanation:
    """Return the explanation of a tree, changed as the options say."""
    from mergepoint.apps.cli.gate_answers import read_answers
    from mergepoint.apps.cli.inputs import change_tree, read_inputs, read_prices, typed
    from mergepoint.report.explaining import explain as explain_tree
    from mergepoint.tree.validate import inputs_of

    assert found.tree is not None  # noqa: S101  (recipes are explained by another function)
    tree, note = change_tree(
        found.tree, settings=options.set, gone=options.without, parallel=options.parallel
    )
    if note:
        tell(note)
    return explain_tree(
        tree,
        inputs=typed(inputs_of(tree), read_inputs(inputs.input, inputs.input_file)),
        messages=[("user", text) for text in inputs.message],
        model=options.model,
        answer_tokens=_tokens(tokens),
        decisions=read_answers(inputs.answer, tree),
        max_tokens=options.max_tokens,
        prices=read_prices(options.price),
        **more,
    )


def _recipe(
    target: str,
    found: FoundTarget,
    inputs: InputOptions,
    options: RecordedOptions,
    tokens: Sequence[str],
    like: str | None,
    knob: Sequence[str],
) -> Explanation:
    from mergepoint.apps.cli.framework import names_for
    from mergepoint.apps.cli.inputs import read_knobs, read_prices
    from mergepoint.report.explaining import explain as explain_recipe

    wrong = [*names_for("recipe", inputs, options), *(["--like"] if like else [])]
    if inputs.input or inputs.input_file:
        wrong.append("--input")
    if wrong:
        raise CommandError(f"{', '.join(wrong)}: only for trees, and {target!r} is a recipe.")
    assert found.recipe is not None  # noqa: S101  (trees are explained by another function)
    return explain_recipe(
        found.recipe,
        model=options.model,
        answer_tokens=_tokens(tokens),
        max_tokens=options.max_tokens,
        prices=read_prices(options.price),
        knobs=read_knobs(knob),
        library=found.library,
    )


def _transcript(like: str, stored: StoreOptions) -> Any:
    from mergepoint.apps.cli.run_store import read_run
    from mergepoint.core.paths import is_file
    from mergepoint.journal.transcript import read_transcript

    runs = stored.open()
    found = runs.lookup(like)
    if found is None and is_file(Path(like)):
        return read_transcript(Path(like))
    return read_run(found or runs.find(like)).transcript


def _tokens(given: Sequence[str]) -> dict[str, int]:
    """Return the lengths of `--answer-tokens` by path; "" is for all other paths."""
    return _numbers([one if "=" in one else f"={one}" for one in given], "--answer-tokens")


def _numbers(given: Sequence[str], name: str) -> dict[str, int]:
    found: dict[str, int] = {}
    for one in given:
        path, separator, number = one.rpartition("=")
        if not separator or not number.isdecimal():
            raise CommandError(f"Invalid {name} {one!r}. Use PATH=N, such as '**/draft=400'.")
        found[path] = int(number)
    return found


def _shown(explained: Explanation, path: str | None, page: Path | None, *, json: bool) -> None:
    from mergepoint.report.explain_text import explanation_text, step_text

    if page is not None:
        from mergepoint.view.explain_data import explain_page
        from mergepoint.view.page import write_html

        tell(str(write_html(page, explain_page(explained))))
        if path is None and not json:
            return
    width = columns() or 100
    if path is None:
        if json:
            put_json(explained.to_json())
        else:
            put(explanation_text(explained, width=width).rstrip("\n"))
        return
    try:
        text = step_text(explained, path, width=width)
    except LookupError as error:
        raise CommandError(str(error.args[0])) from None
    if json:
        name = text.splitlines()[0]
        put_json(next(one.to_json() for one in explained.steps if one.path == name))
    else:
        put(text.rstrip("\n"))


def tell_prediction(job: Any) -> None:
    """Write the last line of an explanation to stderr, before a model is paid."""
    from mergepoint.report.explain_text import summary_line
    from mergepoint.report.explaining import explain as explain_tree

    with contextlib.redirect_stdout(sys.stderr):
        explained = explain_tree(
            job.tree,
            inputs=job.inputs,
            messages=[("user", text) for text in job.messages],
            model=job.model,
            decisions=job.answers,
            max_tokens=job.invocation.max_tokens,
            prices=job.prices,
            seed=job.seed,
        )
    tell(summary_line(explained))
