"""image_prompt is edited and run again: what is paid is worked out from what the calls saw.

The oracle knows no digest and no cache. It replays the merges of both runs over their answers,
fills in the prompts by itself, and compares as text what each call was asked.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import BaseMessage
from tests.graphs.golden import case_of, offline_answer, tree_of

from mergepoint.core.merge import State
from mergepoint.engine.compiler import Form
from mergepoint.engine.run_tree import Result, run_generation
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, walk
from mergepoint.tree.prompts import Template
from mergepoint.tree.transform import with_overrides

INPUTS: Mapping[str, Any] = case_of("image_prompt")["inputs"]
FORMS = ("fused", pytest.param("subgraphs", marks=pytest.mark.campaign))
STAGE = "pipeline/section_2b_title"
CONSENSUS = f"{STAGE}/tot_enclave/consensus"
VOICES = f"{STAGE}/tot_enclave"
Asked = tuple[tuple[str, str], ...]
Answered = Callable[[tuple[BaseMessage, ...]], Any]

_PLACE = re.compile(r"{{ *([^ }]+) *}}")


def every_word_counts(messages: tuple[BaseMessage, ...]) -> str:
    """Answer otherwise to whatever is asked otherwise."""
    text = "\n".join(f"{message.type}: {message.text}" for message in messages)
    return f"answer {sha256(text.encode()).hexdigest()[:12]}"


ANSWERS: Mapping[str, Answered] = {"every word counts": every_word_counts, "rules": offline_answer}


def asked(tree: Node, records: Iterable[CallRecord]) -> dict[str, Asked]:
    """Return by path what each step was asked: system message, what it saw, its prompt."""
    seen = replay(records, tree, base=State(), inputs=INPUTS)
    assert seen.state is not None
    found: dict[str, Asked] = {}
    for path, node in walk(tree):
        if isinstance(node, Step):
            view = seen.views[path]
            known = {"likes": "", "dislikes": "", **INPUTS, **view.outputs}
            before = [(message.type, str(message.text)) for message in view.messages]
            lead = [("system", _filled(node.system, known))] if node.system is not None else []
            found[path] = (*lead, *before, ("human", _filled(node.prompt, known)))
    return found


def _filled(text: Any, known: Mapping[str, Any]) -> str:
    if isinstance(text, str):
        return text
    assert isinstance(text, Template)
    return _PLACE.sub(lambda place: known[place[1]] or text.defaults[place[1]], text.text)


def ran(tree: Node, model: ScriptedModel, runs: Path, form: Form, **more: Any) -> Result:
    """Run a tree with a journal on disk."""
    return run_generation(tree, model=model, inputs=INPUTS, runs=runs, form=form, **more)


def again(
    other: Node, answers: Answered, runs: Path, form: Form, **by_path: str
) -> tuple[list[str], list[str], Result, Result]:
    """Run the pipeline, then another tree that reuses its answers.

    Give the paths that were called again and those that the oracle says, with both runs. What
    the oracle says was asked is what the model was sent, in both of them.
    """
    tree = tree_of("image_prompt")
    first, second = ScriptedModel(default=answers), ScriptedModel(by_path=by_path, default=answers)
    before = ran(tree, first, runs, form)
    after = ran(other, second, runs, form, reuse=before.path_of_run)
    old, new = asked(tree, before.steps), asked(other, after.steps)
    for model, requests in ((first, old), (second, new)):
        for call in model.calls:
            sent = tuple((message.type, str(message.text)) for message in call.messages)
            assert sent == requests[call.path]
    known = set(old.values())
    expected = sorted(path for path, request in new.items() if request not in known)
    called = sorted(call.path for call in second.calls)
    assert called == sorted(step.path for step in after.steps if step.source == "live")
    return called, expected, before, after


def edited(path: str, extra: str = "\n\nOnly nouns.") -> Node:
    """Return the pipeline with one prompt that says more."""
    tree = tree_of("image_prompt")
    step = dict(walk(tree))[path]
    assert isinstance(step, Step)
    prompt = step.prompt
    if isinstance(prompt, Template):
        return with_overrides(tree, {path: {"prompt": replace(prompt, text=prompt.text + extra)}})
    assert isinstance(prompt, str)
    return with_overrides(tree, {path: {"prompt": prompt + extra}})


@pytest.mark.first_case
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("answers", ANSWERS)
@pytest.mark.parametrize("path", [f"{STAGE}/draft", f"{VOICES}/munch", CONSENSUS])
def test_the_calls_made_are_those_whose_request_differs(
    path: str, answers: str, form: Form, tmp_path: Path
) -> None:
    """One prompt of a middle stage is changed: what saw something else is called, nothing else."""
    called, expected, before, after = again(edited(path), ANSWERS[answers], tmp_path, form)
    assert called == expected
    assert path in called
    assert len(before.steps) == len(after.steps) == 42


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("path", "calls"),
    [(f"{STAGE}/draft", 7 + 3 * 7), (f"{VOICES}/munch", 2 + 3 * 7), (CONSENSUS, 1 + 3 * 7)],
)
def test_what_is_before_or_beside_is_not_called(
    path: str, calls: int, form: Form, tmp_path: Path
) -> None:
    """Where every word counts it is what reads or sees the changed answer, and all stages after."""
    called, _, _, after = again(edited(path), every_word_counts, tmp_path, form)
    assert len(called) == calls
    fresh = ran(edited(path), ScriptedModel(default=every_word_counts), tmp_path, form)
    assert (after.text, after.outputs) == (fresh.text, fresh.outputs)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("path", [f"{VOICES}/munch", CONSENSUS])
def test_an_answer_that_comes_out_the_same_ends_it(path: str, form: Form, tmp_path: Path) -> None:
    """The changed step says what it said before: it is called, and nothing behind it."""
    said = ran(tree_of("image_prompt"), ScriptedModel(default=every_word_counts), tmp_path, form)
    same = {step.path: step.response for step in said.steps}[path]
    called, expected, before, after = again(
        edited(path), every_word_counts, tmp_path, form, **{path: same}
    )
    assert called == expected == [path]
    assert after.text == before.text


@pytest.mark.parametrize("form", FORMS)
def test_a_stage_that_comes_out_the_same_ends_it(form: Form, tmp_path: Path) -> None:
    """The stage's inside differs and its outcome does not: its seven calls are made, none after."""
    said = ran(tree_of("image_prompt"), ScriptedModel(default=every_word_counts), tmp_path, form)
    same = {step.path: step.response for step in said.steps}[CONSENSUS]
    called, expected, before, after = again(
        edited(f"{STAGE}/draft"), every_word_counts, tmp_path, form, **{CONSENSUS: same}
    )
    assert called == expected
    assert len(called) == 7
    assert all(path.startswith(f"{STAGE}/") for path in called)
    assert after.text == before.text


def _at(tree: Block, name: str, change: Callable[[Any], Node]) -> Block:
    """Return a block with a change to the child of that name."""
    assert name in [child.name for child in tree.nodes]
    return replace(
        tree, nodes=[change(child) if child.name == name else child for child in tree.nodes]
    )


def _stage(change: Callable[[Any], Node]) -> Block:
    return _at(tree_of("image_prompt"), "section_2b_title", change)


def _enclave(change: Callable[[Any], Node]) -> Block:
    return _stage(lambda stage: _at(stage, "tot_enclave", change))


MOVED: Mapping[str, Callable[[], Block]] = {
    "a stage with another name": lambda: _stage(lambda stage: replace(stage, name="title")),
    "a step with another name": lambda: _stage(
        lambda stage: _at(stage, "draft", lambda step: replace(step, name="first"))
    ),
    "a voice with another name": lambda: _enclave(
        lambda block: _at(block, "munch", lambda step: replace(step, name="edvard"))
    ),
    "voices in another order": lambda: _enclave(
        lambda block: replace(block, nodes=[*reversed(block.nodes[:-1]), block.nodes[-1]])
    ),
    "voices in a row": lambda: _enclave(lambda block: replace(block, parallel=False)),
    "a step in a block of its own": lambda: _stage(
        lambda stage: _at(stage, "draft", lambda step: Block([step], name="drafts"))
    ),
    "a stage in a block of its own": lambda: _stage(lambda stage: Block([stage], name="part_two")),
    "two names swapped": lambda: _enclave(
        lambda block: _at(
            _at(
                _at(block, "munch", lambda step: replace(step, name="x")),
                "hemingway",
                lambda step: replace(step, name="munch"),
            ),
            "x",
            lambda step: replace(step, name="hemingway"),
        )
    ),
}


@pytest.mark.first_case
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("how", MOVED)
def test_what_is_renamed_or_moved_is_not_called(how: str, form: Form, tmp_path: Path) -> None:
    """Under another path, in another order or another block: what is asked is the same."""
    called, expected, before, after = again(MOVED[how](), every_word_counts, tmp_path, form)
    assert called == expected == []
    assert (after.text, after.outputs) == (before.text, before.outputs)
    assert {step.path for step in after.steps} != {step.path for step in before.steps} or (
        how in ("voices in another order", "voices in a row", "two names swapped")
    )


def test_the_oracle_sees_a_change_of_one_sign(tmp_path: Path) -> None:
    """What it compares is text: a full stop more in a prompt is another request."""
    tree = tree_of("image_prompt")
    done = ran(tree, ScriptedModel(default=every_word_counts), tmp_path, "fused")
    old = asked(tree, done.steps)
    new = asked(edited(f"{VOICES}/munch", "."), done.steps)
    assert [path for path in old if old[path] != new[path]] == [f"{VOICES}/munch"]
