"""Proposals: what a block asks of the executor that is to plan stages and run them."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final, Protocol

PROPOSAL: Final = "proposal"  # the prop that holds the stages

_PLACE = re.compile(rf"\.{PROPOSAL}_\d+\.")

Proposed = Sequence[Mapping[str, Any]]


def depth_of(stage_id: str) -> int:
    """Give how many proposals a stage is inside of."""
    return len(_PLACE.findall(stage_id))


class Proposals(Protocol):
    """Whoever can plan stages that were proposed: the executor, or a fake."""

    def known(self, allowed: Sequence[str] | None) -> tuple[str, ...]:
        """Give the types that may be proposed: of those allowed, else all that reach no files.

        Raises RecipeError for one that there is not.
        """
        ...

    def about(self, names: Sequence[str]) -> str:
        """Tell of types and their params, in lines."""
        ...

    def faults(
        self,
        stages: Proposed,
        *,
        stage_id: str,
        props: Sequence[str],
        known: Sequence[str],
        depth: int,
    ) -> list[str]:
        """Say what is wrong with stages for a Thing with these props; proposals `depth` deep."""
        ...
