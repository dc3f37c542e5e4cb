"""Compare, on pairs of runs of random trees of which one prompt was changed.

What differs is computed from what the model, the functions and the answerers of both runs really
received, and not from any record.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from langchain_core.runnables import Runnable
from pydantic import PrivateAttr

from mergepoint.core.errors import StepError
from mergepoint.core.paths import of_first_iterations
from mergepoint.engine.run_tree import run_generation
from mergepoint.report.comparison import Comparison, compare
from mergepoint.testing.random_trees import WITH_TOOLS, Case, Seeded, seeded_case
from mergepoint.testing.tree_functions import TableModel, line
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Gate, Node, walk
from mergepoint.tree.prompts import CallContext, Reads, Template, declared_reads
from mergepoint.tree.transform import with_overrides

PAIRS = 200


@dataclass
class Log:
    """What was received at each path, in the order of time, and what functions and people said."""

    seen: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)

    def add(self, path: str, seen: Any) -> None:
        """Keep what was received first at a path: later attempts receive the same."""
        self.seen.setdefault(path, seen)


class Listening(TableModel):
    """A model from a table that writes a log of what it was sent."""

    _log: Log = PrivateAttr(default_factory=Log)

    @property
    def log(self) -> Log:
        """Return the log."""
        return self._log

    def _answer(
        self, messages: list[BaseMessage], metadata: Mapping[str, Any], tools: Any
    ) -> ChatResult:
        path = str(metadata["mergepoint"]["path"])
        self._log.add(path, [line(message) for message in messages])
        return super()._answer(messages, metadata, tools)


@dataclass(frozen=True)
class LoggedFunction:
    """A function that writes a log of the input by which its answers are found."""

    function: Any
    log: Log

    @property
    def __mergepoint_reads__(self) -> Reads | None:
        """Return the reads of the function."""
        return declared_reads(self.function)

    def __call__(self, ctx: CallContext, **given: Any) -> Any:
        """Return the function's result."""
        reads = declared_reads(self.function)
        if given:
            seen: Any = repr(given)
        elif reads is not None:
            seen = repr({key: ctx.read(key) for key in reads.keys})
        else:
            seen = repr(([line(one) for one in ctx.messages], dict(ctx.outputs)))
        self.log.add(ctx.path, seen)
        found = self.function(ctx, **given)
        return (
            self._later(ctx.path, found) if inspect.isawaitable(found) else self._kept(ctx, found)
        )

    async def _later(self, path: str, found: Any) -> Any:
        self.log.said[path] = await found
        return self.log.said[path]

    def _kept(self, ctx: CallContext, found: Any) -> Any:
        self.log.said[ctx.path] = found
        return found


@dataclass(frozen=True)
class LoggedDecision:
    """An answerer of a gate that writes a log of its questions."""

    decide: Any
    log: Log

    def __call__(self, question: Question) -> Any:
        """Return the decision."""
        kept = question.kept
        seen = ([line(one) for one in kept.messages], dict(kept.outputs))
        told, found = repr(seen), self.decide(question)
        # A wrong answer ends the run before anything about the gate is on record.
        with contextlib.suppress(StepError):
            Decision.of(found)
            self.log.add(question.path, told)
            self.log.said[question.path] = found
        return found


def logged(tree: Node, log: Log) -> Node:
    """Return a tree whose functions and answerers write a log."""
    fields: dict[str, dict[str, Any]] = {}
    for path, node in walk(tree):
        if isinstance(node, Call) and not isinstance(node.target, Runnable):
            fields[path] = {"target": LoggedFunction(node.target, log)}
        if isinstance(node, Gate):
            fields[path] = {"decide": LoggedDecision(node.decide, log)}
    return with_overrides(tree, fields)


def ran(case: Case, tree: Node, folder: Path, name: str) -> Log:
    """Run a tree of a case, also to its failure, and return what was received."""
    model = Listening(table=case.answers)
    # Half of these runs fail, in any way that a run can.
    with contextlib.suppress(Exception):
        run_generation(
            logged(tree, model.log),
            model=model,
            inputs=case.inputs,
            messages=case.messages,
            runs=folder,
            run_id=name,
        )
    return model.log


def changed_at_random(tree: Node, choice: Seeded) -> tuple[Node, str] | None:
    """Return a tree with one changed prompt, and its path; None for a tree without steps."""
    steps = [(path, node) for path, node in walk(tree) if isinstance(node, Step)]
    if not steps:
        return None
    path, step = choice.pick(steps)
    prompt: Any = "Say something else."
    if isinstance(step.prompt, Template):
        prompt = Template(f"{step.prompt.text} Changed.", defaults=step.prompt.defaults)
    elif isinstance(step.prompt, str):
        prompt = f"{step.prompt} Changed."
    return with_overrides(tree, {path: {"prompt": prompt}}), path


def runnables(tree: Node) -> set[str]:
    """Return the paths of Calls whose input is not logged."""
    calls = [(path, node) for path, node in walk(tree) if isinstance(node, Call)]
    return {path for path, node in calls if isinstance(node.target, Runnable)}


def check_pair(seed: int, folder: Path) -> bool:
    """Compare a pair of runs with what they really received; return whether it differs."""
    case = seeded_case(seed, kinds=WITH_TOOLS)
    changed = changed_at_random(case.tree, Seeded(seed))
    if changed is None:
        return False
    tree, at = changed
    before, after = ran(case, case.tree, folder, "a"), ran(case, tree, folder, "b")
    if not (folder / "a").exists():  # refused before its first call
        return False
    found = compare(folder / "a", folder / "b")
    check(found, before, after, at, unknown=runnables(case.tree))
    return found.first_divergence is not None


def check(found: Comparison, a: Log, b: Log, at: str, *, unknown: set[str]) -> None:
    """Check what a comparison says against two logs."""
    both = [path for path in a.seen if path in b.seen]
    differing = [path for path in both if a.seen[path] != b.seen[path]]
    own = {path for path in differing if of_first_iterations(path) == at}
    own |= {path for path in both if path not in differing and a.said.get(path) != b.said.get(path)}

    # A call can fail before it sends anything: then it is on record and in one log only.
    alone = set(a.seen) ^ set(b.seen)

    def known(paths: tuple[str, ...]) -> set[str]:
        return {
            path
            for path in set(paths) - alone
            if of_first_iterations(path) not in unknown
            and not path.rpartition("/")[2].startswith("tool_")
        }

    assert known(found.changed) == own
    assert known(found.freed) == set(differing) - own
    assert alone.isdisjoint(found.paths("same"))
    assert set(found.paths("only_a")).isdisjoint(b.seen)
    assert set(found.paths("only_b")).isdisjoint(a.seen)
    happened = [*(path for path in a.seen if path in differing or path in alone)]
    happened += [path for path in b.seen if path in alone]
    assert found.first_divergence == (happened[0] if happened else None)
    if happened:
        assert of_first_iterations(happened[0]) == at
        assert found.reason == "prompt"


@pytest.mark.parametrize("seed", range(25))
def test_the_changed_prompt_is_the_first_divergence(seed: int, tmp_path: Path) -> None:
    """The comparison names the changed prompt first, and what it freed, as the model saw it."""
    check_pair(seed, tmp_path)


@pytest.mark.campaign
def test_the_changed_prompt_is_the_first_divergence_in_200_pairs(tmp_path: Path) -> None:
    """The same for 200 pairs that differ, of as many random trees as that takes."""
    seed, pairs = 0, 0
    while pairs < PAIRS:
        pairs += check_pair(seed, tmp_path / str(seed))
        seed += 1
    print(f"{pairs} pairs that differ, of {seed} random trees")
