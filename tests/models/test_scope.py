"""Scopes: calls that nobody tells the door of beforehand, as functions and stages make them."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.outputs import ChatResult
from pydantic import BaseModel

from mergepoint.core.errors import BudgetExceeded, CallTimeout, StepError
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import RecordedAnswers, ReplaySource, ResumeSource
from mergepoint.journal.stores import Journal, MemoryJournal
from mergepoint.models.budget import BudgetLedger
from mergepoint.models.identity import declared
from mergepoint.models.instrument import SCOPED, instrument, instrument_in_scope
from mergepoint.models.scope import SCOPE, Samples, Scope, ScopedModelCall
from mergepoint.models.timeouts import GRACE, AttemptTracker, TimeLimits, stop_signal
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.testing.simulated_time import FakeClock
from mergepoint.tree.policy import Budget, Policy, Retry


class Kept(MemoryJournal):
    """A journal in memory whose records are looked up."""

    keyed = True


@dataclass
class Keeper:
    """Who keeps records and knows answers, without a run around."""

    journal: Journal = field(default_factory=Kept)
    answers: RecordedAnswers | None = None
    digests: Digests = field(default_factory=Digests)

    @property
    def told(self) -> list[tuple[str, int, str]]:
        """Return path, sample and answer of each record."""
        return [(one.key.full_path, one.sample, one.response) for one in self.journal.records]


def key(path: str) -> CallKey:
    """Return the key of a path."""
    return CallKey("r1", "", path)


def scope(path: str = "stage/0.2", **about: Any) -> Scope:
    """Return a scope."""
    return Scope(key(path), **about)


def test_one_model_serves_many_scopes() -> None:
    """Each item of a stage has its own scope around it; calls side by side go to their own."""
    keeper = Keeper()
    model = instrument_in_scope(
        scope("stage", keepers=[keeper]), ScriptedModel(default=lambda m: str(m[-1].text))
    )

    async def item(lineage: str) -> None:
        async with scope(f"stage/{lineage}", keepers=[keeper]):
            await asyncio.gather(*(model.ainvoke(f"{lineage} {n}") for n in range(3)))

    async def work() -> None:
        await asyncio.gather(*(item(lineage) for lineage in ("0", "1", "1.4")))

    asyncio.run(work())
    assert sorted(keeper.told) == [
        (f"stage/{lineage}", 0, f"{lineage} {n}") for lineage in ("0", "1", "1.4") for n in range(3)
    ]
    assert SCOPE.get() is None


def test_calls_are_found_by_path_request_and_sample_and_never_by_order() -> None:
    """Items in another order, and samples at other times, are given their own answers."""
    before = Keeper()
    model = ScriptedModel(["a0", "b0", "a1", "x0"])
    with scope("s/0", keepers=[before]) as one:
        for prompt in ("A", "B", "A"):
            instrument_in_scope(one, model).invoke(prompt)
    with scope("s/1", keepers=[before]) as one:
        instrument_in_scope(one, model).invoke("A")
    after = Keeper(answers=ReplaySource(before.journal.records))
    said: dict[str, list[str]] = {}
    for path, prompts in (("s/1", "A"), ("s/0", "AAB")):
        with scope(path, keepers=[after]) as one:
            again = instrument_in_scope(one, ScriptedModel([]))
            said[path] = [str(again.invoke(prompt).text) for prompt in prompts]
    assert said == {"s/0": ["a0", "a1", "b0"], "s/1": ["x0"]}


def test_who_knows_the_sample_says_so() -> None:
    """A scope of a single call, named by whoever asks, has the sample that it is given."""
    keeper = Keeper()

    async def ask(number: int, sample: int, prompt: str) -> str:
        samples = Samples(first=sample)
        async with scope(f"stage/0.2/{number}", keepers=[keeper], samples=samples) as one:
            return str((await instrument_in_scope(one, model).ainvoke(prompt)).text)

    async def work() -> list[str]:
        return list(await asyncio.gather(*(ask(0, sample, "Same.") for sample in (2, 0, 1))))

    model = ScriptedModel(["c", "a", "b"])
    assert asyncio.run(work()) == ["c", "a", "b"]
    keeper.answers = ReplaySource(keeper.journal.records)
    model = ScriptedModel([])
    assert asyncio.run(work()) == ["c", "a", "b"]
    assert sorted(keeper.told)[::2] == [
        ("stage/0.2/0", 0, "a"),
        ("stage/0.2/0", 1, "b"),
        ("stage/0.2/0", 2, "c"),
    ]


def test_a_scope_inside_of_another_is_the_one_that_counts() -> None:
    """When it ends, the one around it is there again."""
    keeper = Keeper()
    with scope("outer", keepers=[keeper]) as outer:
        model = instrument_in_scope(outer, ScriptedModel(default="x"))
        with scope("inner", keepers=[keeper]):
            model.invoke("1")
        model.invoke("2")
    assert [path for path, _, _ in keeper.told] == ["inner", "outer"]


def test_a_model_that_no_scope_has_given_is_as_it_was() -> None:
    """Neither a bare model nor one behind a step's door is recorded by a scope that is around."""
    keeper, bare = Keeper(), ScriptedModel(default="x")
    with scope(keepers=[keeper]):
        bare.invoke("1")
        instrument(bare).invoke("2")
    assert keeper.told == []


def test_copies_of_a_model_keep_its_scope() -> None:
    """Copies, deep ones too, pass the same door; the model that was given stays as it was."""
    keeper, bare = Keeper(), ScriptedModel(default="x")
    given = instrument_in_scope(scope(keepers=[keeper]), bare)
    for one in (copy.copy(given), copy.deepcopy(given), given.model_copy()):
        one.invoke("A")
    assert [sample for _, sample, _ in keeper.told] == [0, 1, 2]
    assert type(bare) is ScriptedModel
    assert SCOPED not in (bare.metadata or {})


def test_what_an_execution_was_answered_is_given_to_it_again() -> None:
    """With its samples it finds what it asked; what asks more often is asked anew."""
    keeper, samples = Keeper(journal=MemoryJournal()), Samples()
    model = ScriptedModel(["a", "b", "c"])
    said = []
    for _ in range(2):
        with scope(keepers=[keeper], samples=samples) as one:
            given = instrument_in_scope(one, model)
            said.append([str(given.invoke("Same.").text) for _ in range(2)])
        samples.again()
    with scope(keepers=[keeper], samples=samples) as one:
        given = instrument_in_scope(one, model)
        said.append([str(given.invoke("Same.").text) for _ in range(3)])
    assert said == [["a", "b"], ["a", "b"], ["a", "b", "c"]]
    assert keeper.told == [("stage/0.2", 0, "a"), ("stage/0.2", 1, "b"), ("stage/0.2", 2, "c")]


def test_answers_of_this_run_are_not_written_again() -> None:
    """They go to the journals of others alone."""
    before = Keeper()
    with scope(keepers=[before]) as one:
        instrument_in_scope(one, ScriptedModel(["a"])).invoke("A")
    again = Keeper(Kept(before.journal.records), ResumeSource(before.journal.records))
    other = Keeper()
    with scope(keepers=[again, other]) as one:
        instrument_in_scope(one, ScriptedModel([])).invoke("A")
    assert len(again.journal.records) == 1
    assert [record.source for record in other.journal.records] == ["replayed"]


@pytest.mark.parametrize("on_loop", [False, True])
def test_an_answer_is_on_record_before_anything_is_made_of_it(
    monkeypatch: pytest.MonkeyPatch, *, on_loop: bool
) -> None:
    """Whoever is killed while it is handed on has not paid for nothing."""
    keeper, seen = Keeper(), list[int]()
    for_caller = ScopedModelCall.for_caller

    def watched(self: ScopedModelCall, message: Any) -> Any:
        seen.append(len(keeper.told))
        return for_caller(self, message)

    monkeypatch.setattr(ScopedModelCall, "for_caller", watched)
    scope = Scope(key("a"), keepers=[keeper], kind="step")
    model = instrument_in_scope(scope, ScriptedModel(["So."]))
    answer = asyncio.run(model.ainvoke("Ask.")) if on_loop else model.invoke("Ask.")
    assert answer.text == "So."
    assert seen == [1]


def test_nobody_who_looks_up_means_no_request() -> None:
    """Without a journal on disk no digest is worked out."""
    keeper = Keeper(journal=MemoryJournal())
    with scope(keepers=[keeper]) as one:
        instrument_in_scope(one, ScriptedModel(["a"])).invoke("A")
    assert [record.request for record in keeper.journal.records] == [""]


def test_messages_that_a_function_changes_are_other_requests() -> None:
    """What was worked out of a message is not kept: it may say something else the next time."""
    keeper, message = Keeper(), HumanMessage("one")
    with scope(keepers=[keeper]) as one:
        model = instrument_in_scope(one, ScriptedModel(default="x"))
        model.invoke([message])
        message.content = "two"
        model.invoke([message])
    assert [sample for _, sample, _ in keeper.told] == [0, 0]


def test_models_that_differ_in_what_they_declare_do_not_answer_for_each_other() -> None:
    """Temperature and limit of an answer count where the call does not say them."""

    class Form(BaseModel):
        """A structured answer."""

        good: bool

    class Own(ScriptedModel):
        """A model with settings."""

        temperature: float | None = None
        max_tokens: int | None = None

    own: Any = Own
    assert declared(own(), None, {})[2] == {}
    assert declared(own(temperature=0.1, max_tokens=9), ["x"], {})[2] == {
        "temperature": 0.1,
        "max_tokens": 9,
        "stop": ["x"],
    }
    own_ones = {"temperature": 1, "max_tokens": 5}
    said = declared(own(temperature=0.1, max_tokens=9), None, own_ones)[2]
    assert said == {"temperature": 1, "max_tokens": 5}
    form = declared(own(), None, {"response_format": Form, "tools": [{"x": (Form, 1)}]})[2]
    assert form["response_format"]["properties"].keys() == {"good"}
    assert form["tools"] == [{"x": [Form.model_json_schema(), 1]}]


def test_a_key_may_have_its_own_kind_of_record() -> None:
    """What a scope stands for is on its records."""
    keeper = Keeper()
    with scope(keepers=[keeper], kind="step") as one:
        instrument_in_scope(one, ScriptedModel(["a"])).invoke("A")
    assert [record.kind for record in keeper.journal.records] == ["step"]


def test_the_budget_grants_each_attempt() -> None:
    """Failed ones count, and nothing is sent that is not granted."""
    keeper, model = Keeper(), ScriptedModel([ConnectionError("cut"), "a", "b"])
    source = BudgetLedger(run=Budget(calls=2))
    with FakeClock(), scope(keepers=[keeper], budget=source, policy=Policy(retry=2)) as one:
        instrument_in_scope(one, model).invoke("A")
        with pytest.raises(BudgetExceeded):
            instrument_in_scope(one, model).invoke("B")
    assert [(record.attempt, record.answered) for record in keeper.journal.records] == [
        (1, False),
        (2, True),
    ]


def test_a_scope_knows_what_its_door_has_given_up() -> None:
    """The error itself and what comes from it, and no other."""
    with FakeClock() as clock, scope(policy=Policy(retry=Retry(2, wait=3))) as one:
        model = instrument_in_scope(
            one, ScriptedModel(default=Answer(error=ConnectionError("cut")))
        )
        with pytest.raises(ConnectionError) as caught:
            model.invoke("A")
        outer = ValueError()
        outer.__cause__ = caught.value
        assert one.gave_up(caught.value)
        assert one.gave_up(outer)
        assert not one.gave_up(ConnectionError("cut"))
    assert clock.waits == [3]


def test_a_stream_that_broke_in_the_middle_was_not_given_up() -> None:
    """Nothing of it can be tried again at the door, so whoever took it may begin anew."""
    with FakeClock(), scope(policy=Policy(retry=2)) as one:
        answer = Answer("one two", error=ConnectionError("cut"), fail_after=1)
        model = instrument_in_scope(one, ScriptedModel([answer]))
        with pytest.raises(ConnectionError) as caught:
            list(model.stream("A"))
        assert not one.gave_up(caught.value)


# The end


def test_no_call_starts_after_the_end() -> None:
    """The error says what to do, in threads and tasks alike; recorded answers end there too."""
    keeper = Keeper()
    with scope(keepers=[keeper]) as one:
        model = instrument_in_scope(one, ScriptedModel(default="x"))
        model.invoke("A")
    keeper.answers = ResumeSource(keeper.journal.records)
    for ask in (model.invoke, lambda prompt: asyncio.run(model.ainvoke(prompt))):
        with pytest.raises(StepError, match=r"stage/0\.2: a model of this call was asked after"):
            ask("A")


def test_an_attempt_that_waits_does_not_start_after_the_end() -> None:
    """A call that failed before the end is not tried again after it."""
    closing: list[Scope] = []

    class Ending(FakeClock):
        """A clock on which the scope ends while an attempt is waited for."""

        def _sleep(self, seconds: float) -> None:
            closing[0].tracker.close()

    model = ScriptedModel([ConnectionError("cut"), "never"])
    with Ending(), scope(policy=Policy(retry=3)) as one:
        closing.append(one)
        with pytest.raises(StepError, match="after the call had ended"):
            instrument_in_scope(one, model).invoke("A")
    assert len(model.calls) == 1


class Late(ScriptedModel):
    """A model that says when it is asked, and answers when its scope has been closed."""

    asked: Any = None
    flights: Any = None

    def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
        self.asked.set()
        with contextlib.suppress(StepError):
            while True:
                self.flights.check()
                time.sleep(0)
        return ScriptedModel(["paid"])._generate(messages)


def test_the_end_waits_for_what_is_in_flight() -> None:
    """A call in another thread is on record when the scope has ended."""
    late: Any = Late
    keeper, asked = Keeper(), threading.Event()
    with scope(keepers=[keeper]) as one:
        model = instrument_in_scope(one, late(asked=asked, flights=one.tracker))
        thread = threading.Thread(target=model.invoke, args=("A",))
        thread.start()
        assert asked.wait(10)
    assert keeper.told == [("stage/0.2", 0, "paid")]
    thread.join()


def test_flights_of_other_threads_wake_a_loop() -> None:
    """A loop waits for a call in a thread, and for no time where there is none."""

    async def work() -> None:
        flights = AttemptTracker("f")
        await flights.aland()
        flights.begin()
        asyncio.get_running_loop().call_soon(threading.Thread(target=flights.end).start)
        await flights.aland()

    asyncio.run(work())


@pytest.fixture
def over() -> Iterator[threading.Event]:
    """Yield the event that lets what hangs in threads end, and set it at the end of the test."""
    event = threading.Event()
    yield event
    event.set()


def test_calls_share_the_time_of_their_scope(over: threading.Event) -> None:
    """One that hangs is late when the scope is, and the next is late before it is sent."""
    hanging, never = ScriptedModel([lambda messages: over.wait()]), ScriptedModel([])
    with scope(seconds=0.02) as one:
        for model in (hanging, never):
            with pytest.raises(CallTimeout, match=r"give the call's policy a longer timeout"):
                instrument_in_scope(one, model).invoke("A")
    assert never.calls == []


def test_a_cancelled_call_lands_no_longer_than_its_scope_has_time() -> None:
    """A model that would not end is dropped when the time of its scope is over."""

    class Endless(ScriptedModel):
        """A model that does not answer."""

        async def _agenerate(self, *args: Any, **more: Any) -> ChatResult:
            asked.set()
            await asyncio.Event().wait()
            raise AssertionError

    asked = asyncio.Event()
    keeper = Keeper()

    async def work() -> None:
        async with scope(keepers=[keeper], seconds=0.05) as one:
            task = asyncio.create_task(instrument_in_scope(one, Endless()).ainvoke("A"))
            task.add_done_callback(lambda _: asked.set())  # a busy machine may be late itself
            await asked.wait()
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, CallTimeout):
                await task

    asyncio.run(work())
    assert not any(record.answered for record in keeper.journal.records)


def test_the_time_to_land_ends_with_that_of_the_scope() -> None:
    """A cancelled attempt has the grace limit, or what is left where that is less."""
    now = time.monotonic()
    assert TimeLimits("f", None).landing == GRACE
    assert TimeLimits("f", None, until=now + 10 * GRACE).landing == GRACE
    assert TimeLimits("f", None, until=now - 1).landing == 0


def test_a_halt_reaches_threads_that_know_nothing_of_it() -> None:
    """A scope in a run that is told to stop starts no call, wherever it is asked."""
    told: list[BaseException] = []

    def ask(model: Any) -> None:
        try:
            model.invoke("A")
        except BaseException as error:  # noqa: BLE001  (KeyboardInterrupt is what is looked for)
            told.append(error)

    with stop_signal() as halt, scope() as one:
        halt.stop()
        thread = threading.Thread(
            target=ask, args=(instrument_in_scope(one, ScriptedModel(["never"])),)
        )
        thread.start()
        thread.join()
    assert [type(error) for error in told] == [KeyboardInterrupt]


def records(keeper: Keeper) -> Sequence[CallRecord]:
    """Return the records of a keeper."""
    return keeper.journal.records


def test_a_system_message_alone_is_a_prompt() -> None:
    """The last message is what is asked, whoever speaks; those of the system before it lead."""
    keeper = Keeper()
    with scope(keepers=[keeper]) as one:
        model = instrument_in_scope(one, ScriptedModel(default="x"))
        model.invoke([("system", "Only.")])
        model.invoke([("system", "One."), ("system", "Two."), AIMessage("Go on:")])
    told = [(one.prompt, len(one.lead), one.context) for one in records(keeper)]
    assert told == [("Only.", 0, 0), ("Go on:", 2, 0)]
