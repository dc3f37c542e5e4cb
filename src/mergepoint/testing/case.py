"""Case: a random tree with all that a run of it needs, by number or by choice."""

from __future__ import annotations

import copy
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage

from mergepoint.core.path import iteration_name
from mergepoint.testing.answers import FAILURES, AnswerTable
from mergepoint.testing.choice import Choice, Seeded
from mergepoint.testing.growth import KINDS, Growth
from mergepoint.testing.sayings import VALUES
from mergepoint.tree.block import REQUIRED
from mergepoint.tree.check import inputs_of
from mergepoint.tree.node import Node, walk
from mergepoint.tree.step import Step

TEXTS = ("Hello.", "And then?", "{{ plan }}", "äöü\n\nline", "  ", "Be brief.")


@dataclass(frozen=True)
class Case:
    """A tree with all that a run of it needs."""

    tree: Node
    messages: Sequence[BaseMessage]
    inputs: dict[str, Any]
    answers: AnswerTable


def grow_messages(choice: Choice) -> list[BaseMessage]:
    """Give a conversation to start from, each message with an id."""
    kinds: Sequence[type[BaseMessage]] = (HumanMessage, AIMessage, SystemMessage)
    return [
        choice.pick(kinds)(choice.pick(TEXTS), id=f"given-{number}")
        for number in range(choice.integer(0, 4))
    ]


def grow_inputs(choice: Choice, tree: Node, *, faulty: bool = False) -> dict[str, Any]:
    """Give a run's inputs; with `faulty` now and then one is missing or blank."""
    given: dict[str, Any] = {}
    for declared in inputs_of(tree):
        if declared.default is not REQUIRED and choice.chance(50):
            continue
        given[declared.name] = copy.deepcopy(choice.pick(VALUES))
        if faulty and choice.chance(4):
            given[declared.name] = choice.pick((" ", None))
        if faulty and choice.chance(2):
            del given[declared.name]
    return given


def grow_answers(choice: Choice, tree: Node, *, failing: int = 30) -> AnswerTable:
    """Give answers; in about `failing` of a hundred cases one to four of the calls fail."""
    seed = choice.integer(0, 1_000_000)
    failures: dict[str, str] = {}
    paths = [path for path, node in walk(tree) if isinstance(node, Step)]
    if paths and choice.chance(failing):
        for _ in range(choice.integer(1, 4)):
            path = choice.pick(paths)
            if choice.chance(30):  # in the second iteration of the loops around, if any
                path = path.replace(iteration_name(1), iteration_name(2))
            failures[path] = choice.pick(tuple(FAILURES))
    return AnswerTable(seed, failures=failures)


def grow_case(choice: Choice, *, faulty: bool = True, kinds: Collection[str] = KINDS) -> Case:
    """Give a tree with messages, inputs and answers that fit it; with `faulty` runs may fail."""
    size = choice.pick((4, 4, 8, 16))
    broken = faulty and choice.chance(20)
    tree = Growth(choice, nodes_left=size, broken=broken, kinds=kinds).tree()
    return Case(
        tree,
        grow_messages(choice),
        grow_inputs(choice, tree, faulty=faulty),
        grow_answers(choice, tree, failing=35 if faulty else 0),
    )


def seeded_case(seed: int, *, faulty: bool = True, kinds: Collection[str] = KINDS) -> Case:
    """Give the case of a number: the same in every process."""
    return grow_case(Seeded(seed), faulty=faulty, kinds=kinds)
