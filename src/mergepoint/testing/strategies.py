"""Strategies: random trees, conversations, inputs and answers for property tests.

    from hypothesis import given
    from mergepoint.testing.strategies import trees

    @given(tree=trees())
    def test_a_tree_can_be_drawn(tree): ...

Every tree passes `check`. What holds for any tree can be tested with them: a drawing, a cost
estimate, an engine of one's own. `mergepoint.testing.case.seeded_case` gives cases by number,
without hypothesis.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, TypeVar

from hypothesis import strategies as st
from langchain_core.messages import BaseMessage

from mergepoint.testing.answers import AnswerTable
from mergepoint.testing.case import Case, grow_answers, grow_case, grow_inputs, grow_messages
from mergepoint.testing.growth import KINDS, Growth
from mergepoint.tree.node import Node

T = TypeVar("T")


class _Drawn:
    """Decisions that hypothesis takes, remembers and shrinks."""

    def __init__(self, draw: st.DrawFn) -> None:
        self._draw = draw

    def integer(self, low: int, high: int) -> int:
        return self._draw(st.integers(low, high))

    def pick(self, options: Sequence[T]) -> T:
        return options[self._draw(st.integers(0, len(options) - 1))]

    def chance(self, percent: int) -> bool:
        return self._draw(st.integers(0, 99)) >= 100 - percent


@st.composite
def trees(
    draw: st.DrawFn,
    *,
    max_depth: int = 6,
    max_nodes: int = 24,
    parallel: bool = True,
    broken_prompts: bool = False,
    kinds: Collection[str] = KINDS,
) -> Node:
    """Give trees that `check` finds no fault in.

    `max_depth` counts the names in the longest path, `max_nodes` all nodes below the root. With
    `broken_prompts` some functions raise, or return what is no prompt, result or decision. Of
    `kinds` "call", "gate" and "loop" may be left out.
    """
    return Growth(
        _Drawn(draw),
        max_depth=max_depth,
        nodes_left=max_nodes,
        parallel=parallel,
        broken=broken_prompts,
        kinds=kinds,
    ).tree()


@st.composite
def messages(draw: st.DrawFn) -> list[BaseMessage]:
    """Give conversations to start from, of up to four messages with ids."""
    return grow_messages(_Drawn(draw))


@st.composite
def inputs(draw: st.DrawFn, tree: Node, *, faulty: bool = False) -> dict[str, Any]:
    """Give inputs for a tree; with `faulty` now and then one is missing or blank."""
    return grow_inputs(_Drawn(draw), tree, faulty=faulty)


@st.composite
def answers(draw: st.DrawFn, tree: Node, *, failing: int = 30) -> AnswerTable:
    """Give answers for a tree's calls; `failing` of a hundred tables hold calls that fail."""
    return grow_answers(_Drawn(draw), tree, failing=failing)


@st.composite
def cases(draw: st.DrawFn, *, faulty: bool = True) -> Case:
    """Give a tree with messages, inputs and answers that fit it; with `faulty` runs may fail."""
    return grow_case(_Drawn(draw), faulty=faulty)
