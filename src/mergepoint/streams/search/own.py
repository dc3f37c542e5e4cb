"""Own: a search of one's own, by the function that begins it."""

from __future__ import annotations

import random
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, WithJsonSchema

from mergepoint.streams.named import NAMED, named, named_problem
from mergepoint.streams.search.search import Search
from mergepoint.streams.search.searching import Searching


def _beginning(given: Any) -> Any:
    if not callable(given) and (problem := named_problem(given)):
        raise ValueError(f"a search is a function of root and random numbers, or {problem}")
    return given


class Own(Searching):
    """A function that is given the root's id and random numbers, and gives a Search."""

    strategy: Literal["own"]
    search: Annotated[
        Any, AfterValidator(_beginning), NAMED, WithJsonSchema({"type": "string"})
    ] = Field(description="the function: in Python itself, in YAML `module:name`")
    at_once: int = Field(default=1, ge=1, description="so many moves before what came is looked at")

    def begin(self, root: str, rng: random.Random) -> Search:
        """Give a search from a root. Raises BlockError for a name that is not there."""
        begin = named(self.search) if isinstance(self.search, str) else self.search
        found: Search = begin(root, rng)
        return found
