"""Searching: what all strategies of a search are told."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from pydantic import Field

from mergepoint.streams.params import Params
from mergepoint.streams.recipe import Stage
from mergepoint.streams.recipe_yaml import StageFields, stage_of
from mergepoint.streams.search.search import Search
from mergepoint.streams.where import Where


class Searching(Params):
    """What is tried, how it is scored, and when the search is over."""

    next: list[StageFields] = Field(
        min_length=1, description="stages that make nodes with a score of a node"
    )
    first: list[StageFields] | None = Field(
        default=None, description="stages that make the first nodes, of the item; else next"
    )
    moves: int = Field(default=16, ge=1, description="so often is a node tried, at most")
    until: Where | None = Field(
        default=None, description="a node for which this holds ends the search"
    )
    by: str = Field(default="score", description="the prop that says how good a node is")
    worst: float = Field(default=0.0, description="that number where it is worst")
    perfect: float = Field(default=100.0, description="that number where it is best")
    keep: int = Field(default=1, ge=1, description="so many of the best nodes come out")

    def begin(self, root: str, rng: random.Random) -> Search:
        """Give a search from a root."""
        raise NotImplementedError

    def inside(self) -> Mapping[str, Any]:
        """Give the stages that are run inside of it, by name, what comes first first."""
        ways: dict[str, tuple[Stage, ...]] = {}
        if self.first is not None:
            ways["first"] = tuple(map(stage_of, self.first))
        ways["next"] = tuple(map(stage_of, self.next))
        return ways

    def share(self, number: float) -> float:
        """Give how good a node is, 0 to 1, by the prop's number."""
        return min(1.0, max(0.0, (number - self.worst) / (self.perfect - self.worst)))
