"""The beginning and the end of a recipe's run, in each of its forms, and their journal."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from langchain_core.runnables import RunnableConfig

from mergepoint.core.errors import Fault, RecipeError, ReplayMiss, StepError, TreeError
from mergepoint.core.frozen_json import freeze, thaw
from mergepoint.engine.callbacks import (
    Event,
    Recorder,
    StreamingRecorder,
    recorders_of,
    with_recorder,
)
from mergepoint.engine.run_tree import DONE
from mergepoint.engine.start_and_resume import Origin, OtherInputsError
from mergepoint.journal.call_records import CallKey, CallRecord, now
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.recipe_records import NOTE, RecipeEnd, StageCount, end_path
from mergepoint.journal.recorded_answers import AnswerRequest, RecordedAnswers, answers_of
from mergepoint.journal.redact import MASK
from mergepoint.journal.stores import Journal, RunHeader, RunJournal, Store, with_hidden_digests
from mergepoint.journal.transcript import usage_of
from mergepoint.journal.writer import append_record
from mergepoint.models.budget import BudgetLedger, BudgetSource, NestedBudget
from mergepoint.models.identity import ChatModel, configured, is_dynamic
from mergepoint.models.pricing import Price, Prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, resolve_model
from mergepoint.streams.block_context import MISSING, Trace
from mergepoint.streams.conditions import failed
from mergepoint.streams.executor import RecipeExecutor, Watch
from mergepoint.streams.model_calls import (
    CallEnvironment,
    ModelClient,
    StageModel,
    TreeRunner,
    path_of,
    tree_runner_of,
)
from mergepoint.streams.params import StopReason, recorded
from mergepoint.streams.plan_proposals import (
    Planner,
    ProposedCalls,
    ledger_of,
    models_of,
    outline_of,
    statics_of,
    unpriced_in,
)
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage, plan
from mergepoint.streams.thing import Thing, stamp
from mergepoint.tree.policy import Budget, as_budget

# The journal of a tree needs no end: its outline shows which calls are missing. A recipe's calls
# depend on its items, so its end is recorded, with its results and lineage.


MOST_THINGS: Final = 1_000
"""Maximum number of Things that the end of a run contains; the others are counted."""

_COMPARED: Final = ("stopped", "count", "failed", "things")


@dataclass
class Results:
    """The results of a run so far: a count of all, and the first Things."""

    count: int = 0
    failed: int = 0
    things: list[Thing] = field(default_factory=list)
    stopped: str = ""

    def take(self, things: Iterable[Thing], *, stopped: str) -> None:
        """Add all results of a run, and the limit that ended it."""
        self.stopped = stopped
        for thing in things:
            self.add(thing)

    def add(self, thing: Thing) -> None:
        """Add one result."""
        self.count += 1
        self.failed += failed(thing)
        if len(self.things) < MOST_THINGS:
            self.things.append(thing)

    def end(self, trace: Trace, stages: tuple[StageCount, ...], *, stopped: str) -> RecipeEnd:
        """Return the end of the run with these results."""
        return RecipeEnd(
            stopped=stopped,
            count=self.count,
            failed=self.failed,
            things=tuple(
                {"id": one.id, "content": thaw(one.content), "props": thaw(one.props)}
                for one in self.things
            ),
            stages=stages,
            reasons=tuple(trace.reasons),
            lineage=tuple(trace.lineage),
            untold=trace.untold,
        )


def end_in_outline(planned: PlannedRecipe) -> dict[str, Any]:
    """Return the end as a node of the run's outline."""
    return {"path": _path(planned), "kind": "call", "merge": "none"}


def write_end(
    journal: Journal,
    planned: PlannedRecipe,
    *,
    run_id: str,
    host: str = "",
    end: RecipeEnd | None = None,
) -> None:
    """Record the end of a run, unless the same end is recorded already.

    A run that is resumed, for example with a larger budget, may end differently than before.
    """
    key = CallKey(run_id, host, _path(planned))
    known = [record for record in journal.records if record.key == key]
    if known and (end is None or _same(known[-1].value, end)):
        return
    value = None if end is None else end.to_plain()
    moment = now()
    record = CallRecord(
        key=key, prompt="", model=NOTE, started=moment, ended=moment, kind="call", value=value
    )
    append_record(journal, record, later=True)


def _same(known: Any, end: RecipeEnd) -> bool:
    """Return whether a recorded end equals this one, ignoring the order of lineage."""
    if not isinstance(known, Mapping):
        return False
    before = RecipeEnd.from_plain(known)
    return all(getattr(before, name) == getattr(end, name) for name in _COMPARED)


def _path(planned: PlannedRecipe) -> str:
    return end_path(path_of(planned.prefix))


def header_of(
    planned: PlannedRecipe,
    models: Mapping[str, ChatModel],
    items: Iterable[Any] | None,
    *,
    run_id: str,
    seed: int = 0,
    knobs: Mapping[str, Any] | None = None,
    meta: Mapping[str, Any] | None = None,
) -> RunHeader:
    """Return the header of a new run; items that came from a stream are None.

    Raise RecipeError for Things of another stream.
    """
    return RunHeader(
        run_id=run_id,
        created_at=datetime.now(UTC),
        seed=seed,
        inputs={
            "items": None if items is None else [on_wire(one) for one in items],
            "knobs": recorded(knobs or {}),
        },
        messages=(),
        tree=_outline(planned),
        requests=statics_of(planned, models),
        meta=dict(meta or {}),
    )


def _outline(planned: PlannedRecipe) -> dict[str, Any]:
    outline = outline_of(planned)
    return {**outline, "nodes": [*outline["nodes"], end_in_outline(planned)]}


def changed(header: RunHeader, planned: PlannedRecipe, models: Mapping[str, ChatModel]) -> None:
    """Raise TreeError with every stage that changed since the run began."""
    now, before = statics_of(planned, models), header.requests
    faults = [
        Fault(path, "is another than the run began with; begin one that reuses it (--reuse)")
        for path in sorted(now.keys() | before.keys())
        if now.get(path) != before.get(path)
    ]
    if faults:
        raise TreeError(faults)


def check_knobs(header: RunHeader, given: Mapping[str, Any]) -> None:
    """Raise JournalError if knobs are masked in the journal and aren't passed again."""
    if "knobs" not in header.hidden.get("names", ()):
        return
    known = header.inputs.get("knobs", {})
    if missing := [
        name for name, value in known.items() if MASK in str(value) and name not in given
    ]:
        raise JournalError(_needed(header, "knobs", [f"--input {name}=VALUE" for name in missing]))


def check_items(
    header: RunHeader, items: Iterable[Any] | None, knobs: Mapping[str, Any] | None
) -> None:
    """Check a resumed run's items and knobs against the header, masked ones by their digests.

    Raise JournalError if masked items aren't passed again, and StepError if they differ.
    """
    names = header.hidden.get("names", ())
    if not names:
        return
    if "items" in names and items is None:
        raise JournalError(_needed(header, "items", ["--input items=TEXT"]))
    if "items" in names and not isinstance(items, list | tuple):
        raise StepError(f"give the items of run {header.run_id!r} as a list: they are compared")
    known = header.inputs.get("items")
    given = [on_wire(one) for one in items] if isinstance(items, list | tuple) else known
    again = {"items": given if "items" in names else known, "knobs": recorded(knobs or {})}
    if header.differing(again, ()):
        raise OtherInputsError(
            f"run {header.run_id!r} began with other {' and '.join(names)}; give it the same to go "
            "on with it, or begin a new run"
        )


def _needed(header: RunHeader, what: str, options: Iterable[str]) -> str:
    return (
        f"run {header.run_id!r} cannot be resumed without its {what}, which were masked before "
        "they were written (they held what looks like a key, or what the redact hook changed); "
        f"give the same again ({' '.join(options)}; in Python {what}); a digest checks it"
    )


def on_wire(item: Any) -> Any:
    """Return an item as JSON data: its content, and its props if it has any."""
    if not isinstance(item, Thing):
        return {"content": thaw(Thing(item).content)}
    if item.history:
        raise RecipeError(f"{item.id} is of another stream; give Thing(content, props)")
    props = {"props": thaw(item.props)} if item.props else {}
    return {"content": thaw(item.content), **props}


def off_wire(data: Mapping[str, Any]) -> Thing:
    """Return an item from JSON data."""
    return Thing(data["content"], data.get("props", {}))


class JournaledNotes:
    """Notes in the run's journals, each a record of kind "call" whose model is `note`.

    The notes of a resumed or reused run are found too.
    """

    def __init__(self, environment: CallEnvironment) -> None:
        self._environment = environment
        self._recorders = environment.recorders
        self._lock = threading.Lock()
        self._kept: dict[str, Any] = {}

    def find(self, stage_id: str, key: str) -> Any:
        """Return the stored value, or `MISSING`."""
        place = self._key(stage_id, key)
        if place.full_path not in self._kept:
            for recorder in self._recorders:
                found = _found(recorder, place, key)
                if found is not None:
                    # Copied into this run's journals: resuming it must not need the other run.
                    self._take_over(replace(found, key=place, source="replayed"), recorder, found)
                    break
        return self._kept.get(place.full_path, MISSING)

    def write(self, stage_id: str, key: str, value: Any) -> None:
        """Store a value. Raise ValueError if the key already has one."""
        place = self._key(stage_id, key)
        if place.full_path in self._kept:
            raise ValueError(f"{stage_id}: there is a note {key!r} already")
        moment = now()
        record = CallRecord(
            key=place,
            prompt=key,
            model=NOTE,
            started=moment,
            ended=moment,
            kind="call",
            request=_request(place),
            value=thaw(value),
        )
        with self._lock:
            for recorder in self._recorders:
                append_record(recorder.journal, record, later=True)
            self._kept[place.full_path] = freeze(value)

    def _take_over(self, record: CallRecord, known: Recorder, found: CallRecord) -> None:
        """Keep a note from another run, and write it to the journals that lack it."""
        owned = known.answers is not None and known.answers.owns(found)
        with self._lock:
            for recorder in self._recorders:
                if recorder is not known or not owned:
                    append_record(recorder.journal, record, later=True)
            self._kept[record.key.full_path] = freeze(record.value)

    def _key(self, stage_id: str, key: str) -> CallKey:
        return self._environment.key(f"{path_of(stage_id)}/{NOTE}/{key}")


def _found(recorder: Recorder, place: CallKey, key: str) -> CallRecord | None:
    """Return the record of a note, or None; a replayed run may write new notes."""
    if recorder.answers is None:
        return None
    asked = AnswerRequest(
        path=place.full_path,
        request=_request(place),
        prompt=key,
        model=NOTE,
        params={},
        context=0,
        kind="call",
    )
    try:
        return recorder.answers.find(asked)
    except ReplayMiss:
        return None


def _request(place: CallKey) -> str:
    """Return a note's request text: its place, so that it matches no other record."""
    return f"{NOTE} {place.path}"


@dataclass(frozen=True, kw_only=True)
class RecipeSetup:
    """A planned recipe with everything that its runs share: models, limits, store, and options.

    Every run begins with `begin`, after the journal that `create_journal` or `resume_journal`
    opened, and ends with `RunServices.finish`. What differs between a function, a graph, and a node
    of a tree is only where the run's id, its recorders, and the enclosing budget come from.

    `store` is None for runs that are kept in memory or recorded by an enclosing run.
    """

    planned: PlannedRecipe
    models: Mapping[str, ChatModel]
    settings: ModelSettings = NO_SETTINGS
    knobs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0
    budget: Budget | None = None
    prices: Prices = field(default_factory=Prices)
    store: Store | None = None
    origin: Origin = field(default_factory=Origin)
    meta: Mapping[str, Any] | None = None
    watch: Watch | None = None
    registry: Registry = REGISTRY
    library: Library = LIBRARY

    @classmethod
    def of(
        cls,
        recipe: Recipe | str,
        *,
        model: str | ChatModel | None = None,
        settings: ModelSettings = NO_SETTINGS,
        knobs: Mapping[str, Any] | None = None,
        budget: Budget | Mapping[str, Any] | None = None,
        prices: Mapping[str, Price] | None = None,
        reuse: Path | str | None = None,
        replay: Path | str | None = None,
        registry: Registry = REGISTRY,
        library: Library = LIBRARY,
        at: str = "",
        **others: Any,
    ) -> RecipeSetup:
        """Plan a recipe; nothing is written or called.

        Args:
            recipe: A recipe, or its name in the library.
            model: The model of stages that name none.
            settings: Settings of model calls that stages don't set.
            knobs: Recipe parameters by name.
            budget: The limits of the whole run.
            prices: Prices that override those of genai-prices.
            reuse: A run whose answers are reused where a request is the same.
            replay: A run whose answers replace all calls.
            registry: Where the blocks are looked up.
            library: Where recipes are looked up by name.
            at: The path of the enclosing Call, with which problems are reported.
            others: Values of the fields of the same names.

        Raises:
            RecipeError: The recipe is invalid; the error lists all problems.
            TreeError: A model has no price under a budget in USD, or can't be resolved.
            StepError: Both `reuse` and `replay` are set.
        """
        origin = Origin(reuse, replay)
        planned = plan(recipe, knobs, registry=registry, library=library)
        setup = cls(
            planned=planned,
            models=models_of(planned, model, settings),
            settings=settings,
            knobs=dict(knobs or {}),
            budget=as_budget(budget),
            prices=Prices(prices),
            origin=origin,
            registry=registry,
            library=library,
            **others,
        )
        # A budget in USD can't count calls without a price: report it before the first call.
        if faults := unpriced_in(planned, setup.models, setup._ledger((), at), at=at):
            raise TreeError(faults)
        return setup

    def _ledger(self, records: Iterable[CallRecord], at: str) -> BudgetLedger:
        return ledger_of(self.planned, self.budget, self.prices, records, at=at)

    def header(self, run_id: str, items: Any, *, seed: int | None = None) -> RunHeader:
        """Return the header of a new run; items that come from a stream aren't in it."""
        return header_of(
            self.planned,
            self.models,
            items if isinstance(items, list | tuple) else None,
            run_id=run_id,
            seed=self.seed if seed is None else seed,
            knobs=self.knobs,
            meta=self.meta,
        )

    def create_journal(
        self, store: Store, run_id: str, items: Any, *, seed: int | None = None
    ) -> RunJournal:
        """Create the journal of a new run. It waits for files or a database.

        Raises:
            JournalError: The id was used before.
            RecipeError: An item is a Thing of another stream.
        """
        header = self.header(run_id, items, seed=seed)
        return store.create(with_hidden_digests(header, store.redact))

    def resume_journal(
        self, store: Store, run_id: str, items: Any, *, same_seed: int | None = None
    ) -> RunJournal:
        """Open the journal of a recorded run, and check that it is a run of this recipe.

        With `same_seed`, the items and the seed must also be those of the run.

        Raises:
            TreeError: The recipe changed; the error lists the stages.
            JournalError: Recorded items are masked and weren't passed again.
            Other: The items or the seed differ.
        """
        journal = store.open(run_id)
        try:
            check_items(journal.header, items, self.knobs)
            if same_seed is not None:
                _check_same(journal.header, items, same_seed, store)
            changed(journal.header, self.planned, self.models)
        except BaseException:
            # While the journal is open, nobody else can resume the run.
            journal.close()
            raise
        return journal

    def begin(
        self,
        config: RunnableConfig,
        *,
        run_id: str,
        host: str = "",
        at: str = "",
        around: BudgetSource | None = None,
        seed: int | None = None,
    ) -> RunServices:
        """Return the services of a run, which its recorders in the config record.

        Args:
            config: The config of the calls; see `recording`.
            run_id: The id of the run.
            host: The path of the enclosing graph.
            at: The path of the enclosing Call.
            around: The enclosing budget, which must have room for every call too.
            seed: The seed of this run. Default: that of the setup.
        """
        # The ledger starts from recorded calls: a resumed run has spent part of its budget.
        # The innermost recorder is the last one, since `with_recorder` appends.
        journal = recorders_of(config)[-1].journal
        own = self._ledger((one for one in journal.records if one.key.run == run_id), at)
        environment = CallEnvironment(
            run_id=run_id,
            config=config,
            budget=own if around is None else NestedBudget(own, around),
            prices=self.prices.declared,
            host=host,
            at=at,
        )
        seed = self.seed if seed is None else seed
        return RunServices(setup=self, environment=environment, ledger=own, seed=seed)


def recording(
    config: RunnableConfig,
    journal: Journal,
    others: RecordedAnswers | None,
    *,
    on_event: Callable[[Event], None] | None = None,
) -> RunnableConfig:
    """Return a config whose calls a journal records, and are answered from it if it has them.

    The answers of another run, `others`, are looked up after those of the journal.
    """
    # Only listeners need tokens, which make a model stream its answer.
    kind = Recorder if on_event is None else StreamingRecorder
    answers = answers_of(journal.records, others)
    return with_recorder(config, kind(journal, on_event=on_event, answers=answers))


def _check_same(header: RunHeader, items: Iterable[Any], seed: int, store: Store) -> None:
    masked = "items" in header.hidden.get("names", ())
    same = masked or header.inputs.get("items") == [on_wire(one) for one in items]
    if not same or header.seed != seed:
        raise OtherInputsError(
            f"run {header.run_id!r} in {store} began with other items or another seed; give it "
            "the same to go on with it, or give the new run another id"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunServices:
    """Services that one run shares: models, budget ledger, notes, and counters.

    `ledger` is the recipe's budget ledger, which also receives the limits of proposals. `trace`
    counts the Things that pass the stages, and `results` those that leave.
    """

    setup: RecipeSetup
    environment: CallEnvironment
    ledger: BudgetLedger
    seed: int = 0
    trace: Trace = field(default_factory=Trace)
    results: Results = field(default_factory=Results)

    def executor(self, stops: Iterable[StopReason] = ()) -> RecipeExecutor:
        """Return an executor; `stops` are those of an earlier part of the run."""
        setup = self.setup
        calls = ProposedCalls(self.ledger, self.environment.at)
        executor = RecipeExecutor(
            setup.planned,
            self._client,
            tree_runner_of=self._tree_runner,
            planner=Planner(setup.registry, setup.library, setup.models.get, calls),
            seed=self.seed,
            notes=JournaledNotes(self.environment),
            watch=setup.watch,
            trace=self.trace,
        )
        executor.stops.all.extend(stops)
        return executor

    def reached(self, *, stopped: str) -> RecipeEnd:
        """Return the results so far, and the counts of each stage."""
        stages = self.trace.stages([stage.stage_id for stage in self.setup.planned.blocks()])
        return self.results.end(self.trace, stages, stopped=stopped)

    def finish(self, journal: Journal, *, stopped: str) -> RecipeEnd:
        """Record the end of the run and return it; `stopped` is the rail that ended it, or ""."""
        end = self.reached(stopped=stopped)
        run_id, host = self.environment.run_id, self.environment.host
        write_end(journal, self.setup.planned, run_id=run_id, host=host, end=end)
        return end

    @property
    def records(self) -> list[CallRecord]:
        """Return the records of the run."""
        at = self.environment.key("").path
        known = self.environment.recorders[-1].journal.records
        return [
            one
            for one in known
            if one.key.run == self.environment.run_id and one.path.startswith(at)
        ]

    def workflow(self, things: Iterable[Thing], *, stopped: str) -> Thing:
        """Return the run as a Thing; `stopped` is the rail that ended it."""
        return workflow_of(self.setup.planned, things, self.records, stopped=stopped)

    def _client(self, stage: PlannedStage) -> ModelClient | None:
        model, settings = self._model(stage), self.setup.settings
        policy, method = settings.policy(stage.policy), stage.settings.over(settings).method
        return None if model is None else StageModel(model, self.environment, policy, method)

    def _tree_runner(self, stage: PlannedStage) -> TreeRunner:
        return tree_runner_of(
            self._model(stage),
            self.environment,
            seed=self.seed,
            policy=stage.policy,
            settings=stage.settings.over(self.setup.settings),
        )

    def _model(self, stage: PlannedStage) -> ChatModel | None:
        """Return a stage's model; for a proposed stage, resolve it now."""
        model = self.setup.models.get(stage.stage_id)
        if model is None and stage.model is not None:
            model = resolve_model(stage.model)
        if model is None or not is_dynamic(model):
            return model
        # Known only with the config of the run. It was chosen for it, so its own settings win.
        chosen = configured(model, self.environment.config)
        return stage.settings.over(self.setup.settings).on(chosen, declared=True)


def workflow_of(
    planned: PlannedRecipe, things: Iterable[Thing], records: Iterable[CallRecord], *, stopped: str
) -> Thing:
    """Return the run as a Thing whose content lists its results, None for failed ones.

    `stopped` is the rail that ended the run, or "".
    """
    found = list(things)
    made = list(records)
    used = usage_of(made)
    ended = max([one.ended for one in made], default=0.0)
    seconds = ended - min([one.started for one in made], default=0.0)
    props = {
        "kind": "workflow",
        "strategy": planned.recipe.name,
        "calls": used.calls,
        "tokens": used.total_tokens,
        "cost": used.known_cost,
        "seconds": round(seconds, 6),
        "stopped": stopped or DONE,
        "failed": sum(map(failed, found)),
    }
    fresh = Thing([None if failed(one) else thaw(one.content) for one in found], props)
    return stamp(None, fresh, block=planned.recipe.name, stage_id=planned.prefix)
