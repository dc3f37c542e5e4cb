"""Run and compile anything: a tree, a recipe, the path of one, or a name."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterable,
    AsyncIterator,
    Iterable,
    Iterator,
    Mapping,
    Sequence,
)
from contextlib import aclosing
from pathlib import Path
from typing import Any, Final, Literal, cast, overload

from langchain_core.messages import BaseMessage, HumanMessage
from langgraph.cache.base import BaseCache
from langgraph.store.base import BaseStore
from langgraph.types import Checkpointer
from typing_extensions import TypedDict, Unpack

from mergepoint.aio.map import in_own_task
from mergepoint.core.errors import StepError
from mergepoint.core.paths import nearest
from mergepoint.engine.callbacks import Event
from mergepoint.engine.compiled_graph import CompiledTree, DrawnGraph
from mergepoint.engine.compiler import Form, Returns
from mergepoint.engine.compiler import compile_graph as compile_tree
from mergepoint.engine.run_tree import Result, TreeOptions, TreeRun
from mergepoint.journal.stores import Store
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import ChatModel
from mergepoint.models.pricing import Price
from mergepoint.models.providers import View
from mergepoint.streams.langgraph import CompiledRecipe, compile_recipe
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_runs import RecipeOptions, arun_recipe, recipe_events
from mergepoint.streams.recipe_yaml import Library
from mergepoint.streams.registry import Registry
from mergepoint.streams.thing import Thing
from mergepoint.targets import FoundTarget, find_target
from mergepoint.tree.leaves import Method
from mergepoint.tree.nodes import Node
from mergepoint.tree.policy import Budget

Target = Node | Recipe | Path | str


class AnyOptions(TreeOptions, RecipeOptions, total=False):
    """Options of `run`, `arun`, `stream` and `astream`."""

    items: Iterable[Any] | AsyncIterable[Any] | None


# The annotations of a TypedDict include those of its bases.
_OF_TREES: Final = frozenset(TreeOptions.__annotations__)
_OF_RECIPES: Final = frozenset(RecipeOptions.__annotations__) | {"items"}


def run(target: Target, input: Any = None, /, **options: Unpack[AnyOptions]) -> Result[Thing]:  # noqa: A002  (LangChain's name)
    """Run a tree or a recipe, and return its result.

    The run is kept in memory unless `runs` says where it is written.

    Args:
        target: A tree, a recipe, the path of a YAML file of either, `file.py:object`, or the name
            of a bundled graph or recipe.
        input: What to work on. For a tree: its inputs by name, a user message as text, or
            messages. For a recipe: a list or another iterable of items, or one item, which is
            text, other JSON data, or a Thing. None where the target needs none, and for the
            input of a run to `resume`, which the journal has.

    Keyword Args:
        model: The model of steps that name none: a LangChain chat model, "provider:name", or
            "offline", which answers from rules without a network.
        temperature: Sampling temperature of calls that set none.
        max_tokens: Most tokens of each answer, for calls that set none.
        timeout: Seconds for each attempt of a call. Default: 600.
        base_url: Address of a server that answers for the model, or addresses by model name or
            glob.
        seed: Seed of the random numbers that prompts and blocks see. Default: 0.
        run_id: Id of the run. Default: one made from the time.
        meta: Your own JSON data, which is kept in the journal's header.
        runs: Where runs are kept, each with a journal of every call: a folder, a database URL,
            or a store. A folder also gets each run's transcript. None keeps the run in memory.
        resume: A run to resume, by its id in `runs` or by its folder. Recorded calls aren't made
            again.
        reuse: A run whose answers are reused for equal requests.
        replay: A run whose answers stand for all calls. No model is called.
        budget: A Budget or a mapping of its fields (`usd`, `tokens`, `calls`, `seconds`) for the
            whole run.
        prices: Prices that override those of genai-prices, by "provider:name" or glob.
        config: A LangChain config: callbacks, tags, metadata, max_concurrency. The run is one
            trace.
        inputs: Inputs of a tree by name, when `input` is something else.
        messages: The conversation so far, for a tree.
        answerer: Decisions at the gates of a tree: by path, or a function of a Question.
        form: How a tree is compiled: "subgraphs" (default) or "fused".
        view: How the conversation of a tree is sent to its models.
        ctx: A RunContext of your own, for a tree.
        runner: A ChatRunner of your own, for a tree; it brings its own model and settings.
        items: Items of a recipe, when they aren't `input`.
        knobs: Recipe parameters by name.
        wanted: Number of Things after which a recipe ends.
        method: How a recipe asks for structured output.
        watch: A function that is called with a stage id and each Thing that leaves the stage.
        registry: Where a recipe's blocks are looked up.
        library: Where recipes that a recipe names are looked up.

    Returns:
        The result: text, messages and outputs of a tree; text, outputs and things of a recipe;
        and of both the records of the calls, the usage, and where the run is kept.

    Raises:
        TargetError: The target stands for nothing.
        StepError: An option or the input doesn't fit the target, or a step failed.
        TreeError: The tree is invalid, or differs from the one to resume.
        RecipeError: The recipe is invalid; it lists every problem.
        GateOpen: A gate waits for a decision. Resume the run with an `answerer`.
        BudgetExceeded: A call of a tree would have exceeded the budget. A recipe instead ends and
            returns the finished results.
        ReplayMiss: A replayed run needs a call that isn't recorded.
        JournalError: A journal can't be read, or another process writes it.
    """
    found = find_target(target)
    if isinstance(found.value, Recipe):
        items, given = _for_recipe(found, input, options)
        return run_sync(arun_recipe(found.value, items, **given))
    return TreeRun.of(found.value, _for_tree(input, options)).run()


async def arun(
    target: Target,
    input: Any = None,  # noqa: A002  (LangChain's name)
    /,
    **options: Unpack[AnyOptions],
) -> Result[Thing]:
    """Run a target as `run` does, on an event loop; files are read and written in threads."""
    found = find_target(target)
    if isinstance(found.value, Recipe):
        items, given = _for_recipe(found, input, options)
        return await arun_recipe(found.value, items, **given)
    return await TreeRun.of(found.value, _for_tree(input, options)).arun()


def stream(
    target: Target,
    input: Any = None,  # noqa: A002  (LangChain's name)
    /,
    **options: Unpack[AnyOptions],
) -> Iterator[Event]:
    """Run a tree or a recipe, and yield its events as they happen.

    Takes the arguments of `run`, and raises what it raises. The run begins when the first event is
    asked for. A consumer that stops early stops the run.

    Yields:
        Events of calls at every depth ("start", "token", "end", ...), each with its path; those
        of a recipe also for each Thing that leaves a stage ("stage") or the recipe ("thing"). The
        last one is the "result", whose `value` is what `run` returns.
    """
    found = find_target(target)
    if isinstance(found.value, Recipe):
        items, given = _for_recipe(found, input, options)
        yield from _pulled(recipe_events(found.value, items, **given))
    else:
        yield from TreeRun.of(found.value, _for_tree(input, options)).stream()


async def astream(
    target: Target,
    input: Any = None,  # noqa: A002  (LangChain's name)
    /,
    **options: Unpack[AnyOptions],
) -> AsyncIterator[Event]:
    """Stream a target as `stream` does, on an event loop."""
    found = find_target(target)
    if isinstance(found.value, Recipe):
        items, given = _for_recipe(found, input, options)
        events = recipe_events(found.value, items, **given)
    else:
        events = TreeRun.of(found.value, _for_tree(input, options)).astream()
    async with aclosing(in_own_task(events)) as source:
        async for event in source:
            yield event


def _pulled(events: AsyncGenerator[Event, None]) -> Iterator[Event]:
    """Yield the events of a coroutine's generator, which runs on the loop of sync callers."""
    source = in_own_task(events)
    try:
        while (event := run_sync(_next(source))) is not None:
            yield event
    finally:
        run_sync(source.aclose())


async def _next(source: AsyncIterator[Event]) -> Event | None:
    return await anext(source, None)


def _for_tree(given: Any, options: AnyOptions) -> TreeOptions:
    """Return the options of a tree's run, with its input among them."""
    _check(options, _OF_TREES, "a tree")
    known = cast("TreeOptions", options)
    if given is None:
        return known
    name = "inputs" if isinstance(given, Mapping) else "messages"
    if options.get(name):
        raise StepError(f"the input is given twice: as the second argument, and as {name!r}")
    if isinstance(given, Mapping):
        return {**known, "inputs": given}
    if isinstance(given, str):
        return {**known, "messages": [HumanMessage(given)]}
    if isinstance(given, BaseMessage):
        return {**known, "messages": [given]}
    if isinstance(given, list | tuple):
        return {**known, "messages": given}
    raise StepError(
        "the input of a tree is a mapping of inputs by name, a user message as text, or a list of "
        f"messages, not {type(given).__name__}"
    )


def _for_recipe(
    found: FoundTarget, given: Any, options: AnyOptions
) -> tuple[Iterable[Any] | AsyncIterable[Any] | None, RecipeOptions]:
    """Return the items and the options of a recipe's run."""
    _check(options, _OF_RECIPES, "a recipe")
    # `options` are the keywords of this call, so nothing of the caller's changes.
    items = options.pop("items", None)
    known: RecipeOptions = {
        "library": found.library,
        # `run` keeps runs in memory, but `arun_recipe` by itself writes to the folder "runs".
        "runs": None,
        **cast("RecipeOptions", options),
    }
    if given is None:
        return items, known
    if items is not None:
        raise StepError("the input is given twice: as the second argument, and as 'items'")
    several = isinstance(given, Iterable | AsyncIterable)
    # Text and mappings are iterable, but each of them is one item.
    one = isinstance(given, str | Mapping | Thing) or not several
    return [given] if one else given, known


def _check(options: Mapping[str, Any], allowed: frozenset[str], what: str) -> None:
    """Reject invalid options. Raises TypeError for unknown ones, StepError for others."""
    known = AnyOptions.__annotations__ | AnyGraphOptions.__annotations__
    for name in options:
        if name in allowed:
            continue
        if name not in known:
            # As Python does for a keyword that a function doesn't have.
            raise TypeError(f"there is no option {name!r}{nearest(name, sorted(allowed))}")
        raise StepError(f"{name!r} isn't an option of {what}; remove it")


# Compiling: to a LangGraph graph.


class GraphOptions(TypedDict, total=False):
    """Options that the graphs of trees and of recipes have in common."""

    model: str | ChatModel | None
    temperature: float | None
    max_tokens: int | None
    timeout: float | None
    base_url: str | Mapping[str, str] | None
    checkpointer: Checkpointer
    journal: Path | str | Store | None
    reuse: Path | str | None
    replay: Path | str | None
    budget: Budget | Mapping[str, Any] | None
    prices: Mapping[str, Price] | None


class TreeGraphOptions(GraphOptions, total=False):
    """Options of the graph of a tree."""

    form: Form
    at: str | None
    returns: Returns
    view: View | None
    extra_inputs: Sequence[str]
    store: BaseStore | None
    cache: BaseCache[Any] | None
    interrupt_before: Sequence[str] | Literal["*"]
    interrupt_after: Sequence[str] | Literal["*"]
    context_schema: type[Any] | None


class RecipeGraphOptions(GraphOptions, total=False):
    """Options of the graph of a recipe."""

    method: Method | None
    knobs: Mapping[str, Any] | None
    seed: int
    registry: Registry
    library: Library


class AnyGraphOptions(TreeGraphOptions, RecipeGraphOptions, total=False):
    """Options of `compile_graph`."""


@overload
def compile_graph(target: Node, /, **options: Unpack[TreeGraphOptions]) -> CompiledTree: ...


@overload
def compile_graph(target: Recipe, /, **options: Unpack[RecipeGraphOptions]) -> CompiledRecipe: ...


@overload
def compile_graph(target: Path | str, /, **options: Unpack[AnyGraphOptions]) -> DrawnGraph: ...


def compile_graph(target: Target, /, **options: Unpack[AnyGraphOptions]) -> DrawnGraph:
    """Compile a tree or a recipe to a LangGraph graph.

    The graph of a tree takes `{"messages": [...], "inputs": {...}}` and returns `{"messages":
    [...], "outputs": {...}}`, as other chat graphs do. That of a recipe takes `{"items": [...]}`
    and returns `{"things": [...], "workflow": {...}, "stopped": "...", "run_id": "..."}`, with
    Things as JSON data (`Thing.from_plain` reads them); to `stream_mode="custom"` it sends each
    result as `{"thing": {...}}`. Both take checkpointers, a `scope` (text) that tells apart
    several runs of one node in a host, and the config keys `mergepoint_run_id` and
    `mergepoint_seed`.

    Args:
        target: A tree, a recipe, the path of a YAML file of either, `file.py:object`, or the name
            of a bundled graph or recipe.

    Keyword Args:
        model: The model of steps that name none. See `run`, also for `temperature`, `max_tokens`,
            `timeout`, `base_url`, `budget`, `prices`, `view`, `method`, `knobs`, `registry` and
            `library`.
        checkpointer: LangGraph's checkpointer. A recipe run that was killed resumes by its
            thread. Results before a stage that needs all items aren't computed again.
        journal: A folder, a database URL, or a store where each run is written, under its run's id
            or its thread's. An existing run is resumed: recorded calls aren't made again.
        reuse: A run whose answers are reused for equal requests.
        replay: A run whose recorded answers are used for all calls.
        form: "subgraphs" makes every block of a tree a subgraph (default); "fused" runs the tree
            inside one node, with the same results and records.
        at: The path of the part of a tree to compile. It keeps its full path.
        returns: What the messages of a tree's result are: the whole "conversation" (default), or
            the "delta", for a host whose reducer appends.
        extra_inputs: Names of inputs that every run gets in addition to those of the tree.
        store: LangGraph's store, for functions of a tree.
        cache: LangGraph's cache.
        interrupt_before: Paths of nodes of a tree before which the graph stops, or "*".
        interrupt_after: Paths of nodes of a tree after which the graph stops, or "*".
        context_schema: LangGraph's context schema. A run's `context={"model": ...}` sets the model
            of steps that name none.
        seed: Seed of a recipe's random numbers. Default: 0.

    Returns:
        The compiled graph. `as_tool()` returns it as a LangChain tool.

    Raises:
        TargetError: The target stands for nothing.
        StepError: An option doesn't fit the target, or a model can't be had.
        TreeError: The tree is invalid; it lists every fault.
        RecipeError: The recipe is invalid; it lists every problem.
    """
    found = find_target(target)
    given: Any = {"library": found.library, **options} if found.recipe else options
    if isinstance(found.value, Recipe):
        _check(options, frozenset(RecipeGraphOptions.__annotations__), "a recipe")
        return compile_recipe(found.value, **given)
    _check(options, frozenset(TreeGraphOptions.__annotations__), "a tree")
    return compile_tree(found.value, **given)
