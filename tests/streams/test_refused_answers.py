"""Answers that do not fit: failed attempts of their call, on record with all of their text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import pytest
from langchain_core.messages import BaseMessage
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests.provider import client
from tests.streams.blocks import each, mapping

from mergepoint.engine.run_tree import Result
from mergepoint.journal.call_records import CallRecord
from mergepoint.journal.file_journal import FileStore
from mergepoint.journal.recipe_records import failed_calls
from mergepoint.journal.recorded_answers import IN_FLIGHT
from mergepoint.journal.transcript import read_transcript
from mergepoint.streams.block_context import BlockContext
from mergepoint.streams.model_calls import InvalidAnswer
from mergepoint.streams.recipe import Recipe, Stage
from mergepoint.streams.recipe_runs import arun_recipe, run_recipe
from mergepoint.streams.registry import REGISTRY, BlockType, Registry
from mergepoint.streams.thing import Thing
from mergepoint.testing.fakes import Killed, KillingStore, When
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.server import ModelServer, ServerReply
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.leaves import Method
from mergepoint.tree.policy import Policy

PROSE = "The text\nis good."
GOOD = {"score": 70, "feedback": "Shorter."}
WHENS: tuple[When, ...] = get_args(When)
AT = "judged/stage_1/critique/0/call_01"
JUDGED = Recipe("judged", (Stage("critique"),))


def ran(
    answers: list[Any], folder: Path, recipe: Recipe = JUDGED, **options: Any
) -> tuple[Result, ScriptedModel]:
    """Run a recipe for one item on these answers, its journal in the folder."""
    model = ScriptedModel(answers)
    options = {"runs": folder, "run_id": "r1", **options}
    given = None if "resume" in options else ["a"]
    if "resume" in options:
        del options["run_id"]
    return run_recipe(recipe, given, model=model, **options), model


def on_record(folder: Path, name: str = "r1") -> list[CallRecord]:
    """Return the records of the calls of a run that came to an end."""
    records = FileStore(folder).read(name)[1]
    lost = [one for one in records if (one.error or {}).get("type") == IN_FLIGHT]
    return [one for one in records if one.kind == "step" and one not in lost]


def told(records: list[CallRecord]) -> list[tuple[str, int, str, Any]]:
    """Return path, attempt, text and error type of each call."""
    return [
        (
            one.path,
            one.attempt,
            "" if one.message is None else str(one.message.text),
            (one.error or {}).get("type"),
        )
        for one in records
    ]


def test_an_answer_that_does_not_fit_is_a_failed_attempt(tmp_path: Path) -> None:
    """It has the full text and the position; what fits then is the second attempt of the call."""
    done, model = ran([PROSE, GOOD], tmp_path)
    (thing,) = done.things
    assert (thing.props["score"], thing.props["reason"]) == (70, "Shorter.")
    assert [call for entry in thing.history for call in entry.calls] == [AT]
    first, second = on_record(tmp_path)
    assert told([first, second]) == [(AT, 1, PROSE, "AnswerError"), (AT, 2, "", None)]
    assert first.error is not None
    assert first.error["position"] == {"line": 1, "column": 1}
    assert (
        "could not be used: the answer does not fit Judgement" in model.calls[1].messages[-1].text
    )
    assert failed_calls([first, second]) == []
    transcript = read_transcript(tmp_path / "r1" / "transcript.json")
    assert [len(transcript.records), len(transcript.failures)] == [2, 1]  # one is the run's end


@pytest.mark.first_case
@pytest.mark.parametrize("method", [None, "json_schema", "json_mode", "prompt"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "stream"])
def test_the_text_is_kept_by_each_method_with_a_real_client(
    tmp_path: Path, method: Method | None, *, streaming: bool
) -> None:
    """OpenAI's client raises without the text; the record has it."""
    recipe = Recipe("judged", (Stage("critique", method=method, params={"tries": 1}),))
    half = '{"score": 70, "feed'
    for number, (text, position) in enumerate(
        [
            (PROSE, {"line": 1, "column": 1}),
            (half, {"line": 1, "column": len(half)}),
            ('{"score": 70}', {"field": "feedback"}),
            ('{"score": 700, "feedback": "x"}', {"field": "score"}),
        ]
    ):
        with ModelServer([text]) as server:
            model: ChatOpenAI = client(server.url, streaming=streaming)
            name = f"r{number}"
            run_recipe(recipe, ["a"], model=model, runs=tmp_path, run_id=name)
        (record,) = on_record(tmp_path, name)
        assert told([record]) == [(AT, 1, text, "AnswerError")]
        assert record.error is not None
        assert record.error["position"] == position


PARTED = Recipe("parted", (Stage("decompose", params={"most": 1}),))


@pytest.mark.parametrize(
    ("recipe", "bad", "problem"),
    [
        (PARTED, {"parts": ["a", "b"]}, "2 parts, at most 1"),
        (Recipe("one", (Stage("generate"),)), " ", "the model's answer is blank"),
        (
            Recipe(
                "best",
                (
                    Stage("split"),
                    Stage("synthesize", params={"strategy": "choose"}),
                ),
            ),
            {"choice": 9},
            "there is no number 9",
        ),
        (
            Recipe("planned", (Stage("replan", params={"max_stages": 1}),)),
            {"reason": "", "stages": [{"type": "set", "params": {}}] * 2},
            "2 stages; at most 1",
        ),
    ],
    ids=["decompose", "generate", "choose", "replan"],
)
def test_what_a_block_checks_fails_the_attempt(
    recipe: Recipe, bad: Any, problem: str, tmp_path: Path
) -> None:
    """An answer of the right form that cannot be used is no answer either."""
    ran([bad, bad], tmp_path, recipe, registry=_registry())
    records = on_record(tmp_path)
    assert [(one.attempt, one.failed) for one in records] == [(1, True), (2, True)]
    assert len({one.path for one in records}) == 1
    for record in records:
        assert record.error is not None
        assert record.error["message"].startswith(problem)
        assert record.message is not None
        assert record.message.content or record.message.tool_calls


def _registry() -> Registry:
    def twice(thing: Thing, ctx: BlockContext) -> list[Thing]:
        return [ctx.child(thing, number) for number in range(2)]

    return registry(*REGISTRY.all(), each(twice, name="split"))


def registry(*kinds: BlockType[Any]) -> Registry:
    """Return a registry of these blocks."""
    found = Registry()
    for kind in kinds:
        found.add(kind)
    return found


def test_a_resumed_run_pays_for_no_refused_text_again(tmp_path: Path) -> None:
    """Killed at any record, the run goes on behind the attempts that are on record."""
    whole, _ = ran([PROSE, GOOD], tmp_path / "whole")
    for at in (1, 2, 3, 4):  # starts of calls are records too
        for when in WHENS:
            folder = tmp_path / f"{at}{when}"
            store = KillingStore(FileStore(folder), at=at, when=when)
            options: dict[str, Any] = {"runs": store, "run_id": "r1"}
            model = ScriptedModel([PROSE, GOOD])
            with pytest.raises(Killed):
                asyncio.run(arun_recipe(JUDGED, ["a"], model=model, **options))
            known = on_record(folder)
            rest: list[Any] = [PROSE, GOOD][len(known) :]
            done, model = ran(rest, folder, resume="r1")
            assert done.things == whole.things
            assert len(model.calls) == len(rest)
            assert told(on_record(folder)) == told(on_record(tmp_path / "whole"))


def test_a_finished_run_is_gone_on_with_reused_and_replayed_for_nothing(tmp_path: Path) -> None:
    """Refused answers count among what is on record, where they were the last ones too."""
    given: list[list[Any]] = [[PROSE, GOOD], [PROSE, PROSE]]
    for number, answers in enumerate(given):
        folder = tmp_path / str(number)
        first, _ = ran(answers, folder)
        before = told(on_record(folder))
        for way in ("resume", "reuse", "replay"):
            options: dict[str, Any] = {"run_id": way, way: "r1"}
            done, model = ran([], folder, **options)
            assert (done.things, model.calls) == (first.things, []), way
            assert told(on_record(folder, "r1" if way == "resume" else way)) == before


def test_samples_of_one_prompt_reuse_what_each_was_answered(tmp_path: Path) -> None:
    """What was refused at one place is not replaced by what another sample said."""
    recipe = Recipe("many", (Stage("generate", params={"n": 3}),))
    first, _ = ran(["b", " ", "c", "d"], tmp_path, recipe)
    done, model = ran([], tmp_path, recipe, run_id="r2", reuse="r1")
    assert (done.things, model.calls) == (first.things, [])
    assert told(on_record(tmp_path, "r2")) == told(on_record(tmp_path))


def test_an_answer_that_a_changed_check_takes_is_not_asked_for_again(tmp_path: Path) -> None:
    """The refused text is on record, and fits by now."""
    folder, parts = tmp_path, {"parts": ["a", "b"]}
    recipe = Recipe("parted", (Stage("decompose", params={"most": 1, "tries": 1}),))
    prompt = {"prompt": "Give parts of {{ content }}"}
    recipe = Recipe("parted", (Stage("decompose", params={"most": 1, "tries": 1, **prompt}),))
    ran([parts], folder, recipe)
    wider = Recipe("parted", (Stage("decompose", params={"most": 2, "tries": 1, **prompt}),))
    done, model = ran([], folder, wider, run_id="r2", reuse="r1")
    assert [thing.content for thing in done.things] == ["a", "b"]
    assert (model.calls, on_record(folder, "r2")[0].answered) == ([], True)


def test_a_truncated_answer_is_a_failed_attempt_of_the_same_call(tmp_path: Path) -> None:
    """It is asked for again as the second attempt; a replay and a resume find both."""
    cut = Answer("The answ", finish_reason="length")
    recipe = Recipe("one", (Stage("generate"),))
    first, _ = ran([cut, "Whole."], tmp_path, recipe)
    at = "one/stage_1/generate/0/call_01"
    assert told(on_record(tmp_path)) == [
        (at, 1, "The answ", "TruncatedAnswer"),
        (at, 2, "Whole.", None),
    ]
    for way in ("resume", "replay"):
        done, model = ran([], tmp_path, recipe, **{"run_id": way, way: "r1"})
        assert (done.things, model.calls) == (first.things, [])


def test_a_policy_tries_failures_again_and_refused_answers_not(tmp_path: Path) -> None:
    """The block asks with the reason; the attempts of both are counted on."""
    down = ConnectionError("down")
    policy = Policy(retry={"attempts": 3, "wait": 1})  # type: ignore[arg-type]
    recipe = Recipe("judged", (Stage("critique", policy=policy),))
    with FakeClock():
        done, _ = ran([down, PROSE, down, GOOD], tmp_path, recipe)
    assert done.things[0].props["score"] == 70
    assert [(number, error) for _, number, _, error in told(on_record(tmp_path))] == [
        (1, "ConnectionError"),
        (2, "AnswerError"),
        (3, "ConnectionError"),
        (4, None),
    ]


def test_fallbacks_answer_where_an_answer_does_not_fit(tmp_path: Path) -> None:
    """As those of a step: the other model is the next attempt of the call."""
    model = ScriptedModel([PROSE]).with_fallbacks([ScriptedModel([GOOD])])
    done = run_recipe(JUDGED, ["a"], model=model, runs=tmp_path, run_id="r1")
    assert done.things[0].props["score"] == 70
    assert [(one.attempt, one.answered) for one in on_record(tmp_path)] == [(1, False), (2, True)]
    again = run_recipe(JUDGED, None, model=model, runs=tmp_path, resume="r1")
    assert again.things == done.things


class Tone(BaseModel):
    """How a text sounds."""

    tone: str


def asking(schema: Any, *, again: bool = True, check: Any = None) -> Registry:
    """Return a registry with a block that asks twice, for the second time only in need."""

    async def tone(thing: Thing, ctx: BlockContext) -> Thing:
        try:
            answer = await ctx.ask(thing, "Tone?", schema=schema, check=check)
        except InvalidAnswer:
            answer = await ctx.ask(thing, "Tone!", schema=schema, again=again, check=check)
        return thing.plus(tone=answer.value["tone"])

    return registry(mapping(tone, name="tone"))


TONE = Recipe("r", (Stage("tone"),))


@pytest.mark.parametrize("schema", [Tone, Tone.model_json_schema()], ids=["class", "schema"])
@pytest.mark.parametrize("method", [None, "json_mode", "prompt"])
def test_blocks_of_ones_own_ask_again(schema: Any, method: Method | None, tmp_path: Path) -> None:
    """By a class, or a JSON schema; `again` makes it an attempt of the same call."""
    with ModelServer(["So\nso.", ServerReply({"tone": "calm"})]) as server:
        done = run_recipe(
            TONE,
            ["a"],
            model=client(server.url),
            method=method,
            runs=tmp_path,
            run_id="r1",
            registry=asking(schema),
        )
    assert done.things[0].props["tone"] == "calm"
    first, second = on_record(tmp_path)
    assert (first.path, first.attempt, second.attempt) == (second.path, 1, 2)
    assert first.error is not None
    assert (first.error["type"], first.error["position"]) == (
        "AnswerError",
        {"line": 1, "column": 1},
    )


def test_another_question_is_another_call(tmp_path: Path) -> None:
    """Without `again` the call that failed stays a failed one."""
    ran([PROSE, {"tone": "calm"}], tmp_path, TONE, registry=asking(Tone, again=False))
    first, second = on_record(tmp_path)
    assert (first.path, second.path) == ("r/stage_1/tone/0/call_01", "r/stage_1/tone/0/call_02")
    assert failed_calls([first, second]) == [first.path]


def test_a_check_of_ones_own_sees_text_and_value(tmp_path: Path) -> None:
    """What it says is the reason on record."""

    def calm(text: str, value: Any) -> str | None:
        return None if value == {"tone": "calm"} else f"not calm: {value['tone']}"

    answers: list[Any] = [{"tone": "loud"}, {"tone": "calm"}]
    ran(answers, tmp_path, TONE, registry=asking(Tone, check=calm))
    assert on_record(tmp_path)[0].error == {"type": "AnswerError", "message": "not calm: loud"}


def test_things_side_by_side_count_their_own_attempts(tmp_path: Path) -> None:
    """Each call has its own, in whatever order they come."""

    def says(messages: Sequence[BaseMessage]) -> Any:
        return GOOD if "could not be used" in messages[-1].text else PROSE

    wide = Recipe("judged", JUDGED.stages, concurrency=8)
    model = ScriptedModel(default=says)
    run_recipe(wide, list("abcdefgh"), model=model, runs=tmp_path, run_id="r1")
    attempts: dict[str, list[int]] = {}
    for record in on_record(tmp_path):
        attempts.setdefault(record.path, []).append(record.attempt)
    assert len(attempts) == 8
    assert set(map(tuple, attempts.values())) == {(1, 2)}
