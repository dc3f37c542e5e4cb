"""compile_recipe: from a recipe to a LangGraph graph.

Every stage is a node that adds itself to a plan, a recipe inside is a subgraph, and a node at the
end of each segment wires the lazy chain from the plan and pulls it. So the engine has steps to
show, to keep and to go on from, and what flows through the stages is one stream as anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from langchain_core.language_models import BaseChatModel
from langgraph.graph import END, START, StateGraph
from langgraph.types import Checkpointer

from mergepoint.models.prices import Price
from mergepoint.record.store import Store
from mergepoint.record.store_at import store_at
from mergepoint.run.graph import Graph
from mergepoint.run.journaled import Origin
from mergepoint.streams.library import LIBRARY, Library
from mergepoint.streams.plan import plan
from mergepoint.streams.planned import PlannedRecipe, PlannedStage
from mergepoint.streams.planned_calls import check_prices, models_of
from mergepoint.streams.recipe import Recipe
from mergepoint.streams.recipe_nodes import Drain, RecipeNode, StageNode
from mergepoint.streams.recipe_states import RecipeGiven, RecipeGives, RecipeState, WorkState
from mergepoint.streams.registry import REGISTRY, Registry
from mergepoint.streams.rooted_recipe import RootedRecipe
from mergepoint.streams.segments import begins_segment, is_whole, unit_of
from mergepoint.tree.budget import Budget, as_budget


def compile_recipe(
    recipe: Recipe | str,
    *,
    model: str | BaseChatModel | None = None,
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
) -> Graph:
    """Compile a recipe, or one of the library by its name, to a LangGraph graph.

    It takes `{"items": [...]}` and gives `{"things": [...], "workflow": {...}, "stopped": "...",
    "run_id": "..."}`. Items are contents (JSON data) or fresh Things, as they are or in plain form
    (`thing.to_plain()`, which a checkpointer can keep); Things are given in plain form. Each goes
    out as it leaves the recipe, `{"thing": {...}}`, to who streams with `stream_mode="custom"`. A
    host that runs it several times side by side passes a `scope` (text) with each.

    Things, ids, histories and calls are those of `run_recipe`. With a `checkpointer` a run that
    failed or was killed goes on by its thread (`graph.invoke(None, config)`): finished segments
    are not worked on again. A segment ends before each stage that takes everything at once, and
    at a `checkpoint`. With a `journal` each run is written there, under its run's id
    (`configurable["mergepoint_run_id"]`), else its thread's, and no call that is on record is made
    again; `reuse` and `replay` name a run that answers are taken from. The other options are those
    of `stream_recipe`; a `mergepoint_seed` in the config stands over `seed`.

    Raises RecipeError that lists every fault, TreeError for models, and what `store_at` raises.
    """
    planned = plan(recipe, knobs, registry=registry, library=library)
    models = models_of(planned, model)
    check_prices(planned, models, as_budget(budget), prices)
    rooted = RootedRecipe(
        planned=planned,
        models=models,
        knobs=dict(knobs or {}),
        seed=seed,
        budget=as_budget(budget),
        prices=prices,
        store=None if journal is None else store_at(journal),
        origin=Origin(reuse, replay),
        registry=registry,
        library=library,
    )
    inner = _Compiler(planned).graph()
    builder: StateGraph[Any, Any, Any, Any]
    builder = StateGraph(RecipeState, input_schema=RecipeGiven, output_schema=RecipeGives)
    name = planned.recipe.name
    node: Any = RecipeNode(inner, rooted)
    builder.add_node(name, node)
    builder.add_edge(START, name)
    builder.add_edge(name, END)
    return builder.compile(checkpointer=checkpointer, name=name)


@dataclass
class _Compiler:
    """Compiles one recipe; `waiting` says whether stages are planned and not worked on yet."""

    planned: PlannedRecipe
    waiting: bool = False
    drains: int = 0
    units: dict[str, Any] = field(default_factory=dict)

    def graph(self) -> Graph:
        """Give the graph of the whole recipe."""
        self.units = unit_of(self.planned)
        return self._graph(self.planned, apart=not is_whole(self.planned), last=True)

    def _graph(self, planned: PlannedRecipe, *, apart: bool, last: bool = False) -> Graph:
        """Give the graph of a recipe; `apart` says whether segments may end inside of it."""
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
