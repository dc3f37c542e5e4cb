"""Recorded answers: found by what was asked, never by position."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.core.errors import ReplayMiss
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.fingerprint import Digests, setting_digest
from mergepoint.journal.recorded_answers import (
    AnswerRequest,
    ChainedSource,
    ReplaySource,
    ResumeSource,
    ReuseSource,
    answers_of,
)


def record(path: str, request: str, response: str = "x", *, failed: bool = False) -> CallRecord:
    """Return a record."""
    return CallRecord(
        key=CallKey("r1", "", path),
        prompt=f"prompt of {path}",
        response=response,
        message=AIMessage(response),
        model="m:1",
        request=request,
        error={"type": "ValueError", "message": "no"} if failed else None,
    )


def asked(
    path: str, request: str, *, prompt: str = "prompt", context: int = 0, **more: Any
) -> AnswerRequest:
    """Return a call that is about to be made."""
    return AnswerRequest(path, request, prompt, "m:1", {}, context, **more)


def inside(path: str, request: str, sample: int = 0) -> CallRecord:
    """Return a record of a model inside of a Call; its answer is its sample's number."""
    made = record(path, request, f"{request} {sample}")
    return replace(made, kind="inner", sample=sample)


@pytest.mark.parametrize("kind", [ResumeSource, ReuseSource, ReplaySource])
def test_samples_are_found_by_their_number(kind: Any) -> None:
    """However they are asked for, each is the one that it was."""
    answers = kind([inside("a", "1", sample) for sample in (2, 0, 1)])
    found = [answers.find(asked("a", "1", sample=sample)) for sample in (1, 2, 0)]
    assert [one.response for one in found] == ["1 1", "1 2", "1 0"]


def test_with_a_call_its_models_are_used() -> None:
    """What they said answers nobody else, and that of other Calls does."""
    call = replace(record("a", "f"), kind="call")
    records = [inside("a", "1"), inside("a", "1", 1), call, inside("b", "1")]
    answers = ReuseSource(records)
    assert answers.find(asked("a", "f", kind="call")) is call
    found = [answers.find(asked("c", "1", kind="inner", sample=n)) for n in range(2)]
    assert found == [records[3], None]


def test_records_without_a_request_answer_nothing() -> None:
    """Models that passed no door are recorded without what they were asked."""
    assert ReuseSource([inside("a", "")]).find(asked("a", "", kind="inner")) is None


@pytest.mark.parametrize(
    ("kind", "shown"), [("inner", "-prompt of the model"), ("call", "-prompt of a")]
)
def test_a_strict_miss_is_held_against_its_own_kind(kind: Any, shown: str) -> None:
    """A Call is compared with the Call on record, a model inside with a model inside."""
    model = replace(inside("a", "1"), prompt="prompt of the model")
    answers = ReplaySource([model, replace(record("a", "f"), kind="call")])
    with pytest.raises(ReplayMiss, match=shown):
        answers.find(asked("a", "2", kind=kind, prompt="other"))


def test_a_resumed_call_is_found_by_path_and_request() -> None:
    """The same path with another request is another call."""
    answers = ResumeSource([record("a", "1"), record("b", "2")])
    assert answers.find(asked("a", "1")) is not None
    assert answers.find(asked("a", "2")) is None
    assert answers.find(asked("c", "1")) is None


def test_a_failed_call_answers_nothing() -> None:
    """What failed is tried again."""
    assert ResumeSource([record("a", "1", failed=True)]).find(asked("a", "1")) is None


def test_a_moved_step_finds_its_answer() -> None:
    """A request that was made under another path is not paid again."""
    answers = ReuseSource([record("old/a", "1", "kept")])
    found = answers.find(asked("new/b", "1"))
    assert found is not None
    assert found.response == "kept"


def test_samples_of_one_prompt_stay_samples() -> None:
    """Each record answers one call: the third of two samples is made anew."""
    answers = ReuseSource([record("s/1", "1", "first"), record("s/2", "1", "second")])
    found = [answers.find(asked(path, "1")) for path in ("t/1", "t/2", "t/3")]
    assert [one.response if one else None for one in found] == ["first", "second", None]


def test_a_record_of_the_same_path_comes_first() -> None:
    """A call takes the answer of its own path before that of another."""
    answers = ReuseSource([record("s/1", "1", "first"), record("s/2", "1", "second")])
    found = [answers.find(asked(path, "1")) for path in ("s/2", "s/1")]
    assert [one.response if one else None for one in found] == ["second", "first"]


def test_a_run_that_goes_on_takes_its_own_answers_first() -> None:
    """Then those of the other run; what is its own is known, so that it is not written again."""
    own, other = record("a", "1", "own"), record("b", "2", "other")
    answers = ChainedSource([own], ResumeSource([record("a", "1", "not asked"), other]))
    found = [answers.find(asked("a", "1")), answers.find(asked("b", "2"))]
    assert found == [own, other]
    assert [one is not None and answers.owns(one) for one in found] == [True, False]


def test_what_was_reused_before_a_stop_is_not_given_to_another_call() -> None:
    """Of two samples that were reused one is on record; the other call gets the second."""
    before = [record("s/1", "1", "first"), record("s/2", "1", "second")]
    own = replace(record("t/1", "1", "first"), source="replayed")
    answers = ChainedSource([own], ReuseSource(before))
    found = [answers.find(asked(path, "1")) for path in ("t/2", "t/1", "t/3")]
    assert [one.response if one else None for one in found] == ["second", "first", None]


def test_a_strict_replay_that_goes_on_stays_strict() -> None:
    """What neither run has on record is a miss, and no live call."""
    answers = ChainedSource([record("a", "1")], ReplaySource([record("a", "1"), record("b", "2")]))
    assert answers.find(asked("b", "2")) is not None
    with pytest.raises(ReplayMiss):
        answers.find(asked("b", "3"))


def test_answers_are_of_what_there_is() -> None:
    """A run without records takes those of the other, one without another its own."""
    other = ReplaySource([])
    assert answers_of([], None) is None
    assert answers_of([], other) is other
    assert isinstance(answers_of([record("a", "1")], None), ResumeSource)
    assert isinstance(answers_of([record("a", "1")], other), ChainedSource)


def test_a_strict_miss_shows_the_nearest_request() -> None:
    """A changed prompt is shown as a diff against the recorded one."""
    answers = ReplaySource([record("a/draft", "1")])
    with pytest.raises(ReplayMiss, match=r"-prompt of a/draft\n\+another prompt"):
        answers.find(asked("a/draft", "2", prompt="another prompt"))


def test_a_strict_miss_of_an_unknown_path_names_near_ones() -> None:
    """A path that is not on record is answered with those that are."""
    answers = ReplaySource([record("a/draft", "1")])
    with pytest.raises(ReplayMiss, match="did you mean 'a/draft'"):
        answers.find(asked("a/drafft", "1"))


def test_a_strict_miss_says_that_the_context_differs() -> None:
    """Where all that is new is the same, the conversation before it is not."""
    answers = ReplaySource([record("a", "1")])
    with pytest.raises(ReplayMiss, match="what it saw of the conversation differs"):
        answers.find(asked("a", "2", prompt="prompt of a"))


def test_a_digest_is_of_what_is_said() -> None:
    """Ids and metadata are no part of a request; text, type and order of every message are."""
    digests = Digests()
    setting = setting_digest("m:1", {"temperature": 0.1}, "as_is", None)

    def request(*messages: HumanMessage | AIMessage) -> str:
        return digests.request(setting, messages)

    plain = request(HumanMessage("a"), AIMessage("b"))
    named = request(HumanMessage("a", id="1"), AIMessage("b", response_metadata={"x": 1}))
    assert plain == named
    assert plain != request(AIMessage("b"), HumanMessage("a"))
    assert plain != request(HumanMessage("a"), HumanMessage("b"))
    assert plain != request(HumanMessage("a"), AIMessage("b!"))
    assert plain != request(HumanMessage("a!"), AIMessage("b"))
    assert plain != request(AIMessage("b"))


def test_a_digest_is_of_how_it_is_asked() -> None:
    """Model, parameters, view and schema each make another request."""
    settings = [
        setting_digest("m:1", {}, "as_is", None),
        setting_digest("m:2", {}, "as_is", None),
        setting_digest("m:1", {"temperature": 0}, "as_is", None),
        setting_digest("m:1", {}, "alternate", None),
        setting_digest("m:1", {}, "as_is", {"type": "object"}),
    ]
    assert len(set(settings)) == len(settings)


def test_a_parameter_without_json_counts_by_its_type() -> None:
    """An object among the parameters gives the same digest in every process."""
    assert setting_digest("m", {"a": object()}, "as_is", None) == setting_digest(
        "m", {"a": object()}, "as_is", None
    )
