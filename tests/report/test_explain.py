"""Explanations of random trees say what their calls then see."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from pydantic import PrivateAttr

from mergepoint.core.paths import iteration_name, join
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.transcript import Transcript
from mergepoint.report.explaining import explain
from mergepoint.report.explanation import Explanation, PlannedStep
from mergepoint.testing.random_trees import WITH_TOOLS, Case, seeded_case
from mergepoint.testing.tree_functions import TableModel, line
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Loop, Node, Order, children, root_path, walk

RUN = "r1"
CASES = 60
CAMPAIGN = 500
# What a view shows of an answer beside its text.
MARKS = re.compile(r"^\[reasoning\]|(\[calls [^\]]*\])+$")

Seen = tuple[str, str, str]
"""Role, text, and the path of the call that made a message; "given" or "own" for others."""


class SeeingModel(TableModel):
    """A table model that keeps the messages of each path's first request, with their ids."""

    _sent: dict[str, list[Seen]] = PrivateAttr(default_factory=dict)

    @property
    def sent(self) -> Mapping[str, list[Seen]]:
        """Return the messages of the first request at each path."""
        return self._sent

    def _answer(
        self, messages: list[BaseMessage], metadata: Mapping[str, Any], tools: Sequence[Any]
    ) -> ChatResult:
        path = str(metadata["mergepoint"]["path"])
        self._sent.setdefault(path, [(*line(one), maker(one, path)) for one in messages])
        return super()._answer(messages, metadata, tools)


def maker(message: BaseMessage, path: str) -> str:
    """Return the path of the call that made a message, from its id."""
    made, _, _ = str(message.id or "").removeprefix(f"{RUN}/").rpartition("/")
    if str(message.id).startswith("given-"):
        return "given"
    return "own" if not made or made == path else made


def happened(case: Case) -> tuple[Transcript, SeeingModel]:
    """Run a case, and return its transcript and the model with what it was sent."""
    model, recorder = SeeingModel(table=case.answers), Recorder()
    error: dict[str, str] | None = None
    try:
        interpret(
            case.tree,
            model=model,
            messages=case.messages,
            inputs=case.inputs,
            run_id=RUN,
            recorder=recorder,
        )
    except Exception as raised:  # noqa: BLE001  (a loop may use up its iterations)
        error = {"path": str(getattr(raised, "pipeline_path", "")), "message": str(raised)}
    transcript = Transcript.of(
        recorder.journal.records,
        case.tree,
        run_id=RUN,
        at=root_path(case.tree),
        base=case.messages,
        inputs=case.inputs,
        error=error,
    )
    return transcript, model


def predicted(step: PlannedStep) -> list[Seen]:
    """Return what a step is said to see, in the form of the model."""
    own = {"given": "given"}
    return [
        (one.role, MARKS.sub("", one.text), one.path or own.get(one.origin, "own"))
        for one in step.sees
    ]


def sees(explained: Explanation) -> dict[str, list[Seen]]:
    """Return what every step is said to see, by path."""
    return {one.path: predicted(one) for one in explained.steps if one.kind == "step"}


def sent_to_steps(case: Case, transcript: Transcript, model: SeeingModel) -> dict[str, list[Seen]]:
    """Return what the model was sent by steps; functions may call it too."""
    order = Order(case.tree, root_path(case.tree))
    nodes = dict(walk(case.tree))
    return {
        path: sent
        for path, sent in model.sent.items()
        if isinstance(nodes[order.static(path)], Step)
    }


def check_like(case: Case) -> int:
    """Hold an explanation like an earlier run to what that run's model was sent, word by word."""
    transcript, model = happened(case)
    found = explain(
        case.tree, inputs=case.inputs, messages=case.messages, model="offline", like=transcript
    )
    said, sent = sees(found), sent_to_steps(case, transcript, model)
    if transcript.error is not None:
        # The run ended early: an explanation assumes that it doesn't.
        said = {path: one for path, one in said.items() if path in sent}
    assert said == sent
    return len(sent)


def iterations_of(case: Case, transcript: Transcript) -> dict[str, int]:
    """Return how many iterations every loop of a run made, by its path in the run."""
    paths = [record.path for record in transcript.everything]
    found: dict[str, int] = {}

    def visit(node: Node, path: str) -> None:
        if not isinstance(node, Loop):
            for at, child in children(node, path):
                visit(child, at)
            return
        rounds = [
            number
            for number in range(1, node.max_iterations + 1)
            if any(one.startswith(f"{join(path, iteration_name(number))}/") for one in paths)
        ]
        found[path] = max(rounds, default=0 if node.may_skip else 1)
        for number in range(1, found[path] + 1):
            visit(node.body, join(path, iteration_name(number)))

    visit(case.tree, root_path(case.tree))
    return found


def check_course(case: Case) -> int:
    """Hold an explanation of which only iterations and decisions are known to what happened."""
    transcript, model = happened(case)
    answers = [record.made() for record in transcript.records if record.kind == "call"]
    if transcript.error is not None or any(len(one.messages) > 1 for one in answers):
        return 0  # how many messages a Runnable returns is known only after its call
    found = explain(
        case.tree,
        inputs=case.inputs,
        messages=case.messages,
        model="offline",
        iterations=iterations_of(case, transcript),
        decisions={one.path: one.value for one in transcript.records if one.kind == "gate"},
    )
    said, sent = sees(found), sent_to_steps(case, transcript, model)
    assert said.keys() == sent.keys()
    for path, seen in sent.items():
        assert [(role, made) for role, _, made in said[path]] == [
            (role, made) for role, _, made in seen
        ]
    least, most = found.calls
    assert least <= len(sent)
    assert most is None or len(sent) <= most
    return len(sent)


def check_all(seeds: Iterable[int]) -> Counter[str]:
    """Check the cases of some seeds, and count their steps."""
    steps: Counter[str] = Counter()
    for seed in seeds:
        steps["like"] += check_like(seeded_case(seed, faulty=False, kinds=WITH_TOOLS))
        steps["course"] += check_course(seeded_case(seed, faulty=False))
    return steps


def test_steps_see_what_the_explanation_says() -> None:
    """Of 60 random trees, each step was sent exactly the messages that were predicted."""
    steps = check_all(range(CASES))
    assert min(steps["like"], steps["course"]) > CASES


@pytest.mark.campaign
def test_steps_of_500_trees_see_what_the_explanation_says() -> None:
    """Of 500 random trees, each step was sent exactly the messages that were predicted."""
    steps = check_all(range(CASES, CASES + CAMPAIGN))
    assert min(steps["like"], steps["course"]) > CAMPAIGN
