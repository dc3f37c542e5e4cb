"""The transcript: a run as JSON, read back as it was, written whole or not at all."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import BaseModel

from mergepoint.core.errors import MergepointError
from mergepoint.engine.context import RunContext
from mergepoint.engine.runner import ChatRunner
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.checked_lines import JournalError
from mergepoint.journal.transcript import (
    FORMAT,
    NOTICE,
    ContextSaving,
    Transcript,
    count_words,
    read_transcript,
    write_transcript,
)
from mergepoint.patterns import enclave
from mergepoint.testing.random_trees import Case, cases
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.testing.tree_functions import TableModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block


class Plan(BaseModel):
    """A plan."""

    steps: list[str]


def rich() -> Transcript:
    """Return the transcript of a run that holds something of everything."""
    tree = Block(
        [
            Step("A.", system="S.", examples=[("q", "a")], temperature=0.5, params={"stop": ["x"]}),
            Step("P.", schema=Plan, capture_key="plan", merge="none"),
            Block([Step("B.", name="ö"), Step("C.")], parallel=True, merge="last_response"),
            Step(lambda ctx: [{"type": "image_url", "image_url": {"url": "data:,x"}}]),
        ],
        inputs=[("topic", "cats")],
    )
    model = ScriptedModel(
        [
            [{"type": "reasoning", "reasoning": "hm"}, {"type": "text", "text": "one"}],
            {"steps": ["a"]},
            AIMessage("two", tool_calls=[{"name": "f", "args": {"n": 1}, "id": "1"}]),
            "three",
            TimeoutError("no"),
        ]
    )
    ctx = RunContext(messages=[HumanMessage("Hi.", id="g")], run_id="r", seed=3)
    with pytest.raises(TimeoutError):
        ChatRunner(model).run(ctx, tree)
    return ctx.transcript()


def test_a_transcript_comes_back_from_its_json() -> None:
    """from_json(to_json) is the transcript itself, through text too."""
    transcript = rich()
    data = json.loads(json.dumps(transcript.to_json()))
    assert Transcript.from_json(data) == transcript
    assert Transcript.from_json(data).to_json() == transcript.to_json()


@given(case=cases())
@settings(max_examples=40, deadline=None, derandomize=True, database=None)
def test_any_transcript_comes_back_from_its_json(case: Case) -> None:
    """Random runs, failing ones too, are read back as they were written."""
    ctx = RunContext(messages=list(case.messages), inputs=dict(case.inputs))
    with suppress(Exception):  # failing trees are part of the law
        ChatRunner(TableModel(table=case.answers), form="fused").run(ctx, case.tree)
    transcript = ctx.transcript()
    assert Transcript.from_json(json.loads(json.dumps(transcript.to_json()))) == transcript


def test_a_transcript_says_of_each_step_what_the_contract_names() -> None:
    """Index, path, name, prompt, response, params, model, times, usage, size and source."""
    step = rich().to_json()["steps"][0]
    assert {
        *("index", "path", "name", "prompt", "response", "params", "model", "created_at"),
        *("usage", "context", "attempts", "source"),
    } <= set(step)
    assert (step["index"], step["path"], step["name"]) == (
        0,
        "pipeline/step_01",
        "step_01",
    )
    assert step["context"] == {"messages": 1, "words": 5}
    assert (step["source"], step["attempts"]) == ("live", 1)
    assert step["params"] == {"temperature": 0.5, "stop": ["x"]}
    assert datetime.fromisoformat(step["created_at"]).tzinfo is not None
    assert step["seconds"] >= 0


def test_a_transcript_lists_answers_in_tree_order_and_failures_apart() -> None:
    """Steps hold answered calls only."""
    transcript = rich()
    assert [record.path for record in transcript.records] == [
        *("pipeline/step_01", "pipeline/step_02"),
        *("pipeline/block_03/ö", "pipeline/block_03/step_02"),
    ]
    assert [record.path for record in transcript.failures] == ["pipeline/step_04"]
    assert transcript.error is not None
    assert transcript.error["path"] == "pipeline/step_04"


def test_usage_is_the_sum_of_what_providers_counted() -> None:
    """A call without counts adds nothing."""
    records = [
        CallRecord(key=CallKey("r", "", "pipeline/step_01"), prompt="A.", message=AIMessage("x")),
        CallRecord(
            key=CallKey("r", "", "pipeline/step_02"),
            prompt="B.",
            message=AIMessage(
                "x", usage_metadata={"input_tokens": 2, "output_tokens": 3, "total_tokens": 5}
            ),
        ),
    ]
    transcript = Transcript.of(records, Block([Step("A."), Step("B.")]), run_id="r", at="pipeline")
    assert transcript.usage == {
        "input_tokens": 2,
        "output_tokens": 3,
        "total_tokens": 5,
        "cost": None,
    }


def test_a_transcript_holds_the_calls_of_its_run_alone() -> None:
    """Records of another run, and of a host's own calls, are left out."""
    records = [
        CallRecord(key=CallKey(run, "", "step_01"), prompt="A.", response=run)
        for run in ("r", "other", "")
    ]
    transcript = Transcript.of(records, Step("A."), run_id="r", at="step_01")
    assert [record.response for record in transcript.records] == ["r"]


def test_an_answer_of_no_language_model_is_labelled() -> None:
    """A transcript says plainly where an answer came from something else."""
    answer = AIMessage("x", response_metadata={"not_a_language_model": True})
    ctx = RunContext()
    ChatRunner(ScriptedModel([answer, "y"])).run(ctx, Block([Step("A."), Step("B.")]))
    transcript = ctx.transcript()
    data = transcript.to_json()
    assert transcript.offline
    assert data["notice"] == NOTICE
    assert [step["not_a_language_model"] for step in data["steps"]] == [True, False]


def test_a_transcript_of_language_models_has_no_notice() -> None:
    """Without such an answer nothing is said."""
    assert rich().to_json()["notice"] is None


def test_words_are_compared_with_one_list_of_answers() -> None:
    """`words_shared` is a list to which each step adds its answer, those apart to a key."""
    tree = Block([Step("a b", merge="none"), Step("c", merge="last_response"), Step("d")])
    ctx = RunContext(messages=[HumanMessage("hi")])
    ChatRunner(ScriptedModel(["x y z", "u v", "w"])).run(ctx, tree)
    transcript = ctx.transcript()
    assert dict(transcript.words_by_path) == {
        "pipeline/step_01": 3,
        "pipeline/step_02": 2,
        "pipeline/step_03": 4,
    }
    assert transcript.words_sent == 3 + 2 + 4
    assert transcript.words_shared == (1 + 2) + (1 + 1) + (1 + 2 + 1)


def test_critics_beside_each_other_are_compared_with_critics_who_do_not_see_each_other() -> None:
    """In the list that is compared with, parallel steps see what came before them, and no other."""
    pair = Block([Step("p"), Step("q q")], name="pair", parallel=True)
    apart = Block([Step("r"), Step("s")], name="apart", merge="none")
    tree = Block([Step("a"), pair, apart, Step("z")])
    ctx = RunContext()
    answers = ["1", "2 2", "3 3 3", "4 4 4 4", "5", "6"]
    ChatRunner(ScriptedModel(answers)).run(ctx, tree)
    first, both = 1, 1 + 2 + 3
    seen = [0, first, first, both, both + 4, both]
    assert ctx.transcript().words_shared == sum(seen) + (1 + 1 + 2 + 1 + 1 + 1)


def test_the_canonical_pipeline_sends_what_a_careful_graph_sends() -> None:
    """Critics with `merge="none"` cost what they cost by hand: the saving is not theirs."""
    tree = Block([Step("draft"), enclave("e")], merge="last_response")
    ctx = RunContext()
    ChatRunner(ScriptedModel(default="one two three")).run(ctx, tree)
    transcript = ctx.transcript()
    prompts = sum(count_words(record.prompt) for record in transcript.records)
    assert transcript.words_shared == prompts + 6 * 3  # five critics and a consensus see the draft
    assert transcript.words_sent == transcript.words_shared + 6 * 1  # and its prompt, of a word


def test_words_are_those_of_the_text() -> None:
    """Words go by white space, and images hold none."""
    assert count_words(" one\ntwo\t three ") == 3
    blocks: list[Any] = ["a b", {"type": "text", "text": "c"}, {"type": "image_url", "url": "d e"}]
    assert count_words(blocks) == 3
    nothing: list[Any] = [{"type": "text", "text": None}]
    assert count_words(nothing) == 0


def test_words_of_no_calls_are_none() -> None:
    """A run without answers sent nothing."""
    transcript = Transcript.of([], Step("A."), run_id="r", at="step_01")
    assert ContextSaving.of([], transcript.replay(), [], Step("A."), "step_01") == ContextSaving(
        0, 0, {}
    )


def test_a_transcript_is_written_whole(tmp_path: Path) -> None:
    """The file holds the JSON, and nothing else is left beside it; folders are made."""
    path = write_transcript(rich(), tmp_path / "deep" / "down" / "t.json")
    assert json.loads(path.read_text(encoding="utf-8"))["format"] == FORMAT
    assert list(path.parent.iterdir()) == [path]
    assert read_transcript(path).to_json() == json.loads(path.read_text(encoding="utf-8"))


def test_a_transcript_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    """When writing fails the file is as it was, and no half of a new one lies around."""
    path = tmp_path / "t.json"
    write_transcript(rich(), path)
    before = path.read_bytes()
    broken = Transcript.of(
        [], Step("A."), run_id="r", at="step_01", inputs={"self": _holds_itself()}
    )
    with pytest.raises((ValueError, RecursionError)):
        write_transcript(broken, path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def _holds_itself() -> list[Any]:
    value: list[Any] = []
    value.append(value)
    return value


def test_a_transcript_goes_over_the_old_one_only_when_it_can(tmp_path: Path) -> None:
    """Where the place is taken by a folder the error comes out and nothing is left behind."""
    (tmp_path / "t.json").mkdir()
    with pytest.raises(JournalError, match="Is a directory"):
        write_transcript(rich(), tmp_path / "t.json")
    assert [one.name for one in tmp_path.iterdir()] == ["t.json"]


def test_values_without_a_json_form_are_written_as_text(tmp_path: Path) -> None:
    """An object among the inputs does not cost the transcript."""
    when = datetime(2026, 1, 1, tzinfo=UTC)
    transcript = Transcript.of([], Step("A."), run_id="r", at="step_01", inputs={"when": when})
    assert read_transcript(write_transcript(transcript, tmp_path / "t.json")).inputs == {
        "when": str(when)
    }


def test_half_of_a_surrogate_pair_is_replaced(tmp_path: Path) -> None:
    """An answer that no file could hold is cleaned, and its record says so."""
    ctx = RunContext()
    ChatRunner(ScriptedModel(["half \ud83d"])).run(ctx, Step("A."))
    path = write_transcript(ctx.transcript(), tmp_path / "t.json")
    (record,) = read_transcript(path).records
    assert record.response == "half \ufffd"
    assert record.cleaned


@pytest.mark.parametrize(
    "text",
    [
        *("", "no json", "[]", "{}", '"text"', '{"format": "other/1"}', "null"),
        json.dumps({"format": FORMAT}),
        json.dumps({**rich().to_json(), "steps": [{}]}),
        json.dumps({**rich().to_json(), "words": None}),
        json.dumps({**rich().to_json(), "messages": [{"type": "nothing"}]}),
    ],
    ids=[
        *("blank", "text", "list", "empty", "string", "format", "null", "bare", "steps", "words"),
        "messages",
    ],
)
def test_a_file_that_holds_no_transcript_is_an_error_with_its_path(
    text: str, tmp_path: Path
) -> None:
    """Whatever is in the file, the error says which file."""
    path = tmp_path / "t.json"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(MergepointError, match=r"t\.json holds no transcript"):
        read_transcript(path)


def test_bytes_that_are_no_text_are_an_error_with_the_path(tmp_path: Path) -> None:
    """A file that is not UTF-8 is told like any other."""
    path = tmp_path / "t.json"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MergepointError, match=r"t\.json holds no transcript"):
        read_transcript(path)


def test_a_file_that_is_missing_is_an_error_with_its_path(tmp_path: Path) -> None:
    """A missing file is named."""
    with pytest.raises(MergepointError, match="No such file"):
        read_transcript(tmp_path / "none.json")


messages = st.lists(
    st.builds(HumanMessage, st.text(max_size=5), id=st.text("ab", min_size=1, max_size=3))
    | st.builds(AIMessage, st.text(max_size=5), id=st.text("cd", min_size=1, max_size=3)),
    max_size=3,
)


@given(base=messages, seed=st.integers(0, 99), text=st.text(max_size=9))
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
def test_any_base_and_text_come_back(base: list[BaseMessage], seed: int, text: str) -> None:
    """Whatever the conversation held, the transcript gives it back."""
    record = CallRecord(key=CallKey("r", "h", "step_01"), prompt=text, response=text)
    transcript = Transcript.of(
        [record], Step("A."), run_id="r", at="step_01", base=base, seed=seed, text=text
    )
    assert Transcript.from_json(json.loads(json.dumps(transcript.to_json()))) == transcript
