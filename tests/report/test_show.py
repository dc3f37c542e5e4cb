"""What a call saw, where it came from, and what became of its answer."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from langchain_core.messages import AIMessage, HumanMessage
from pydantic import BaseModel
from tests.report.runs import ran

import mergepoint as mp
from mergepoint.core.errors import MergepointError
from mergepoint.journal.transcript import read_transcript, write_transcript
from mergepoint.models.pricing import Price
from mergepoint.models.providers import seen_through
from mergepoint.report.call_text import TranscriptIndex, call_view, to_json, to_text
from mergepoint.report.views import AnswerOutcome, Captured, MergePoint, Read
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node
from mergepoint.tree.prompts import Template, reads


class Verdict(BaseModel):
    """A structured answer."""

    good: bool


def article() -> Block:
    """Return a tree with each merge mode, nested, with captures, reads and examples."""
    draft = Step(Template("Write about {{ topic }}."), name="draft", merge="last_response")
    experts = Block(
        [Step("Judge.", name=name, capture_key=f"{name}s_view") for name in ("ann", "bob")],
        name="experts",
        parallel=True,
        merge="none",
    )
    weigh = Step(
        Template("Weigh {{ anns_view }}, {{ tone }}.", defaults={"tone": "calmly"}),
        name="weigh",
        system="Be brief.",
        examples=[("Is it?", "It is.")],
    )
    review = Block(
        [experts, weigh, Step("Sum up.", name="sum")],
        name="review",
        merge="last_response",
        capture_key="review",
    )
    polish = Step(Template("Polish with {{ review }}."), name="polish", merge="none")
    final = Step("Finish.", name="final", merge="last_response")
    return Block([draft, review, polish, final], name="article", inputs=["topic"])


def test_a_call_shows_what_the_model_was_given(tmp_path: Path) -> None:
    """Role and text of every message of every call are those that reached the model, in order."""
    given = [HumanMessage("Hello."), AIMessage("Hi.")]
    run = ran(article(), tmp_path, inputs={"topic": "winter"}, messages=given)
    sight = TranscriptIndex(run.transcript)
    assert set(sight.paths) == set(run.saw)
    for path in sight.paths:
        assert [(seen.role, seen.text) for seen in sight.call(path).seen] == run.saw[path]


def test_every_message_tells_where_it_came_from(tmp_path: Path) -> None:
    """Each is of this call only, given, made elsewhere and let out by exits, or the prompt."""
    run = ran(
        article(), tmp_path, inputs={"topic": "winter"}, messages=[HumanMessage("Hello.", id="x")]
    )
    weigh = call_view(run.transcript, "weigh")
    assert [(seen.origin, seen.path, seen.through) for seen in weigh.seen] == [
        ("system", None, ()),
        ("example", None, ()),
        ("example", None, ()),
        ("given", None, ()),
        ("call", "article/draft", (MergePoint("article/draft", "last_response"),)),
        ("prompt", None, ()),
    ]
    final = call_view(run.transcript, "article/final")
    assert [(seen.path, seen.through) for seen in final.seen if seen.origin == "call"] == [
        ("article/draft", (MergePoint("article/draft", "last_response"),)),
        (
            "article/review/sum",
            (
                MergePoint("article/review/sum", "all_messages"),
                MergePoint("article/review", "last_response"),
            ),
        ),
    ]


def test_messages_that_were_given_are_told_from_own_ones_by_their_place(tmp_path: Path) -> None:
    """A given message that bears the id of a message of this run is still one that was given."""
    run = ran(
        Block([Step("a"), Step("b")]),
        tmp_path,
        messages=[AIMessage("older", id="r1/pipeline/step_01/1")],
    )
    seen = call_view(run.transcript, "step_02").seen
    assert [one.origin for one in seen] == ["given", "call", "call", "prompt"]
    fate = call_view(run.transcript, "step_01").fate
    assert fate is not None
    assert fate.seen_by == ("pipeline/step_02",)


def test_keys_that_a_prompt_read_tell_their_source(tmp_path: Path) -> None:
    """An input, a capture with the node that made it and the step that said it, or a default."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"})
    experts = "article/review/experts"
    assert call_view(run.transcript, "draft").reads == (
        Read(key="topic", source="input", value="winter"),
    )
    assert call_view(run.transcript, "weigh").reads == (
        Read(
            key="anns_view",
            source="capture",
            path=f"{experts}/ann",
            made_by=f"{experts}/ann",
            value=f"from {experts}/ann",
        ),
        Read(key="tone", source="default"),
    )
    assert call_view(run.transcript, "polish").reads == (
        Read(
            key="review",
            source="capture",
            path="article/review",
            made_by="article/review/sum",
            value="from article/review/sum",
        ),
    )


def test_reads_of_functions_and_blank_values(tmp_path: Path) -> None:
    """A declared function reads like a template; a blank input is where a default stood."""
    speak = reads("topic", "tone", defaults={"tone": "calm"})(
        lambda ctx: f"{ctx.read('topic')} {ctx.read('tone')}"
    )
    tree = Block([Step(speak)], inputs=["topic", "tone"])
    run = ran(tree, tmp_path, inputs={"topic": ["a"], "tone": " "})
    assert call_view(run.transcript, "step_01").reads == (
        Read(key="topic", source="input", value=["a"]),
        Read(key="tone", source="default"),
    )


def test_a_read_before_the_capture_is_no_read_of_it(tmp_path: Path) -> None:
    """A call that may do without a key and came before it was captured got its default."""
    may_read = Template("So {{ k }}.", defaults={"k": "far"})
    tree = Block(
        [Step(may_read, name="early"), Step("x", capture_key="k"), Step(may_read, name="late")]
    )
    run = ran(tree, tmp_path)
    assert call_view(run.transcript, "early").reads == (Read(key="k", source="default"),)
    fate = call_view(run.transcript, "step_02").fate
    assert fate is not None
    assert fate.captured == (
        Captured(key="k", path="pipeline/step_02", read_by=("pipeline/late",)),
    )


def test_a_structured_capture_is_read_as_data(tmp_path: Path) -> None:
    """The value of a structured answer is its JSON, from the replayed outline too."""
    judge = Step("Judge.", name="judge", schema=Verdict, capture_key="verdict", merge="none")
    tree = Block([judge, Step(Template("So: {{ verdict }}"), name="so")])
    run = ran(tree, tmp_path, says={"pipeline/judge": '{"good": true}'})
    [read] = call_view(run.transcript, "so").reads
    assert (read.source, read.path, read.value) == ("capture", "pipeline/judge", {"good": True})


FATES = {
    "article/draft": AnswerOutcome(
        passed=(
            MergePoint("article/draft", "last_response"),
            MergePoint("article", "all_messages"),
        ),
        end="kept",
        seen_by=(
            "article/review/experts/ann",
            "article/review/experts/bob",
            "article/review/weigh",
            "article/review/sum",
            "article/polish",
            "article/final",
        ),
    ),
    "article/review/experts/ann": AnswerOutcome(
        passed=(MergePoint("article/review/experts/ann", "all_messages"),),
        end="dropped",
        at=MergePoint("article/review/experts", "none"),
        captured=(
            Captured(
                key="anns_view",
                path="article/review/experts/ann",
                read_by=("article/review/weigh",),
            ),
        ),
    ),
    "article/review/experts/bob": AnswerOutcome(
        passed=(MergePoint("article/review/experts/bob", "all_messages"),),
        end="dropped",
        at=MergePoint("article/review/experts", "none"),
        captured=(Captured(key="bobs_view", path="article/review/experts/bob"),),
    ),
    "article/review/weigh": AnswerOutcome(
        passed=(MergePoint("article/review/weigh", "all_messages"),),
        end="superseded",
        at=MergePoint("article/review", "last_response"),
        by="article/review/sum",
        seen_by=("article/review/sum",),
    ),
    "article/review/sum": AnswerOutcome(
        passed=(
            MergePoint("article/review/sum", "all_messages"),
            MergePoint("article/review", "last_response"),
            MergePoint("article", "all_messages"),
        ),
        end="kept",
        captured=(Captured(key="review", path="article/review", read_by=("article/polish",)),),
        seen_by=("article/polish", "article/final"),
    ),
    "article/polish": AnswerOutcome(
        passed=(), end="dropped", at=MergePoint("article/polish", "none")
    ),
    "article/final": AnswerOutcome(
        passed=(
            MergePoint("article/final", "last_response"),
            MergePoint("article", "all_messages"),
        ),
        end="kept",
    ),
}


@pytest.mark.parametrize("path", FATES)
def test_the_fate_of_an_answer(path: str, tmp_path: Path) -> None:
    """Exits passed, the end, captures with their readers, and the calls that saw it."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"})
    assert call_view(run.transcript, path).fate == FATES[path]
    kept = f"from {path}" in {message.text for message in run.messages}
    assert kept == (FATES[path].end == "kept")


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        (Step("x"), AnswerOutcome(passed=(MergePoint("step_01", "all_messages"),), end="kept")),
        (
            Step("x", merge="none", capture_key="k"),
            AnswerOutcome(
                passed=(),
                end="dropped",
                at=MergePoint("step_01", "none"),
                captured=(Captured(key="k", path="step_01"),),
            ),
        ),
    ],
)
def test_the_fate_of_a_lone_step(tree: Node, expected: AnswerOutcome, tmp_path: Path) -> None:
    """A step without a block has one exit, its own."""
    assert call_view(ran(tree, tmp_path).transcript, "step_01").fate == expected


def test_a_failed_call_shows_what_it_saw(tmp_path: Path) -> None:
    """An answer that was refused has an error, its text, no fate; what it saw is known."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"}, says={"article/review/weigh": " \n"})
    view = call_view(run.transcript, "weigh")
    assert [(seen.role, seen.text) for seen in view.seen] == run.saw["article/review/weigh"]
    assert view.answer is None
    assert view.fate is None
    assert view.unusable == " \n"
    assert view.error is not None
    assert view.error["type"] == "AnswerError"
    assert [read.key for read in view.reads] == ["anns_view", "tone"]


def test_failed_attempts_before_an_answer_are_told(tmp_path: Path) -> None:
    """The view is that of the answer; the errors of earlier attempts go with it."""
    run = ran(Step("x"), tmp_path)
    [record] = run.transcript.records
    error = {"type": "TimeoutError", "message": "too late"}
    failure = dataclasses.replace(record, message=None, response="", error=error)
    view = call_view(dataclasses.replace(run.transcript, failures=(failure,)), "step_01")
    assert view.answer == "from step_01"
    assert view.earlier_errors == (error,)
    text = to_text(view)
    assert "earlier  1 failed attempt" in text
    assert "Failed attempt 1\n  TimeoutError: too late\n" in text


def test_an_answer_that_was_refused_is_shown_whole_with_its_place(tmp_path: Path) -> None:
    """Who wants to know why an attempt failed reads what the model said, and where it is wrong."""
    run = ran(Step("x"), tmp_path)
    [record] = run.transcript.records
    error = {"type": "AnswerError", "message": "no", "position": {"line": 1, "column": 7}}
    said = AIMessage("half of", tool_calls=[{"name": "V", "args": {"a": 1}, "id": "1"}])
    failure = dataclasses.replace(record, message=said, response="", error=error)
    wanted = 'The answer that was refused (line 1, column 7):\n    half of\n    V({"a": 1})'
    transcript = dataclasses.replace(run.transcript, failures=(failure,))
    assert wanted in to_text(call_view(transcript, "step_01"))
    alone = call_view(dataclasses.replace(transcript, records=()), "step_01")
    assert alone.unusable == 'half of\nV({"a": 1})'
    assert wanted in to_text(alone)


def test_an_accepted_truncated_answer_says_so(tmp_path: Path) -> None:
    """The mark of the record is in the view and in its text."""
    run = ran(Step("x"), tmp_path)
    [record] = run.transcript.records
    cut = dataclasses.replace(record, truncated="length")
    view = call_view(dataclasses.replace(run.transcript, records=(cut,)), "step_01")
    assert view.truncated == "length"
    assert "truncated  length: the answer was cut off, and accepted" in to_text(view)


def test_records_that_are_missing_are_said_to_be(tmp_path: Path) -> None:
    """Without the answers before a call nobody knows what it saw, and nothing is guessed."""
    run = ran(Block([Step("a"), Step("b"), Step("c")]), tmp_path)
    first, _, last = run.transcript.records
    torn = dataclasses.replace(run.transcript, records=(first, last))
    with pytest.raises(MergepointError, match=r"pipeline/step_03: .* lacks records"):
        call_view(torn, "step_01")


def test_answers_of_a_failed_run_tell_how_far_they_came(tmp_path: Path) -> None:
    """Exits that were reached are told, and the first that the run did not come to."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"}, says={"article/review/weigh": " \n"})
    draft = call_view(run.transcript, "draft").fate
    assert draft is not None
    assert draft.passed == (MergePoint("article/draft", "last_response"),)
    assert (draft.end, draft.at) == ("unfinished", MergePoint("article", "all_messages"))
    ann = call_view(run.transcript, "ann").fate
    assert ann is not None
    assert (ann.end, ann.at) == ("dropped", MergePoint("article/review/experts", "none"))
    assert ann.captured[0].read_by == ("article/review/weigh",)


def test_siblings_of_a_failed_call_are_shown(tmp_path: Path) -> None:
    """What ran beside a failure is on record and can be looked at; its block was never left."""
    tree = Block([Step("a", name="a"), Step("b", name="b")], parallel=True)
    run = ran(tree, tmp_path, says={"pipeline/a": ""})
    assert "pipeline/a" in run.saw
    for path in run.saw:
        view = call_view(run.transcript, path)
        assert [(seen.role, seen.text) for seen in view.seen] == run.saw[path]
        if view.fate is not None:
            assert view.fate.at == MergePoint("pipeline", "all_messages")


def test_the_sent_form_follows_from_what_is_shown(tmp_path: Path) -> None:
    """With the view "alternate" the model got the shown messages with neighbours joined."""
    tree = Block([Step("a", merge="last_response"), Step("b", merge="last_response"), Step("c")])
    run = ran(tree, tmp_path, view="alternate")
    view = call_view(run.transcript, "step_03")
    assert view.view == "alternate"
    kinds = {"user": HumanMessage, "assistant": AIMessage}
    sent = seen_through("alternate", [kinds[seen.role](seen.text) for seen in view.seen])
    assert len(sent) < len(view.seen) + 1
    assert [message.text for message in sent] == [text for _, text in run.saw[view.path]]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("wiegh", "did you mean article/review/weigh"),
        ("article/review/weihg", "did you mean 'article/review/weigh'"),
        ("nothing like it", "article/review/experts/ann"),
        ("review", "is a block, no call; calls in it: article/review/experts/ann, "),
        ("article/*", "matches 3 calls: article/draft, article/polish, article/final; name one"),
    ],
)
def test_a_path_without_a_call_is_refused_with_what_there_is(
    path: str, said: str, tmp_path: Path
) -> None:
    """The error names near paths, the calls of a block, or all calls."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"})
    with pytest.raises(LookupError) as raised:
        call_view(run.transcript, path)
    assert said in str(raised.value)


def test_a_suffix_that_fits_several_calls_is_refused(tmp_path: Path) -> None:
    """The calls that it fits are listed."""
    run = ran(Block([_scoped(1), _scoped(2)]), tmp_path)
    with pytest.raises(
        LookupError, match=r"matches 2 paths: pipeline/part_1/say, pipeline/part_2/say"
    ):
        call_view(run.transcript, "say")
    assert call_view(run.transcript, "part_2/say").path == "pipeline/part_2/say"


def _scoped(number: int) -> Block:
    return Block([Step("x", name="say")], name=f"part_{number}")


def test_a_step_that_was_not_reached_says_why(tmp_path: Path) -> None:
    """A step of the tree that made no call is told apart from a name that is not there."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"}, says={"article/draft": ""})
    with pytest.raises(LookupError, match=r"polish made no call; the run failed at article/draft"):
        call_view(run.transcript, "polish")
    with pytest.raises(LookupError, match=r"no path matches 'article/review/\*'"):
        call_view(run.transcript, "article/review/*")
    with pytest.raises(LookupError, match="article/review is a block, no call; calls in it: none"):
        call_view(run.transcript, "review")


def test_a_transcript_on_disk_shows_the_same(tmp_path: Path) -> None:
    """Views of a transcript that was written and read again are equal."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"}, messages=[HumanMessage("Hello.")])
    again = read_transcript(write_transcript(run.transcript, tmp_path / "again.json"))
    live, read = TranscriptIndex(run.transcript), TranscriptIndex(again)
    assert [read.call(path) for path in read.paths] == [live.call(path) for path in live.paths]


def test_a_view_is_json(tmp_path: Path) -> None:
    """The JSON holds plain data with everything in it, and survives a round trip."""
    run = ran(article(), tmp_path, inputs={"topic": "winter"})
    data = to_json(call_view(run.transcript, "review/sum"))
    assert json.loads(json.dumps(data)) == data
    assert data["format"] == "mergepoint.call/1"
    assert data["answer"] == "from article/review/sum"
    assert data["usage"]["total_tokens"] == 1_203
    assert data["fate"]["passed"][1] == {"path": "article/review", "mode": "last_response"}
    assert [seen["text"] for seen in data["seen"]] == [
        text for _, text in run.saw["article/review/sum"]
    ]


def test_a_call_shows_what_it_cost() -> None:
    """The cost stands below the tokens; without a price there is none."""
    tree, answer = Block([Step("A.", name="a")], name="t"), Answer("x", usage=(1000, 10))
    for prices, cost in (({"scripted:scripted": Price(1, 2)}, 0.00102), ({}, None)):
        run = mp.run(tree, model=ScriptedModel(default=answer), prices=prices)
        view = call_view(run.load_transcript(), "t/a")
        assert view.cost == cost
        assert ("cost    $0.0010" in to_text(view)) == (cost is not None)


def test_a_reused_answer_is_called_reused(tmp_path: Path) -> None:
    """A view has the word of the progress, and the record keeps its own."""
    tree = Block([Step("A.", name="a")], name="t")
    mp.run(tree, model=ScriptedModel(default="x"), runs=tmp_path, run_id="one")
    again = mp.run(tree, model=ScriptedModel([]), runs=tmp_path, run_id="two", reuse="one")
    view = call_view(again.load_transcript(), "t/a")
    assert view.source == "replayed"
    assert " s, reused" in to_text(view)
