"""What is kept of models inside of functions: on disk, after crashes, for runs that reuse it."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from langchain_core.messages import BaseMessage
from langchain_core.outputs import ChatResult
from tests.engine.engines import ENGINES, Engine
from tests.engine.inner import around, asking, inner, listening, made, model, resumed

from mergepoint import (
    Block,
    Call,
    CallContext,
    ChatRunner,
    Node,
    Recorder,
    ReplayMiss,
    RunContext,
    Step,
    Template,
    read_transcript,
    run_generation,
)
from mergepoint.core.merge import State
from mergepoint.engine.compiler import Form
from mergepoint.engine.interpreter import interpret
from mergepoint.engine.run_tree import TRANSCRIPT
from mergepoint.journal.file_journal import JOURNAL, FileStore, read_journal
from mergepoint.journal.journal_check import check_run
from mergepoint.journal.recorded_answers import ReuseSource
from mergepoint.journal.replay import replay
from mergepoint.journal.transcript import agrees, transcript_of
from mergepoint.report.call_text import to_text
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.testing.cassettes import Cassette
from mergepoint.testing.scripted_model import Answer, ScriptedModel


def reusing(before: Recorder) -> Recorder:
    """Return a recorder of a new run that takes over what another was answered."""
    return listening(ReuseSource(before.journal.records))


# Crashes


class Killed(Exception):
    """The end of the process, as far as a run can tell."""


class Numbering(ScriptedModel):
    """A model whose every answer is another, until it is killed before its next answer."""

    made: Any = None
    last: int = 10**9

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        if len(self.made) >= self.last:
            raise Killed
        prompt = str(messages[-1].text)
        self.made.append(prompt)
        answer = f"{prompt} {self.made.count(prompt)}"
        return ScriptedModel([answer])._generate(messages)

    async def _agenerate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        await asyncio.sleep(0)
        return self._generate(messages)


Rounds = list[list[str]]
ROUNDS = st.lists(st.lists(st.sampled_from("abc"), min_size=1, max_size=4), max_size=4)


def program(rounds: Rounds) -> Any:
    """Return a function that asks round after round, the calls of each at once."""

    async def ask(ctx: CallContext) -> list[list[str]]:
        said = []
        for prompts in rounds:
            found = await asyncio.gather(*(ctx.model().ainvoke(one) for one in prompts))
            said.append(sorted(str(answer.text) for answer in found))
        return said

    return ask


def plain_program(rounds: Rounds) -> Any:
    """Return a function that asks for one after the other."""

    def ask(ctx: CallContext) -> list[list[str]]:
        return [sorted(str(ctx.model().invoke(p).text) for p in prompts) for prompts in rounds]

    return ask


@settings(deadline=None, max_examples=150)
@given(
    rounds=ROUNDS,
    kills=st.lists(st.integers(0, 16), max_size=3),
    engine=st.sampled_from(ENGINES[:2]),
)
def test_whenever_a_function_is_killed_no_call_on_record_is_made_again(
    rounds: Rounds, kills: list[int], engine: Engine
) -> None:
    """Its calls are made once each, and its result is that of a run that was left alone."""
    paid: list[str] = []
    function = program if engine.on_loop else plain_program
    tree = Call(function(rounds), name="f", capture_key="f")
    recorder, end = listening(), None
    for last in [*sorted(kills), 10**9]:
        recorder = resumed(recorder)
        with contextlib.suppress(Killed):
            end = engine(tree, made(Numbering, made=paid, last=last), recorder=recorder)
            break
    assert end is not None
    records = recorder.journal.records
    wanted = Counter(prompt for prompts in rounds for prompt in prompts)
    assert Counter(paid) == wanted
    answers = sorted(one for said in end.outputs["f"] for one in said)
    assert answers == sorted(f"{p} {n + 1}" for p, count in wanted.items() for n in range(count))
    assert not check_samples(records)


def check_samples(records: Sequence[Any]) -> list[Any]:
    """Return the answers on record that have the number of another."""
    keys = [(one.request, one.sample) for one in records if one.kind == "inner" and one.answered]
    return [key for key, count in Counter(keys).items() if count > 1]


def test_a_run_that_failed_in_a_function_is_resumed(tmp_path: Path, form: Form) -> None:
    """Until then the transcript says unfinished at the Call; the first calls are not paid again."""

    def ask(ctx: CallContext) -> str:
        return " ".join(str(ctx.model().invoke(prompt).text) for prompt in ("One?", "Two?"))

    tree = around(ask)
    first = ScriptedModel(by_prompt={"Write": "w", "One?": "1", "Two?": ConnectionError("cut")})
    about: dict[str, Any] = {"runs": tmp_path, "form": form}
    with pytest.raises(ConnectionError):
        run_generation(tree, model=first, ctx=RunContext(run_id="r"), **about)
    header, records = read_journal(tmp_path / "r" / JOURNAL)
    told = transcript_of(header, records)
    assert told.error is not None
    assert (told.error["type"], told.error["path"]) == ("Unfinished", "root/ask")
    assert replay(records, tree, base=State()).missing == ["root/ask"]
    second = ScriptedModel(by_prompt={"Two?": "2", "Go": "g"})
    done = run_generation(tree, model=second, resume="r", **about)
    assert (done.outputs, len(second.calls)) == ({"said": "1 2"}, 2)
    transcript = read_transcript(tmp_path / "r" / TRANSCRIPT)
    assert [one.prompt for one in transcript.inner] == ["One?", "Two?"]
    assert not check_run(tmp_path / "r", journal=JOURNAL, transcript=TRANSCRIPT)


def test_what_a_model_said_is_not_the_result_of_its_function() -> None:
    """Where only the models of a function are on record, there is no state at its end."""

    def fail(ctx: CallContext) -> None:
        ctx.model().invoke("Inner?")
        raise RuntimeError("after all")

    recorder, tree = listening(), Call(fail, name="f", merge="all_messages")
    with pytest.raises(RuntimeError):
        interpret(tree, model=ScriptedModel(["x"]), recorder=recorder)
    assert replay(recorder.journal.records, tree, base=State()).state is None


def test_a_transcript_with_models_inside_agrees_with_its_journal(tmp_path: Path) -> None:
    """Every record of the journal is in it, so it stands for the run."""
    run_generation(around(asking()), model=model("x"), ctx=RunContext(run_id="r"), runs=tmp_path)
    records = read_journal(tmp_path / "r" / JOURNAL)[1]
    assert agrees(read_transcript(tmp_path / "r" / TRANSCRIPT), records)


@pytest.mark.parametrize("way", ["resume", "reuse", "replay"])
def test_a_function_on_record_is_not_run(tmp_path: Path, form: Form, way: str) -> None:
    """Its result is taken, with tools, structured output and streams inside; nothing is asked."""
    ran: list[int] = []

    def ask(ctx: CallContext) -> str:
        ran.append(1)
        return "".join(str(piece.text) for piece in ctx.model().stream("Inner?"))

    tree = around(ask)
    asked: Any = model(Answer("two words"))
    run_generation(tree, model=asked, ctx=RunContext(run_id="r"), runs=tmp_path, form=form)
    again: dict[str, Any] = {way: "r", "runs": tmp_path, "form": form}
    done = run_generation(tree, model=ScriptedModel([]), **again)
    assert (done.outputs, ran) == ({"said": "two words"}, [1])


def test_a_strict_replay_names_the_call_and_not_its_models(tmp_path: Path) -> None:
    """Where a Call is asked otherwise, the difference is to its own record."""
    tree = around(asking())
    run_generation(tree, model=model("yes"), ctx=RunContext(run_id="r"), runs=tmp_path)
    with pytest.raises(ReplayMiss, match="root/ask asks something else") as caught:
        run_generation(
            around(asking(), version="2"), model=ScriptedModel([]), replay="r", runs=tmp_path
        )
    assert "Inner?" not in str(caught.value)


# Reuse


def judging(*prompts: str, name: str = "judge", version: str = "") -> Node:
    """Return a tree in which a function asks, and a step is told what it says."""

    def judge(ctx: CallContext) -> str:
        return " ".join(str(ctx.model().invoke(prompt).text) for prompt in prompts)

    call = Call(judge, name=name, version=version, capture_key="said")
    told = Step(Template("On: {{ said }}"), name="on")
    return Block([Step("Write.", name="write"), call, told], name="root")


def test_a_changed_function_asks_only_what_it_did_not_ask_before(engine: Engine) -> None:
    """A new version runs; of its prompts the new ones are paid, and what then sees another text."""
    before = listening()
    script: Any = {"Write": "w", "A?": "a", "B?": "b", "C?": "c", "On": "on"}
    engine(judging("A?", "B?"), ScriptedModel(by_prompt=script), recorder=before)
    asked, after = ScriptedModel(by_prompt=script), reusing(before)
    end = engine(judging("A?", "C?", version="2"), asked, recorder=after)
    assert end.outputs["said"] == "a c"
    assert [str(call.messages[-1].text) for call in asked.calls] == ["C?", "On: a c"]
    assert [(one.prompt, one.source) for one in inner(after)] == [
        ("A?", "replayed"),
        ("C?", "live"),
    ]


def test_a_function_that_comes_to_the_same_frees_what_follows(engine: Engine) -> None:
    """Early cut-off: another way to the same result, and no step after it is asked again."""
    before = listening()
    script: Any = {"Write": "w", "A?": "same", "B?": "same", "On": "on"}
    engine(judging("A?"), ScriptedModel(by_prompt=script), recorder=before)
    asked, after = ScriptedModel(by_prompt=script), reusing(before)
    engine(judging("B?", version="2"), asked, recorder=after)
    assert [str(call.messages[-1].text) for call in asked.calls] == ["B?"]


def test_a_renamed_function_is_not_paid_again(engine: Engine) -> None:
    """Its result is found by what it was given; and where it has to run, its models' answers."""
    before = listening()
    engine(judging("A?", "B?"), ScriptedModel(default="x"), recorder=before)
    for version in ("", "2"):
        asked, after = ScriptedModel([]), reusing(before)
        end = engine(judging("A?", "B?", name="other", version=version), asked, recorder=after)
        assert end.outputs["said"] == "x x"


def test_answers_inside_of_a_function_that_is_taken_over_are_used(engine: Engine) -> None:
    """Two functions that ask the same keep two answers, though one of them does not run again."""

    def tree(version: str, name: str) -> Node:
        first = Call(asking("Same?"), name="first", capture_key="first")
        second = Call(asking("Same?"), name=name, version=version, capture_key="second")
        return Block([first, second], name="root")

    before = listening()
    engine(tree("", "second"), ScriptedModel(["1", "2"]), recorder=before)
    end = engine(tree("2", "renamed"), ScriptedModel([]), recorder=reusing(before))
    assert end.outputs == {"first": "1", "second": "2"}


def test_more_samples_than_before_are_paid_as_far_as_they_are_new(engine: Engine) -> None:
    """Of five samples of a prompt two are on record; three are asked for."""

    def sampling(count: int) -> Node:
        def ask(ctx: CallContext) -> list[str]:
            return [str(ctx.model().invoke("Same?").text) for _ in range(count)]

        return Call(ask, name="f", version=str(count), capture_key="f")

    before = listening()
    engine(sampling(2), ScriptedModel(["a", "b"]), recorder=before)
    end = engine(sampling(5), ScriptedModel(["c", "d", "e"]), recorder=reusing(before))
    assert end.outputs == {"f": list("abcde")}


# Written down


def test_samples_survive_the_disk(tmp_path: Path) -> None:
    """A record's sample is written where it is not the first, and read again."""

    def ask(ctx: CallContext) -> list[str]:
        return [str(ctx.model().invoke("Same?").text) for _ in range(2)]

    run_generation(
        Call(ask, name="f"),
        model=ScriptedModel(["a", "b"]),
        ctx=RunContext(run_id="r"),
        runs=tmp_path,
    )
    records = read_journal(tmp_path / "r" / JOURNAL)[1]
    assert [(one.response, one.sample) for one in records if one.kind == "inner"] == [
        ("a", 0),
        ("b", 1),
    ]
    lines = (tmp_path / "r" / JOURNAL).read_text().splitlines()
    assert [line.count('"sample":') for line in lines] == [0, 0, 1, 0]


def test_texts_inside_are_redacted(tmp_path: Path) -> None:
    """The hook is given what models inside of functions are asked and say, in both files."""
    store = FileStore(tmp_path, redact=lambda text: text.replace("Ann", "[name]"))
    asked = ScriptedModel(by_prompt={"Who is Ann?": "Ann is Ann."})
    run_generation(
        Call(asking("Who is Ann?"), name="f"), model=asked, ctx=RunContext(run_id="r"), runs=store
    )
    for name in (JOURNAL, TRANSCRIPT):
        assert "Ann" not in (tmp_path / "r" / name).read_text()


def test_calls_of_tools_inside_are_shown() -> None:
    """An answer without text says which tool it calls."""

    def ask(ctx: CallContext) -> None:
        ctx.model().bind_tools([{"name": "look", "description": "Look.", "parameters": {}}]).invoke(
            "Where?"
        )

    ctx = RunContext()
    calling = Answer(tool_calls=[{"name": "look", "args": {}}])

    ChatRunner(ScriptedModel([calling])).run(ctx, Call(ask, name="f"))
    assert "said   [calls look]" in to_text(TranscriptIndex(ctx.transcript()).call("f"))


def test_a_cassette_keeps_a_function_with_its_models(tmp_path: Path) -> None:
    """Recorded once, the function's result is replayed, and neither it nor its model is asked."""
    path = tmp_path / "cassette.jsonl"
    tree = around(asking())
    with Cassette(path) as recording:
        first = recording.run(tree, model=model("yes"))
    with Cassette(path, mode="replay") as playing:
        second = playing.run(tree, model=ScriptedModel([]))
    assert first.outputs == second.outputs == {"said": "yes"}
