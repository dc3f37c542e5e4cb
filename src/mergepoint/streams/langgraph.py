"""Recipes as LangGraph graphs: segments, nodes, states, and their journal."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.tools import BaseTool
from langgraph.channels import EphemeralValue
from langgraph.config import get_stream_writer
from langgraph.graph import END, START, StateGraph
from langgraph.types import Checkpointer
from pydantic import ConfigDict, Field, TypeAdapter
from typing_extensions import TypedDict

from mergepoint.aio.stream import from_iterable
from mergepoint.core.errors import StepError
from mergepoint.core.paths import SEPARATOR
from mergepoint.engine.callbacks import (
    Recorder,
    ambient,
    recorders_of,
    running,
    with_recorder,
    without_recorders,
)
from mergepoint.engine.compiled_graph import DrawnGraph, tool_of
from mergepoint.engine.compiler import Graph
from mergepoint.engine.graph_nodes import Showing
from mergepoint.engine.run_constants import RUN_ID, SEED, THREAD, Facts, facts_from
from mergepoint.engine.start_and_resume import OpenedRun, OtherInputsError
from mergepoint.journal.file_journal import store_at
from mergepoint.journal.stores import RunJournal, Store
from mergepoint.journal.writer import run_off_loop
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import ModelSettings
from mergepoint.streams.model_calls import path_of
from mergepoint.streams.params import StopReason
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_setup import RecipeSetup, RunServices, recording
from mergepoint.streams.recipe_yaml import LIBRARY, Library
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.resolved_recipe import PlannedRecipe, PlannedStage
from mergepoint.streams.stage_run import check_needs, entered
from mergepoint.streams.thing import Thing
from mergepoint.tree.leaves import Method
from mergepoint.tree.policy import Budget
from mergepoint.tree.prompts import as_text

# A stage that is a barrier takes all items before it returns any. Everything before it can thus
# finish and be checkpointed without a call that a lazy stream wouldn't make. Segments end there.


Unit = PlannedStage | PlannedRecipe


def is_whole(planned: Unit) -> bool:
    """Return whether a unit is executed as a whole: a block, or a recipe that can't be split.

    That is a recipe with rounds, by item, with a condition, or with a deadline of its own.
    """
    if isinstance(planned, PlannedStage):
        return True
    recipe, timed = planned.recipe, planned.rails.deadline is not None
    return recipe.recurrent or recipe.each or planned.where is not None or timed


def units(planned: Unit) -> Iterator[Unit]:
    """Yield the units of a recipe, with purely sequential nested recipes flattened."""
    if is_whole(planned) or isinstance(planned, PlannedStage):
        yield planned
        return
    for stage in planned.stages:
        yield from units(stage)


def unit_of(planned: PlannedRecipe) -> dict[str, Unit]:
    """Return the unit that executes each stage, by stage."""
    return {
        stage.stage_id: unit
        for unit in units(planned)
        for stage in ([unit] if isinstance(unit, PlannedStage) else unit.blocks())
    }


def begins_segment(planned: Unit) -> bool:
    """Return whether everything before a unit must finish first."""
    return isinstance(planned, PlannedStage) and planned.barrier


def wired(steps: Iterable[Mapping[str, Any]], unit_by: Mapping[str, Unit]) -> tuple[Unit, ...]:
    """Return the units that the steps of a plan name, in order, with the steps' params.

    Raise RecipeError for params that the block doesn't accept.
    """
    params = {str(step["stage_id"]): step["params"] for step in steps}
    # Several stages may be of one unit, a recipe that is executed as a whole.
    found = {unit.stage_id: unit for unit in map(unit_by.__getitem__, params)}
    return tuple(_with_params(unit, params) for unit in found.values())


def params_on_wire(stage: PlannedStage) -> dict[str, Any]:
    """Return a stage's params as JSON data, without defaults."""
    return stage.params.model_dump(mode="json", exclude_unset=True)


def _with_params(unit: Unit, params: Mapping[str, Mapping[str, Any]]) -> Unit:
    if isinstance(unit, PlannedRecipe):
        return replace(unit, stages=tuple(_with_params(stage, params) for stage in unit.stages))
    own = params[unit.stage_id]
    # Params that aren't JSON data stay the objects that they are.
    if own == params_on_wire(unit):
        return unit
    return replace(unit, params=unit.kind.given(own, where=unit.stage_id))


@dataclass(frozen=True, slots=True)
class GraphRuns:
    """Runs of a compiled recipe: their journals, found by thread, and their places in hosts."""

    setup: RecipeSetup

    @property
    def waits(self) -> bool:
        """Return whether starting a run accesses files or a database."""
        return self.setup.store is not None or bool(self.setup.origin)

    def opened(self, facts: Facts, items: Sequence[Thing], config: RunnableConfig) -> OpenedRun:
        """Open the journal of a new or recorded run, which the caller closes.

        The journal is found by the config's run id, otherwise by the id of its thread; inside a
        host, with the host's prefix. Inside a Call, the calls belong to the Call's own journal.

        It may block on files or a database. Raise the errors of opening a journal.
        """
        store = self.setup.store
        answers = self.setup.origin.answers(store)
        if store is None:
            return OpenedRun(None, answers)
        facts = replace(facts, host=facts.around, within="")
        return OpenedRun(self._journal(store, facts, items, config), answers)

    @contextmanager
    def run(self, opened: OpenedRun, facts: Facts, config: RunnableConfig) -> Iterator[RunServices]:
        """Yield the services of a run, and record its end."""
        journal = opened.journal
        if journal is None:
            if opened.answers is not None or not recorders_of(config):
                config = with_recorder(config, Recorder(answers=opened.answers))
            with self._services(facts, config) as services:
                yield services
            return
        # The run's own journal has its calls; that of an enclosing Call records only the Call.
        config = without_recorders(config, recorders_of(config) if facts.within else [])
        config = recording(config, journal, opened.answers)
        facts = replace(facts, run=journal.header.run_id, host=facts.around, within="")
        with ambient(config), self._services(facts, config) as services:
            yield services
        services.finish(journal, stopped=services.results.stopped)

    @contextmanager
    def _services(self, facts: Facts, config: RunnableConfig) -> Iterator[RunServices]:
        """Yield the services of the run, with exclusive use of its path."""
        recorders = recorders_of(config)
        around = next((one.budget for one in recorders if one.budget is not None), None)
        with running(recorders, facts, path_of(self.setup.planned.stage_id)) as facts:
            yield self.setup.begin(
                config,
                run_id=facts.run,
                host=facts.host,
                at=facts.within,
                around=around,
                seed=self._seed(config),
            )

    def _seed(self, config: RunnableConfig) -> int:
        seed: int = config.get("configurable", {}).get(SEED, self.setup.seed)
        return seed

    def _journal(
        self,
        store: Store,
        facts: Facts,
        items: Sequence[Thing],
        config: RunnableConfig,
    ) -> RunJournal:
        seed = self._seed(config)
        options: dict[str, Any] = config.get("configurable", {})
        by_thread = not options.get(RUN_ID) and bool(options.get(THREAD))
        stem = str(options[THREAD]) if by_thread else facts.run
        if facts.host:
            stem = f"{stem}.{facts.host.replace(SEPARATOR, '.')}"
        for number in itertools.count(1):
            run_id = stem if number == 1 else f"{stem}.{number}"
            if not store.has(run_id):
                return self.setup.create_journal(store, run_id, items, seed=seed)
            try:
                return self.setup.resume_journal(store, run_id, items, same_seed=seed)
            # An earlier run of the same thread.
            except OtherInputsError:
                if not by_thread:
                    raise
        raise AssertionError("there is always another id")


# LangChain copies keys without leading underscores into the metadata.
SERVICES = "__mergepoint_services"

State = dict[str, Any]
Tell = Callable[[Any], None]


class StageNode(Runnable[State, State]):
    """The node of a stage, which adds the stage to the plan."""

    def __init__(self, stage: PlannedStage) -> None:
        self.name = stage.stage_id
        self._step = {"stage_id": stage.stage_id, "params": params_on_wire(stage)}

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Return the stage's step."""
        return {"plan": [self._step]}


class Drain(Runnable[State, State]):
    """The end of a segment: runs the waiting stages of the plan, and pulls their results.

    The `last` one sends each Thing to listeners as it leaves.
    """

    def __init__(self, name: str, units: Mapping[str, Unit], *, last: bool) -> None:
        self.name = name
        self._units = units
        self._last = last

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the segment on the event loop of sync callers."""
        return run_sync(self.ainvoke(input, config))

    async def ainvoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the segment."""
        options = dict((config or {}).get("configurable", {}))
        # They come with the config and not with the state: a checkpointer can't store them.
        services, tell = options.pop(SERVICES)
        own: RunnableConfig = {**(config or {}), "configurable": options}
        services = replace(services, environment=replace(services.environment, config=own))
        # With the stops of earlier segments: the first of all is why the run stopped.
        executor = services.executor(StopReason(**one) for one in input["stops"])
        stages = wired(input["plan"][input["worked"] :], self._units)
        given = [Thing.from_plain(one) for one in input["things"]]
        things = []
        async with aclosing(executor.segment(stages, from_iterable(given))) as stream:
            async for thing in stream:
                things.append(thing.to_plain())
                if self._last:
                    tell({"thing": things[-1]})
        stops = [asdict(stop) for stop in executor.stops.all]
        return {"things": things, "stops": stops, "worked": len(input["plan"])}


class RecipeNode(Showing):
    """The root node, which starts the run, converts its items, and returns its Things."""

    def __init__(self, graph: Any, runs: GraphRuns) -> None:
        super().__init__(graph, runs.setup.planned.recipe.name)
        self.runs = runs
        # A superstep for each stage and for at most one drain before it, with some to spare.
        self._turns = 2 * sum(1 for _ in runs.setup.planned.walk()) + 5

    def invoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the recipe on items."""
        given = self._given(input, config or {})
        with closing(self.runs.opened(*given)) as opened, self._run(opened, *given) as started:
            services, work, config = started
            return self._result(services, self.graph.invoke(work, config))

    async def ainvoke(
        self,
        input: State,  # noqa: A002  (LangChain's name)
        config: RunnableConfig | None = None,
        **kwargs: Any,
    ) -> State:
        """Run the recipe on items; files and databases are opened in a thread."""
        given = self._given(input, config or {})
        if not self.runs.waits:
            opened = self.runs.opened(*given)
        else:
            opened = await run_off_loop(self.runs.opened, *given)
        try:
            with self._run(opened, *given) as (services, work, config):
                return self._result(services, await self.graph.ainvoke(work, config))
        finally:
            if self.runs.waits:
                await run_off_loop(opened.close)

    def _given(
        self, state: State, config: RunnableConfig
    ) -> tuple[Facts, list[Thing], RunnableConfig]:
        """Return facts, items, and config with which a run starts."""
        items = [_item(one) for one in state.get("items") or []]
        check_needs(self.runs.setup.planned.recipe, entered(items))
        return facts_from(config, inputs={}, scope=state.get("scope") or ""), items, config

    @contextmanager
    def _run(
        self, opened: OpenedRun, facts: Facts, items: list[Thing], config: RunnableConfig
    ) -> Iterator[tuple[RunServices, State, RunnableConfig]]:
        """Yield the services of a run, its input, and its config."""
        # With the writer of a node below, only clients that stream subgraphs would see Things.
        tell = get_stream_writer()
        with self.runs.run(opened, facts, config) as services:
            config = services.environment.config
            options = {**config.get("configurable", {}), SERVICES: (services, tell)}
            # Each node is a step for LangGraph, so a recipe of many stages needs a higher limit.
            turns = max(self._turns, config.get("recursion_limit", 0))
            things = [thing.to_plain() for thing in entered(items)]
            work = {"plan": [], "worked": 0, "things": things, "stops": []}
            yield services, work, {**config, "configurable": options, "recursion_limit": turns}

    def _result(self, services: RunServices, state: State) -> State:
        stopped = state["stops"][0]["rail"] if state["stops"] else ""
        things = [Thing.from_plain(one) for one in state["things"]]
        workflow = services.workflow(things, stopped=stopped)
        services.results.take(things, stopped=stopped)
        return {
            "things": state["things"],
            "workflow": workflow.to_plain(),
            "stopped": workflow.props["stopped"],
            "run_id": services.environment.run_id,
        }


_PLAIN = frozenset(Thing(None).to_plain())


def _item(item: Any) -> Thing:
    """Return an item as a Thing; the plain form of a Thing is recognized by its keys."""
    if isinstance(item, Thing):
        return item
    is_thing = isinstance(item, Mapping) and item.keys() == _PLAIN
    return Thing.from_plain(item) if is_thing else Thing(item)


Steps = list[dict[str, Any]]


def by_stage(left: Steps, right: Steps) -> Steps:
    """Return the steps of both, one per stage: a subgraph returns its input and more."""
    steps = {step["stage_id"]: step for step in [*left, *right]}
    return list(steps.values())


class RecipeGiven(TypedDict, total=False):
    """The input of a recipe's graph."""

    items: list[Any]
    # Ephemeral: on the same thread, the scope of one run must not apply to the next.
    scope: Annotated[str, EphemeralValue]


class RecipeGives(TypedDict):
    """The output of a recipe's graph: its Things in plain form, the run, and why it stopped."""

    things: list[dict[str, Any]]
    workflow: dict[str, Any]
    stopped: str
    run_id: str


class RecipeState(RecipeGives):
    """The state of the graph around a recipe."""

    items: list[Any]
    scope: Annotated[str, EphemeralValue]


class WorkState(TypedDict):
    """The state of a recipe's graph.

    `plan` has a step for each stage that was passed, and `worked` counts the finished ones.
    `things` are the results of the last segment, and `stops` what ended stages so far.
    """

    plan: Annotated[Steps, by_stage]
    worked: int
    things: list[dict[str, Any]]
    stops: list[dict[str, str]]


class _Items(TypedDict):
    """The arguments of a recipe as a tool."""

    __pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[misc]

    items: Annotated[list[Any], Field(description="What to work on: texts or JSON data.")]


class CompiledRecipe(DrawnGraph):
    """A recipe as a LangGraph graph. As a tool, it takes items."""

    def as_tool(
        self,
        args_schema: Any = None,
        *,
        name: str | None = None,
        description: str | None = None,
        arg_types: dict[str, type] | None = None,
    ) -> BaseTool:
        """Return a LangChain tool that takes `items`, a list.

        Recipe parameters are those with which the recipe was compiled. The result is the content
        of the single Thing that leaves the recipe, or all contents as JSON, without failed ones.
        The artifact of the tool's message is the output of the graph.

        Args:
            args_schema: Custom arguments, passed to the graph as its input, as in LangChain's
                `as_tool`. The result is then the output of the graph.
            name: The tool's name. Default: the recipe's.
            description: The purpose of the tool, by which a model chooses it. Default: the recipe's
                `about`.
            arg_types: Like `args_schema`, by name.
        """
        recipe = self.shown.recipe
        name = name or recipe.name
        if args_schema is not None or arg_types is not None:
            return super().as_tool(
                args_schema, name=name, description=description, arg_types=arg_types
            )
        said = description or recipe.about or f"Run the recipe {name!r} and return its result."
        result = partial(_result, recipe.name)
        return tool_of(self, TypeAdapter(_Items), dict, result, name, description=said)


def _result(name: str, found: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the text for the model and the whole result. Raise StepError if all items failed."""
    things = found["things"]
    good = [one["content"] for one in things if one["props"].get("status") != "failed"]
    if things and not good:
        raise StepError(f"the recipe {name!r} failed: {things[0]['props'].get('reason', '')}")
    return as_text(good[0] if len(good) == 1 else good), found


def compile_recipe(
    recipe: Recipe | str,
    *,
    model: str | ChatModel | None = None,
    temperature: float | None = None,
    max_tokens: int | None = None,
    timeout: float | None = None,
    base_url: str | Mapping[str, str] | None = None,
    method: Method | None = None,
    checkpointer: Checkpointer = None,
    knobs: Mapping[str, Any] | None = None,
    seed: int = 0,
    journal: Path | str | Store | None = None,
    reuse: Path | str | None = None,
    replay: Path | str | None = None,
    budget: Budget | Mapping[str, Any] | None = None,
    prices: Mapping[str, Price] | None = None,
    registry: Registry = REGISTRY,
    library: Library = LIBRARY,
) -> CompiledRecipe:
    """Compile a recipe, or one of the library by its name, to a LangGraph graph.

    The graph takes `{"items": [...]}` and returns `{"things": [...], "workflow": {...}, "stopped":
    "...", "run_id": "..."}`. Items are contents (JSON data) or new Things, also in plain form
    (`thing.to_plain()`), which a checkpointer can store; Things are returned in plain form. With
    `stream_mode="custom"`, each Thing is sent as `{"thing": {...}}` when it leaves the recipe. A
    host that runs the graph several times in parallel passes a `scope` (text) with each run.

    Things, ids, histories, and calls are those of `run_recipe`. A segment ends before each stage
    that takes all items at once, and at a `checkpoint`. With a `checkpointer`, a run that failed or
    was killed resumes by its thread (`graph.invoke(None, config)`) and doesn't repeat finished
    segments.

    With a `journal`, each run is recorded under its run id (`configurable["mergepoint_run_id"]`),
    or under the id of its thread, and recorded calls aren't repeated. `reuse` and `replay` name a
    run whose answers are used. The other options are those of `stream_recipe`. A `mergepoint_seed`
    in the config overrides `seed`.

    Raises:
        RecipeError: The recipe is invalid; the error lists all problems.
        TreeError: A model can't be resolved, or has no price under a budget in USD.
        StepError: Both `reuse` and `replay` are set, or the journal is neither folder nor store.
    """
    settings = ModelSettings(
        temperature=temperature,
        max_tokens=max_tokens,
        timeout=timeout,
        base_url=base_url,
        method=method,
    )
    setup = RecipeSetup.of(
        recipe,
        model=model,
        settings=settings,
        knobs=knobs,
        seed=seed,
        budget=budget,
        prices=prices,
        store=None if journal is None else store_at(journal),
        reuse=reuse,
        replay=replay,
        registry=registry,
        library=library,
    )
    planned = setup.planned
    inner = _RecipeCompiler(planned).graph()
    builder: StateGraph[Any, Any, Any, Any]
    builder = StateGraph(RecipeState, input_schema=RecipeGiven, output_schema=RecipeGives)
    name = planned.recipe.name
    node: Any = RecipeNode(inner, GraphRuns(setup))
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    compiled = builder.compile(checkpointer=checkpointer, name=name)
    return CompiledRecipe.of(compiled, name, lambda: inner, shown=planned)


@dataclass
class _RecipeCompiler:
    """Compiler of one recipe; `waiting` says whether planned stages haven't run yet.

    Every stage is a node that adds itself to a plan, nested recipes are subgraphs, and a node at
    the end of each segment builds the lazy stream from the plan and pulls it. LangGraph thus has
    steps to show, checkpoint, and resume, while items flow through one stream as elsewhere.
    """

    planned: PlannedRecipe
    waiting: bool = False
    drains: int = 0
    units: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> Graph:
        """Return the graph of the whole recipe."""
        self.units = unit_of(self.planned)
        return self._graph(self.planned, apart=not is_whole(self.planned), last=True)

    def _graph(self, planned: PlannedRecipe, *, apart: bool, last: bool = False) -> Graph:
        """Return the graph of a recipe; `apart` says whether segments may end inside it."""
        builder: StateGraph[Any, Any, Any, Any] = StateGraph(WorkState)
        chain: list[str] = []

        def add(name: str, node: Any) -> None:
            builder.add_node(name, node)
            builder.add_edge(chain[-1] if chain else START, name)
            chain.append(name)

        for stage in planned.stages:
            if apart and self.waiting and begins_segment(stage):
                add(*self._drain(planned))
            if isinstance(stage, PlannedStage):
                add(stage.stage_id, StageNode(stage))
                self.waiting = True
            else:
                inside = apart and not is_whole(stage)
                add(stage.stage_id, self._graph(stage, apart=inside))
        if last:
            add(*self._drain(planned, last=True))
        builder.add_edge(chain[-1], END)
        return builder.compile(name=planned.stage_id)

    def _drain(self, planned: PlannedRecipe, *, last: bool = False) -> tuple[str, Drain]:
        self.waiting = False
        self.drains += 1
        name = f"{planned.stage_id}.drain_{self.drains}"
        return name, Drain(name, self.units, last=last)
