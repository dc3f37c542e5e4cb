"""One run of a recipe: announced, shown in progress, and its results as they are produced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import typer

from mergepoint.apps.cli.gate_answers import can_ask
from mergepoint.apps.cli.inputs import (
    example_items,
    items_again,
    origin_of,
    read_budget,
    read_items,
    read_knobs,
    read_prices,
    tell_masked_items,
)
from mergepoint.apps.cli.invocation import Invocation, model_settings, resume_command, with_address
from mergepoint.apps.cli.live import StagesView, short_stage
from mergepoint.apps.cli.options import NewRunOptions, OutputOptions
from mergepoint.apps.cli.output import (
    FAILED,
    CommandError,
    Declined,
    EndedRun,
    InterruptedRun,
    PipeClosed,
    count,
    put,
    tell,
    tell_fact,
)
from mergepoint.apps.cli.run_store import DRAWING, RunStore, StoredRun, check_run_id
from mergepoint.apps.cli.summary import OFFLINE_NOTE, limit_text, spent_in
from mergepoint.apps.cli.tree_run import resolve_model_or_refuse
from mergepoint.core.errors import MissingKey
from mergepoint.core.paths import nearest
from mergepoint.engine.run_constants import new_run_id
from mergepoint.journal.recipe_records import StageCount, failed_calls, failures_said
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import identity
from mergepoint.models.providers import ModelSettings
from mergepoint.offline.model import OfflineModel
from mergepoint.report.explain_text import summary_line
from mergepoint.report.explaining import explain
from mergepoint.streams.conditions import failed
from mergepoint.streams.executor import Watch
from mergepoint.streams.prompting import asks
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_runs import RecipeOptions, RecipeRun
from mergepoint.streams.recipe_yaml import Library
from mergepoint.streams.thing import Thing
from mergepoint.targets import FoundTarget
from mergepoint.tree.prompts import as_text

ALL: Final = "*"
LISTED: Final = 20
FAILURES: Final = 3
STAGES: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeJob:
    """A recipe to run, and the settings of the run.

    `items` is None for a resumed run. `origin` is the run to resume, reuse or replay, by the name
    of the option. `why` names a result (or `*`) and a property to explain.
    """

    invocation: Invocation
    recipe: Recipe
    library: Library
    items: Any
    run: StoredRun
    origin: Mapping[str, StoredRun]
    knobs: Mapping[str, Any]
    seed: int | None = None
    why: tuple[str, str] | None = None


def new_recipe_job(
    invocation: Invocation,
    target: FoundTarget,
    items: Sequence[str],
    runs: RunStore,
    options: NewRunOptions,
) -> RecipeJob:
    """Return the job of a new run; without items, those of the example are used.

    Raises CommandError for invalid items, parameters and run ids.
    """
    if options.run_id is not None:
        check_run_id(options.run_id)
    assert target.recipe is not None  # noqa: S101  (trees have jobs of another kind)
    files, recipe = list(options.items), target.recipe
    if not items and not files and (files := example_items(recipe)):
        tell(f"No items are set. Using the example's items: {files[0]}")
    return RecipeJob(
        invocation=invocation,
        recipe=recipe,
        library=target.library,
        items=read_items(items, files),
        run=runs.get(options.run_id or new_run_id()),
        origin=origin_of(runs, reuse=options.reuse, replay=options.replay),
        knobs=read_knobs(options.knob),
        seed=options.seed,
        why=options.why,
    )


def resumed_recipe_job(
    invocation: Invocation, target: FoundTarget, inputs: Mapping[str, Any], run: StoredRun
) -> RecipeJob:
    """Return the job of a resumed run.

    `inputs` are the items and parameters that are masked in the journal, which are set again.
    Raises CommandError for other inputs.
    """
    header, _ = run.read()
    masked = header.hidden.get("names", ())
    known = {"items"} if "items" in masked else set()
    known |= set(header.inputs.get("knobs", {})) if "knobs" in masked else set()
    if extra := [name for name in inputs if name not in known]:
        raise CommandError(
            f"--input {extra[0]}: a resumed run uses its recorded input. Remove the option. Masked "
            f"inputs to set again: {', '.join(sorted(known)) or 'none'}."
        )
    assert target.recipe is not None  # noqa: S101  (trees have jobs of another kind)
    return RecipeJob(
        invocation=invocation,
        recipe=target.recipe,
        library=target.library,
        items=items_again(inputs["items"]) if "items" in inputs else None,
        run=run,
        origin={"resume": run},
        knobs={name: value for name, value in inputs.items() if name != "items"},
    )


def run_recipe_job(job: RecipeJob, *, output: OutputOptions, yes: bool) -> None:
    """Run a recipe; print its results to stdout and a summary to stderr.

    Raises CommandError if the model isn't available, Declined if a person declined, and
    EndedRun if the run stopped before it was done.
    """
    recorded = len(job.run.read()[1]) if "resume" in job.origin else 0
    _Execution(job, output, yes=yes, recorded=recorded).run()


@dataclass
class _Execution:
    """A run of a recipe in this process; the run had some `recorded` records before."""

    job: RecipeJob
    output: OutputOptions
    yes: bool
    recorded: int
    _passed: dict[str, Thing | None] = field(default_factory=dict, init=False)

    def run(self) -> None:
        """Run the recipe, and write its summary at the end."""

        def watch(stage_id: str, thing: Thing) -> None:
            # `view` is assigned by then: items leave stages only once the run is iterated below.
            view.note(stage_id, thing)
            why = self.job.why
            if why is not None and why[0] != ALL:
                # Of other items only the ids are stored, for the hint about near names.
                self._passed[thing.id] = thing if thing.id == why[0] else None

        settings = model_settings(self.job.invocation)
        options = self._options(watch, settings)
        run = RecipeRun.of(self.job.recipe, self.job.items, options, settings=settings)
        if not self.output.quiet and self.recorded == 0:
            tell_masked_items(run.items, run.setup.knobs)
        if not (self.yes and self.output.quiet) and "replay" not in self.job.origin:
            self._announce(run)
        view = StagesView(run, quiet=self.output.quiet)
        try:
            with view.shown():
                things = run_sync(self._things(run, view))
        # Not an error of the run: the command ends quietly, with the code of a closed pipe.
        except PipeClosed:
            raise
        except (Exception, KeyboardInterrupt) as error:
            # Without a record there is nothing to resume: the error is about recipe or options.
            if not run.journal.records:
                raise
            raise self._stopped(error) from error
        self._answer(things)
        if not self.output.quiet:
            self._summary(run, things, view)
        end = run.reached()
        if end.failed or end.is_failure:
            raise typer.Exit(FAILED)

    def _options(self, watch: Watch, settings: ModelSettings) -> RecipeOptions:
        job, now = self.job, self.job.invocation
        options: RecipeOptions = {
            "run_id": job.run.run_id,
            "library": job.library,
            "model": resolve_model_or_refuse(now.model, settings),
            "budget": read_budget(now.budget),
            "prices": read_prices(now.price),
            "meta": now.to_meta(job.run.folder),
            "runs": job.run.store,
            "watch": watch,
        }
        options.update({way: one.named for way, one in job.origin.items()})  # type: ignore[typeddict-item]
        if job.knobs or "resume" not in job.origin:
            options["knobs"] = job.knobs
        if job.seed is not None:
            options["seed"] = job.seed
        return options

    def _stopped(self, error: BaseException) -> EndedRun:
        interrupted = isinstance(error, KeyboardInterrupt)
        kind = InterruptedRun if interrupted else EndedRun
        message = str(error) or "the run was ended from outside"
        name = "" if interrupted else f"{type(error).__name__}: "
        return kind(
            message,
            head=f"{kind.status}: {name}{message}",
            facts={
                "type": type(error).__name__,
                "path": str(getattr(error, "pipeline_path", "") or "") or None,
                "run_id": self.job.run.run_id,
            },
            resume=resume_command(self.job.run, now=self.job.invocation),
        )

    def _announce(self, run: RecipeRun) -> None:
        """Report the calls to come; on a terminal, ask to continue. Raises Declined."""
        models = real_models(run)
        if not models:
            return
        items = len(run.items) if isinstance(run.items, list | tuple) else None
        formula = run.setup.planned.recipe.calls or "the calls of its stages"
        each = "" if items is None else f" for each of {count(items, 'item')}"
        limit = run.setup.budget.calls if run.setup.budget is not None else None
        most = run.setup.planned.rails.calls if limit is None else limit
        names = ", ".join(with_address(name, run.setup.settings) for name in models)
        if not self.recorded and not self.job.origin:
            self._tell_prediction(items)
        calls = f"{run.setup.planned.recipe.name} calls {names}: {formula}{each}"
        calls += "" if most is None else f", {most:,} at most"
        if self.recorded:
            calls += f"; {count(self.recorded, 'record')} reused"
        asks = not self.yes and not {"reuse", "replay"} & self.job.origin.keys()
        if not asks or not can_ask():
            tell(f"{calls}.")
        elif not typer.confirm(f"{calls}. Continue?", err=True):
            raise Declined("No call was made.")

    def _tell_prediction(self, items: int | None) -> None:
        job = self.job
        explained = explain(
            job.recipe,
            items=1 if items is None else items,
            knobs=job.knobs,
            library=job.library,
            model=job.invocation.model,
            max_tokens=job.invocation.max_tokens,
            prices=read_prices(job.invocation.price),
        )
        tell(summary_line(explained))

    async def _things(self, run: RecipeRun, view: StagesView) -> list[Thing]:
        things: list[Thing] = []
        async for thing in run.first(self.job.invocation.wanted):
            things.append(thing)
            with view.aside():
                self._show(thing)
        return things

    def _show(self, thing: Thing) -> None:
        # The content of a failed item is its input, not a result.
        if failed(thing) and not self.output.json:
            reason = thing.props.get("reason", "no reason")
            tell(f"failed: {thing.id}: {reason}", style="red")
        else:
            result = thing.to_plain() if self.output.json else thing.content
            put(as_text(result))
        if self.job.why is not None and self.job.why[0] in (ALL, thing.id):
            self._explain(thing)

    def _answer(self, things: list[Thing]) -> None:
        """Explain an item that left a stage but isn't a result."""
        wanted = None if self.job.why is None else self.job.why[0]
        if wanted is None or wanted == ALL or any(one.id == wanted for one in things):
            return
        thing = self._passed.get(wanted)
        if thing is not None:
            self._explain(thing)
            return
        known = [*self._passed]
        more = f" and {len(known) - LISTED:,} more" if len(known) > LISTED else ""
        tell(
            f"--why: no item {wanted!r} left a stage{nearest(wanted, known)}. Items that did: "
            f"{', '.join(known[:LISTED]) or 'none'}{more}.",
            style="yellow",
        )

    def _explain(self, thing: Thing) -> None:
        """Show which stage set the property; a missing one is only a warning."""
        if self.job.why is not None:
            try:
                tell(str(thing.why(self.job.why[1])))
            except MissingKey as error:
                tell(f"--why: {error}", style="yellow")

    def _summary(self, run: RecipeRun, things: list[Thing], view: StagesView) -> None:
        props = run.workflow(things).props
        tell()
        tell_fact("recipe", str(props["strategy"]))
        end = run.reached()
        tell_fact("results", f"{count(len(things), 'result')}, stopped: {props['stopped']}")
        if broken := failures_said(end, failed_calls(run.journal.records)):
            tell_fact("failed", broken, style="red")
            for reason in end.reasons[:FAILURES]:
                tell_fact("", reason)
        cost = "" if props["cost"] is None else f", {props['cost']:g} USD"
        tell_fact(
            "calls", f"{count(int(props['calls']), 'call')}, {props['tokens']:,} tokens{cost}"
        )
        if (spent := spent_in(run.journal.records, self.recorded)).recorded:
            tell_fact("paid", str(spent))
        for line in funnel(end.stages):
            tell_fact(*line)
        if view.best is not None:
            tell_fact("best score", f"{view.best:g}")
        self._report_stops(run)
        if run.folder is not None:
            tell_fact("journal", str(run.folder / "journal.jsonl"))
            tell_fact("graph", str(run.folder / DRAWING))
        if any(record.model == "mergepoint:offline" for record in run.journal.records):
            tell(OFFLINE_NOTE)

    def _report_stops(self, run: RecipeRun) -> None:
        """Report the limits that stopped stages, and the resume command with a larger limit."""
        stops = run.executor.stops.all if run.executor is not None else []
        # The first stop of a limit in a stage explains the others, which follow from it.
        first = {(stop.rail, stop.stage_id): stop for stop in reversed(stops)}
        for stop in reversed(first.values()):
            tell(str(stop), style="yellow")
        if stops and (larger := self._with_larger(stops[0].rail)):
            tell_fact("resume", larger)
        if more := len(stops) - len(first):
            tell(f"and {more:,} more at the same places", style="yellow")

    def _with_larger(self, kind: str) -> str | None:
        """Return the resume command with twice the limit of a kind, None without such a limit."""
        now = self.job.invocation
        limits = dict(one.split("=", 1) for one in now.budget)
        if kind not in limits:
            return None
        # `or 1`: twice a limit of 0 would stop the run again.
        limits[kind] = limit_text(kind, 2 * float(limits[kind]) or 1)
        budget = tuple(f"{name}={value}" for name, value in limits.items())
        return resume_command(self.job.run, now=replace(now, budget=budget))


def real_models(run: RecipeRun) -> list[str]:
    """Return the real models that stages call, as `provider:name`."""
    return list(
        dict.fromkeys(
            identity(run.setup.models[stage.stage_id], {})
            for stage in run.setup.planned.blocks()
            if stage.stage_id in run.setup.models
            and (asks(stage.params) or stage.kind.reaches_out)
            and not isinstance(run.setup.models[stage.stage_id], OfflineModel)
        )
    )


def funnel(stages: Sequence[StageCount]) -> Iterator[tuple[str, str]]:
    """Yield label and text of a line per stage: the items that entered, left and failed.

    Of a recipe with many stages, only those that lost or failed items have a line.
    """
    known = [stage for stage in stages if stage.came or stage.left]
    shown = known
    if len(known) > STAGES:
        shown = [stage for stage in known if stage.failed or stage.left < stage.came][:STAGES]
    wide = max((len(short_stage(stage.stage)) for stage in shown), default=0)
    label = "stages"
    for stage in shown:
        broken = f", {stage.failed:,} failed" if stage.failed else ""
        yield (
            label,
            f"{short_stage(stage.stage):<{wide}}  {stage.came:,} in, {stage.left:,} out{broken}",
        )
        label = ""
    if more := len(known) - len(shown):
        yield label, f"and {count(more, 'stage')} more"
