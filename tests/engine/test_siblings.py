"""Parallel blocks, on every engine: who sees what, in which order they merge, how they fail."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest
from langchain_core.messages import HumanMessage
from langchain_core.outputs import ChatResult
from tests.engine.engines import Echo, Engine, texts

from mergepoint.engine.callbacks import Recorder
from mergepoint.testing.scripted_model import (
    Answer,
    ScriptedModel,
    assert_isolated,
    assert_not_in_context,
)
from mergepoint.testing.tree_functions import ProviderFailure
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.prompts import Template

ARTISTS = ("hemingway", "munch")


def tot() -> Block:
    """Return two artists side by side, then a consensus that is all that is kept."""
    artists = [
        Step(f"Critique as {name}.", name=name, capture_key=f"{name}.critique") for name in ARTISTS
    ]
    return Block(
        [
            Step("Draft.", name="draft"),
            Block(artists, name="artists", parallel=True),
            Step("Agree.", name="consensus"),
        ],
        name="tot",
        merge="last_response",
        capture_key="text",
    )


def answers() -> ScriptedModel:
    """Return a model that answers each voice with a text of its own."""
    return ScriptedModel(
        by_path={
            "tot/draft": "the draft",
            "tot/artists/hemingway": "shorter sentences",
            "tot/artists/munch": "more dread",
            "tot/consensus": "the revision",
        }
    )


def test_artist_two_does_not_see_artist_one(engine: Engine) -> None:
    """What an artist's model was given holds the draft and nothing of the other artist."""
    model, recorder = answers(), Recorder()
    engine(tot(), model, recorder=recorder)
    assert_not_in_context(model, "tot/artists/munch", "shorter sentences", "Critique as hemingway")
    assert_not_in_context(model, "tot/artists/hemingway", "more dread", "Critique as munch")
    for name in ARTISTS:
        seen = texts(model.seen_at(f"tot/artists/{name}")[0].messages)
        assert seen == ["Draft.", "the draft", f"Critique as {name}."]


def test_the_consensus_sees_both_artists_in_declared_order(engine: Engine) -> None:
    """After the exit of the parallel block everything it kept is there."""
    model = answers()
    engine(tot(), model)
    assert texts(model.seen_at("tot/consensus")[0].messages) == [
        *("Draft.", "the draft"),
        *("Critique as hemingway.", "shorter sentences"),
        *("Critique as munch.", "more dread"),
        "Agree.",
    ]


def test_the_output_is_the_consensus(engine: Engine) -> None:
    """One assistant message leaves the enclave, and it is the consensus."""
    with answers() as model:
        end = engine(tot(), model)
    assert [(one.type, one.text) for one in end.messages] == [("ai", "the revision")]
    assert end.outputs["text"] == "the revision"


def test_captures_of_parallel_children_are_there_after_the_exit(engine: Engine) -> None:
    """Siblings do not see each other's captures, and those after the block see all."""
    seen: dict[str, list[str]] = {}

    def noting(ctx: Any) -> str:
        seen[ctx.path.rpartition("/")[2]] = sorted(ctx.outputs)
        return "Say."

    sides = [Step(noting, name=name, capture_key=name, merge="none") for name in ("b", "a")]
    tree = Block([Block(sides, parallel=True), Step(Template("{{ a }} {{ b }}"), name="after")])
    end = engine(tree, ScriptedModel(default="x"))
    assert seen == {"a": [], "b": []}
    assert end.texts[0] == "x x"
    assert end.outputs == {"a": "x", "b": "x"}


def test_siblings_merge_in_declared_order_however_they_finish(engine: Engine) -> None:
    """The slowest, and the last by alphabet, comes first when it is declared first."""
    tree = Block([Step("Z.", name="zeta"), Step("A.", name="alpha")], parallel=True)
    model = ScriptedModel(
        by_path={"pipeline/zeta": Answer("late", delay=0.005), "pipeline/alpha": "early"}
    )
    assert engine(tree, model).texts == ["Z.", "late", "A.", "early"]


def test_more_than_ten_siblings_keep_their_order(engine: Engine) -> None:
    """The order is that of the declaration, not of positions read as text."""
    tree = Block([Step(f"{n}.", merge="last_response") for n in range(12)], parallel=True)
    model = ScriptedModel(by_prompt={f"{n}.": str(n) for n in range(11, -1, -1)})
    assert engine(tree, model).texts == [str(n) for n in range(12)]


def test_siblings_do_run_side_by_side(engine: Engine) -> None:
    """Each of two calls waits for the other to have started."""
    threads, tasks = threading.Barrier(2, timeout=10), asyncio.Barrier(2)

    class Meeting(Echo):
        def _generate(self, *args: Any, **kwargs: Any) -> ChatResult:
            threads.wait()
            return super()._generate(*args, **kwargs)

        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            async with asyncio.timeout(10):
                await tasks.wait()
            return super()._generate(*args, **kwargs)

    tree = Block([Step("A.", merge="last_response")] * 2, parallel=True)
    assert engine(tree, Meeting()).texts == ["to A.", "to A."]


def failing(*, name: str = "sides") -> Block:
    """Return four siblings of which the second and the fourth fail."""
    return Block(
        [
            Step("A.", name="zero"),
            Step("B.", name="one"),
            Step("C.", name="two"),
            Step("D.", name="a_three"),
        ],
        name=name,
        parallel=True,
    )


def faulty(root: str = "sides") -> ScriptedModel:
    """Return a model that fails for them; the failure that is declared first comes last in time."""
    return ScriptedModel(
        by_path={
            f"{root}/one": Answer(error=ProviderFailure(status=503, body="busy"), delay=0.005),
            f"{root}/a_three": RuntimeError("down"),
        },
        default="x",
    )


def test_the_failure_first_in_declared_order_is_raised(engine: Engine) -> None:
    """Whatever came first in time, the first failed child's error comes out, others are notes."""
    with pytest.raises(ProviderFailure, match="503: busy") as raised:
        engine(failing(), faulty())
    assert raised.value.status == 503
    assert getattr(raised.value, "pipeline_path", "") == "sides/one"
    notes = [note for note in raised.value.__notes__ if note.startswith("also failed")]
    assert notes == ["also failed: sides/a_three: RuntimeError: down"]


def test_all_that_started_are_recorded(engine: Engine) -> None:
    """Siblings of a failure come to their end and are on record, answered or failed."""
    recorder = Recorder()
    with pytest.raises(ProviderFailure):
        engine(failing(), faulty(), recorder=recorder)
    found = {
        record.path: record.error["type"] if record.error else record.response
        for record in recorder.journal.records
    }
    assert found == {
        "sides/zero": "x",
        "sides/one": "ProviderFailure",
        "sides/two": "x",
        "sides/a_three": "RuntimeError",
    }


def test_with_one_at_a_time_none_starts_after_the_first_failure(graph_engine: Engine) -> None:
    """Under max_concurrency=1 the children after a failed one are never paid."""
    recorder, model = Recorder(), faulty()
    with pytest.raises(ProviderFailure) as raised:
        graph_engine(failing(), model, recorder=recorder, limit=1)
    assert [call.path for call in model.calls] == ["sides/zero", "sides/one"]
    assert len(recorder.journal.records) == 2
    assert not [note for note in raised.value.__notes__ if note.startswith("also failed")]


def test_with_a_limit_all_children_run_when_none_fails(graph_engine: Engine) -> None:
    """A limit changes when children run, and nothing else."""
    model = ScriptedModel(by_prompt={"A.": "a", "B.": "b", "C.": "c", "D.": "d"})
    end = graph_engine(failing(), model, limit=2)
    assert end.texts == ["A.", "a", "B.", "b", "C.", "c", "D.", "d"]


def test_a_failure_inside_of_a_nested_sibling_says_where(engine: Engine) -> None:
    """The innermost node of the failed child is named, and its sibling is on record."""
    tree = Block(
        [Block([Step("A."), Step("B.")], name="left"), Step("C.", name="right")], parallel=True
    )
    model = ScriptedModel(by_path={"pipeline/left/step_02": ValueError("no")}, default="x")
    recorder = Recorder()
    with pytest.raises(ValueError, match="no") as raised:
        engine(tree, model, recorder=recorder)
    assert getattr(raised.value, "pipeline_path", "") == "pipeline/left/step_02"
    assert {record.path for record in recorder.journal.records} == {
        "pipeline/left/step_01",
        "pipeline/left/step_02",
        "pipeline/right",
    }


def test_parallel_blocks_nest(engine: Engine) -> None:
    """A parallel block inside of another sees the outer base and folds into it in order."""
    inner = Block([Step("B."), Step("C.")], parallel=True, name="inner")
    tree = Block([inner, Step("D.", name="d")], parallel=True)
    model = ScriptedModel(by_prompt={"B.": "b", "C.": "c", "D.": "d"})
    end = engine(tree, model, messages=[HumanMessage("Hi.", id="g")])
    assert end.texts == ["Hi.", "B.", "b", "C.", "c", "D.", "d"]
    assert all(texts(call.messages)[:-1] == ["Hi."] for call in model.calls)


def test_a_failure_of_an_inner_parallel_block_is_a_failure_of_its_sibling(engine: Engine) -> None:
    """Failures at two levels come out as one error with notes, in declared order."""
    tree = Block([Step("A.", name="a"), failing(name="inner")], parallel=True)
    model = ScriptedModel(
        by_path={"pipeline/a": KeyError("k"), "pipeline/inner/one": RuntimeError("r")}, default="x"
    )
    with pytest.raises(KeyError) as raised:
        engine(tree, model)
    assert "also failed: pipeline/inner/one: RuntimeError: r" in raised.value.__notes__


def test_one_error_that_two_siblings_raise_is_told_once(engine: Engine) -> None:
    """A model that raises one and the same object leaves no note of itself beside itself."""
    error = RuntimeError("down")
    with pytest.raises(RuntimeError) as raised:
        engine(failing(), ScriptedModel(default=error))
    assert raised.value is error
    assert not [note for note in error.__notes__ if note.startswith("also failed")]


def test_siblings_are_isolated_by_what_the_model_was_given(engine: Engine) -> None:
    """No sibling was given what another one answered."""

    class Answered:
        steps: Sequence[Any]

    model, recorder = answers(), Recorder()
    engine(tot(), model, recorder=recorder)
    run = Answered()
    run.steps = recorder.journal.records
    assert_isolated(model, run, "tot/artists/*")


def test_a_parallel_block_of_nothing_is_nothing(engine: Engine) -> None:
    """A parallel block without children leaves the state as it is."""
    assert engine(Block([Block([], parallel=True)]), ScriptedModel([])).messages == []
