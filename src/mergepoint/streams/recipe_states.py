"""States: the channels of the graphs that a recipe is compiled to."""

from __future__ import annotations

from typing import Annotated, Any

from langgraph.channels import EphemeralValue
from typing_extensions import TypedDict

Steps = list[dict[str, Any]]


def by_stage(left: Steps, right: Steps) -> Steps:
    """Give the steps of both, one a stage: a subgraph gives back what it was given, and more."""
    steps = {step["stage_id"]: step for step in [*left, *right]}
    return list(steps.values())


class RecipeGiven(TypedDict, total=False):
    """What a recipe takes."""

    items: list[Any]
    scope: Annotated[str, EphemeralValue]


class RecipeGives(TypedDict):
    """What a recipe gives: its Things in plain form, the run as one, and why it stopped."""

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

    `plan` has a step for each stage that was passed, `worked` says how many of them are done;
    `things` are those that the last segment left, `stops` what ended stages so far.
    """

    plan: Annotated[Steps, by_stage]
    worked: int
    things: list[dict[str, Any]]
    stops: list[dict[str, str]]
