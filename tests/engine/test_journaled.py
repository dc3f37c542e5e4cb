"""Runs with a journal on disk: resumed, reused, replayed."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from langchain_core.messages import AIMessage
from pydantic import BaseModel

from mergepoint import (
    Block,
    Node,
    ReplayMiss,
    RunContext,
    Step,
    StepError,
    Template,
    TreeError,
    arun,
    run_generation,
    with_overrides,
)
from mergepoint.engine.compiler import Form
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.file_journal import FileJournal, read_journal
from mergepoint.testing.scripted_model import ScriptedModel


class Verdict(BaseModel):
    """A structured answer."""

    score: int


def tree() -> Node:
    """Return a tree with a parallel block, a nested one, and a structured answer."""
    voices = [Step(f"As {who}.", name=who, merge="none", capture_key=who) for who in "ab"]
    return Block(
        [
            Step(Template("Draft {{ topic }}."), name="draft"),
            Block(voices, name="voices", merge="none", parallel=True),
            Block(
                [
                    Step(Template("Join {{ a }} and {{ b }}."), name="join"),
                    Step("Judge.", name="judge", schema=Verdict, merge="none", capture_key="score"),
                ],
                name="end",
                merge="last_response",
            ),
        ],
        inputs=["topic"],
    )


ANSWERS: dict[str, Any] = {
    "pipeline/draft": "draft",
    "pipeline/voices/a": "one",
    "pipeline/voices/b": "two",
    "pipeline/end/join": "joined",
    "pipeline/end/judge": {"score": 7},
}


def model(**by_path: Any) -> ScriptedModel:
    """Return a model that answers by path."""
    return ScriptedModel(by_path={**ANSWERS, **by_path})


def called(found: ScriptedModel) -> list[str]:
    """Return the paths at which a model was called, in the order of the tree."""
    return sorted(call.path for call in found.calls)


@pytest.fixture
def first(tmp_path: Path, form: Form) -> Path:
    """Return the folder of a run that has finished."""
    done = run_generation(tree(), model=model(), inputs={"topic": "rain"}, runs=tmp_path, form=form)
    assert done.path_of_run is not None
    return done.path_of_run


def test_every_call_is_in_the_journal(first: Path) -> None:
    """What the transcript tells at the end, the journal held when it happened."""
    header, records = read_journal(first / "journal.jsonl")
    assert (header.run_id, header.inputs) == (first.name, {"topic": "rain"})
    assert sorted(record.path for record in records) == sorted(ANSWERS)
    assert all(record.request for record in records)


def test_a_failed_run_is_resumed(tmp_path: Path, form: Form) -> None:
    """Calls that are on record are not made again, and the run ends as if it had not failed."""
    failing = model(**{"pipeline/end/join": TimeoutError("slow")})
    ctx = RunContext(run_id="r1")
    given = {"topic": "rain"}
    with pytest.raises(TimeoutError):
        run_generation(tree(), model=failing, inputs=given, ctx=ctx, runs=tmp_path, form=form)
    again = model()
    done = run_generation(tree(), model=again, runs=tmp_path, resume="r1", form=form)
    assert called(again) == ["pipeline/end/join", "pipeline/end/judge"]
    assert done.outputs == {"a": "one", "b": "two", "score": {"score": 7}}
    assert done.messages[0].id == "r1/pipeline/draft/0"
    whole = run_generation(tree(), model=model(), inputs=given, runs=tmp_path, form=form)
    assert [str(m.text) for m in done.messages] == [str(m.text) for m in whole.messages]
    assert [step.path for step in done.steps] == [step.path for step in whole.steps]


def test_a_finished_run_is_resumed_without_a_call(first: Path) -> None:
    """To resume what has ended costs nothing and gives the same."""
    idle = model()
    done = run_generation(tree(), model=idle, resume=first)
    assert (called(idle), done.text) == ([], "joined")
    assert len(read_journal(first / "journal.jsonl")[1]) == 5


def test_a_changed_tree_is_not_resumed(first: Path) -> None:
    """The paths that differ are named, with the way out; the journal stays free to be resumed."""
    other = with_overrides(tree(), {"end/join": {"prompt": "Other."}, "draft": {"temperature": 1}})
    with pytest.raises(TreeError, match="--reuse") as raised:
        run_generation(other, model=model(), resume=first)
    assert [fault.path for fault in raised.value.faults] == [
        "pipeline/draft",
        "pipeline/end/join",
    ]
    assert run_generation(tree(), model=model(), resume=first).text == "joined"


def test_a_changed_prompt_costs_its_stage(first: Path, tmp_path: Path) -> None:
    """Only calls that ask something else are made; here all that is behind the changed step."""
    other = with_overrides(tree(), {"end/join": {"prompt": "Join them."}})
    paid = model(**{"pipeline/end/join": "joined otherwise"})
    done = run_generation(other, model=paid, inputs={"topic": "rain"}, runs=tmp_path, reuse=first)
    assert called(paid) == ["pipeline/end/join", "pipeline/end/judge"]
    assert [step.source for step in done.steps] == ["replayed"] * 3 + ["live"] * 2


def test_the_same_answer_frees_what_follows(first: Path, tmp_path: Path) -> None:
    """A changed step inside of a last_response block that answers the same costs one call."""
    stages = Block(
        [
            Block([Step("Think.", name="think"), Step("Say.", name="say")], merge="last_response"),
            Step("Go on.", name="on"),
        ]
    )
    answers = {
        "pipeline/block_01/think": "hm",
        "pipeline/block_01/say": "yes",
        "pipeline/on": "and so on",
    }
    before = run_generation(stages, model=ScriptedModel(by_path=answers), runs=tmp_path)
    other = with_overrides(stages, {"say": {"prompt": "Speak."}})
    paid = ScriptedModel(by_path=answers)
    run_generation(other, model=paid, runs=tmp_path, reuse=before.path_of_run)
    assert called(paid) == ["pipeline/block_01/say"]


def test_a_renamed_step_costs_nothing(tmp_path: Path, form: Form) -> None:
    """A request that is the same under another path is on record already."""
    before = run_generation(
        Block([Step("A.", name="one"), Step("B.")]),
        model=ScriptedModel(["x", "y"]),
        runs=tmp_path,
        form=form,
    )
    idle = ScriptedModel([])
    done = run_generation(
        Block([Step("A.", name="other"), Step("B.", name="last")]),
        model=idle,
        runs=tmp_path,
        reuse=before.path_of_run,
        form=form,
    )
    assert (idle.calls, done.text) == ([], "y")


def test_a_run_is_replayed_strictly(first: Path, tmp_path: Path, form: Form) -> None:
    """Every answer comes from the record, in the same state and under the same paths."""
    idle = ScriptedModel([])
    done = run_generation(
        tree(), model=idle, inputs={"topic": "rain"}, runs=tmp_path, replay=first, form=form
    )
    assert idle.calls == []
    assert done.text == "joined"
    assert done.outputs["score"] == {"score": 7}
    assert {step.source for step in done.steps} == {"replayed"}


def test_a_strict_miss_names_path_and_difference(first: Path, tmp_path: Path) -> None:
    """A replay with another input fails at the first call that asks something else."""
    with pytest.raises(ReplayMiss, match=r"-Draft rain\.\n\+Draft snow\.") as raised:
        run_generation(tree(), model=model(), inputs={"topic": "snow"}, runs=tmp_path, replay=first)
    assert raised.value.pipeline_path == "pipeline/draft"  # type: ignore[attr-defined]


def test_a_replay_streams_one_chunk(first: Path, tmp_path: Path) -> None:
    """A stream of a recorded answer, structured ones too, gives it whole."""
    from mergepoint import ChatRunner, Recorder
    from mergepoint.journal.recorded_answers import ReplaySource

    records = read_journal(first / "journal.jsonl")[1]
    ctx = RunContext(inputs={"topic": "rain"}, recorder=Recorder(answers=ReplaySource(records)))
    events = list(ChatRunner(ScriptedModel([])).events(ctx, tree()))
    assert ("token", "joined") in [(event.kind, event.text) for event in events]
    assert ctx.outputs["score"] == {"score": 7}


def test_async_runs_are_journaled_too(tmp_path: Path) -> None:
    """The same on an event loop: fails, and goes on."""
    failing = model(**{"pipeline/voices/b": TimeoutError("slow")})
    ctx = RunContext(run_id="r1", inputs={"topic": "rain"})
    with pytest.raises(TimeoutError):
        asyncio.run(arun(tree(), model=failing, ctx=ctx, runs=tmp_path))
    again = model()
    done = asyncio.run(arun(tree(), model=again, runs=tmp_path, resume="r1"))
    assert "pipeline/voices/a" not in called(again)
    assert done.text == "joined"


def test_two_writers_of_one_run(first: Path) -> None:
    """A run that is being written is not resumed beside it."""
    with FileJournal.open(first / "journal.jsonl"), pytest.raises(JournalError, match="being"):
        run_generation(tree(), model=model(), resume=first)


def test_the_ways_exclude_each_other(first: Path) -> None:
    """A run is resumed, reused or replayed, and a resumed one has its inputs."""
    with pytest.raises(StepError, match="exclude"):
        run_generation(tree(), model=model(), resume=first, reuse=first)
    with pytest.raises(StepError, match="has its inputs"):
        run_generation(tree(), model=model(), resume=first, inputs={"topic": "x"})


def test_two_turns_of_one_context_have_a_journal_each(tmp_path: Path) -> None:
    """A context that runs again keeps the records of both turns."""
    ctx = RunContext(run_id="r1")
    for _ in range(2):
        run_generation(Block([Step("A.")]), model=ScriptedModel(["x"]), ctx=ctx, runs=tmp_path)
    assert [step.key.run for step in ctx.steps] == ["r1", "r1.2"]
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["r1", "r1.2"]


def test_what_json_does_not_hold_costs_no_record(tmp_path: Path) -> None:
    """Metadata and parameters that JSON does not hold are written in another form."""
    odd = AIMessage("x", response_metadata={"logprobs": [float("-inf")], 1: object()})
    step = Step("A.", params={"logit_bias": {50256: -100}})
    done = run_generation(Block([step]), model=ScriptedModel([odd]), runs=tmp_path)
    assert done.path_of_run is not None
    header, records = read_journal(done.path_of_run / "journal.jsonl")
    assert header.run_id == done.path_of_run.name
    assert [record.response for record in records] == ["x"]
    assert dict(records[0].params) == {"logit_bias": {"50256": -100}}
