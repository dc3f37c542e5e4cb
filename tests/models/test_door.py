"""The door: every call of a tree passes it once, whatever the model's class and however called."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from langchain_core.caches import InMemoryCache
from langchain_core.globals import get_llm_cache, set_llm_cache
from langchain_core.language_models import BaseChatModel
from langchain_core.language_models.chat_models import (
    agenerate_from_stream,
    generate_from_stream,
)
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult
from langchain_core.tools import tool
from pydantic import BaseModel

from mergepoint.core.errors import StepError
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form, compile_graph
from mergepoint.engine.interpreter import ainterpret, interpret
from mergepoint.engine.step_call import text_of
from mergepoint.journal.call_records import CallKey, CallRecord
from mergepoint.journal.stores import MemoryJournal
from mergepoint.models.call import CALL, ModelCall
from mergepoint.models.identity import identity
from mergepoint.models.instrument import instrument
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block

WORDS = ("one ", "two ", "three")


def result() -> ChatResult:
    """Return a whole answer."""
    return ChatResult(generations=[ChatGeneration(message=AIMessage("".join(WORDS)))])


def chunks() -> Iterator[ChatGenerationChunk]:
    """Yield the answer in pieces."""
    for word in WORDS:
        yield ChatGenerationChunk(message=AIMessageChunk(content=word))


class Plain(BaseChatModel):
    """A chat model with nothing but `_generate`."""

    @property
    def _llm_type(self) -> str:
        return "plain"

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return result()


class Strict(Plain):
    """One whose `_generate` takes no run manager and no further arguments."""

    def _generate(  # type: ignore[override]
        self, messages: list[BaseMessage], stop: list[str] | None = None
    ) -> ChatResult:
        return result()


class Streaming(Plain):
    """One that streams too."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        yield from chunks()


class Listing(Plain):
    """One whose stream is no generator."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        return iter(list(chunks()))


class Native(Streaming):
    """One with async methods of its own."""

    async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
        await asyncio.sleep(0)
        return result()

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        for chunk in chunks():
            await asyncio.sleep(0)
            yield chunk


class StrictNative(Strict):
    """One whose `_agenerate` takes no run manager."""

    async def _agenerate(  # type: ignore[override]
        self, messages: list[BaseMessage], stop: list[str] | None = None
    ) -> ChatResult:
        return result()


class Circular(Streaming):
    """One that answers whole by way of its own streams, as providers with `streaming=True` do."""

    def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
        return generate_from_stream(self._stream(messages))

    async def _agenerate(
        self, messages: list[BaseMessage], *args: Any, **kwargs: Any
    ) -> ChatResult:
        return await agenerate_from_stream(self._astream(messages))


class Inheriting(Native):
    """One that brings nothing of its own."""


MODELS = (Plain, Strict, Streaming, Listing, Native, StrictNative, Circular, Inheriting)
Ask = Callable[[BaseChatModel, Recorder], None]
TREE = Block([Step("A.", merge="last_response"), Step("B.", merge="last_response")])


def interpreted(model: BaseChatModel, recorder: Recorder) -> None:
    """Run the interpreter."""
    interpret(TREE, model=model, recorder=recorder)


def ainterpreted(model: BaseChatModel, recorder: Recorder) -> None:
    """Run the interpreter on a loop."""
    asyncio.run(ainterpret(TREE, model=model, recorder=recorder))


def streamed(model: BaseChatModel, recorder: Recorder, form: Form = "subgraphs") -> None:
    """Stream tokens of a graph."""
    graph = compile_graph(TREE, model=model, form=form)
    config: Any = {"callbacks": [recorder]}
    for _ in graph.stream({"messages": []}, config, stream_mode="messages", subgraphs=True):
        pass


def astreamed(model: BaseChatModel, recorder: Recorder, form: Form = "fused") -> None:
    """Stream tokens of a graph on a loop."""

    async def work() -> None:
        graph = compile_graph(TREE, model=model, form=form)
        config: Any = {"callbacks": [recorder]}
        stream = graph.astream({"messages": []}, config, stream_mode="messages", subgraphs=True)
        async for _ in stream:
            pass

    asyncio.run(work())


def listened(model: BaseChatModel, recorder: Recorder) -> None:
    """Run with a listener of events."""
    with recorder.heard_by(lambda event: None):
        interpret(TREE, model=model, recorder=recorder)


WAYS: tuple[Ask, ...] = (interpreted, ainterpreted, streamed, astreamed, listened)


@pytest.mark.parametrize("ask", WAYS)
@pytest.mark.parametrize("kind", MODELS)
def test_each_call_is_recorded_exactly_once(kind: type[BaseChatModel], ask: Ask) -> None:
    """Whatever methods the class has, sync, async or streamed, one call is one record."""
    recorder = Recorder()
    ask(kind(), recorder)
    assert [(record.path, record.response) for record in recorder.journal.records] == [
        ("pipeline/step_01", "one two three"),
        ("pipeline/step_02", "one two three"),
    ]


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_outside_of_trees_goes_through_unseen(kind: type[BaseChatModel]) -> None:
    """A model behind the door that is called by other code answers as it always did."""
    model = instrument(kind())

    async def work() -> list[str]:
        pieces = [str(chunk.text) async for chunk in model.astream("A.")]
        return [str((await model.ainvoke("A.")).text), "".join(pieces)]

    found = [model.invoke("A.").text, "".join(str(chunk.text) for chunk in model.stream("A."))]
    assert [*found, *asyncio.run(work())] == ["one two three"] * 4


def test_class_and_name_are_kept() -> None:
    """Behind the door a model is still an instance of its class, under the same name."""
    model = Native()
    inside = instrument(model)
    assert isinstance(inside, Native)
    assert (type(inside).__name__, type(inside).__module__) == ("Native", Native.__module__)
    assert type(inside).__doc__ == Native.__doc__
    assert identity(inside, {}) == identity(model, {})


def test_the_door_is_put_in_once() -> None:
    """A model that is behind the door already is given back, and classes are shared."""
    inside = instrument(Plain())
    assert instrument(inside) is inside
    assert type(instrument(Plain())) is type(inside)


def test_the_users_model_is_untouched() -> None:
    """Class, fields and cache of the given model are what they were."""
    model = ScriptedModel(["x"], cache=True, tags=["mine"])
    before = (type(model), dict(model.__dict__))
    interpret(Step("A."), model=model)
    assert (type(model), dict(model.__dict__)) == before
    assert len(model.calls) == 1


def test_bind_tools_works_behind_the_door() -> None:
    """Tools reach the model, and its calls come back."""

    @tool
    def search(query: str) -> str:
        """Look something up."""
        return query

    model = ScriptedModel([{"query": "cats"}])
    bound: Any = instrument(model)
    answer = bound.bind_tools([search]).invoke("A.")
    assert [call["args"] for call in answer.tool_calls] == [{"query": "cats"}]
    assert model.calls[0].params["tools"][0]["function"]["name"] == "search"


def test_structured_output_works_behind_the_door() -> None:
    """with_structured_output gives an instance of the schema."""

    class Verdict(BaseModel):
        """A judgement."""

        winner: str

    model = instrument(ScriptedModel([{"winner": "a"}]))
    assert model.with_structured_output(Verdict).invoke("A.") == Verdict(winner="a")


@contextmanager
def global_cache() -> Iterator[None]:
    """Have LangChain cache answers for a while."""
    before = get_llm_cache()
    set_llm_cache(InMemoryCache())
    try:
        yield
    finally:
        set_llm_cache(before)


@pytest.mark.parametrize("own", [None, True, InMemoryCache()], ids=["global", "on", "own"])
def test_a_cache_does_not_answer_for_two_samples(own: Any) -> None:
    """Two steps of one prompt are two calls, whatever cache LangChain has."""
    model = ScriptedModel(["one", "two"], cache=own)
    tree = Block([Step("A.", merge="none", capture_key=key) for key in ("a", "b")])
    recorder = Recorder()
    with global_cache():
        state = interpret(tree, model=model, recorder=recorder)
    assert dict(state.outputs) == {"a": "one", "b": "two"}
    assert len(recorder.journal.records) == 2


def test_a_model_that_asks_another_is_one_call() -> None:
    """What a model does inside of its own call is that call."""

    class Router(Plain):
        other: BaseChatModel

        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            answer = self.other.invoke(messages)
            return ChatResult(generations=[ChatGeneration(message=answer)])

    recorder = Recorder()
    state = interpret(
        Step("A."), model=Router(other=instrument(ScriptedModel(["inner"]))), recorder=recorder
    )
    assert state.messages[-1].text == "inner"
    assert [record.response for record in recorder.journal.records] == ["inner"]


def test_an_answer_has_the_id_that_the_state_gives_it() -> None:
    """Callbacks and streams see the message under the id of the merged one."""
    seen: list[str | None] = []

    class Listener(Recorder):
        def on_llm_end(self, response: Any, **kwargs: Any) -> None:
            seen.append(response.generations[0][0].message.id)

    state = interpret(
        Step("A."), model=ScriptedModel([AIMessage("x", id="own")]), recorder=Listener(), run_id="r"
    )
    assert seen == [state.messages[-1].id] == ["r/step_01/1"]


def test_the_record_has_the_models_own_message() -> None:
    """What the provider said is on record as it was, its own id included."""
    answer = AIMessage("x", id="own", response_metadata={"k": "v"})
    recorder = Recorder()
    interpret(Step("A."), model=ScriptedModel([answer]), recorder=recorder)
    message = recorder.journal.records[0].message
    assert message is not None
    assert (message.id, message.response_metadata["k"]) == ("own", "v")


# Calls by hand, to stop a stream in the middle


def call_by_hand(journal: MemoryJournal) -> ModelCall:
    """Return what the door is told of a call."""
    return ModelCall(
        key=CallKey("r", "", "step_01"),
        model="plain",
        view="as_is",
        lead=0,
        params={},
        journals=[journal],
        accept=text_of,
    )


@contextmanager
def calling(journal: MemoryJournal) -> Iterator[None]:
    """Be inside of a call for a while."""
    token = CALL.set(call_by_hand(journal))
    try:
        yield
    finally:
        CALL.reset(token)


class Counting(Native):
    """One that says when its streams are closed."""

    closed: list[str]

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        try:
            yield from chunks()
        finally:
            self.closed.append("sync")

    async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
        try:
            for chunk in chunks():
                yield chunk
        finally:
            self.closed.append("async")


def test_a_stream_closed_early_is_recorded_as_a_failure() -> None:
    """Half an answer is none: the record says so, and the model's own stream is closed."""
    journal, model = MemoryJournal(), Counting(closed=[])
    with calling(journal):
        stream: Any = instrument(model)._stream([HumanMessage("A.")])
        first = next(stream)
        stream.close()
    assert (first.message.text, first.message.id) == ("one ", "r/step_01/1")
    _assert_broken_off(journal)
    assert model.closed == ["sync"]


def test_an_async_stream_closed_early_is_recorded_as_a_failure() -> None:
    """The same on a loop: when the consumer has closed, nothing of the model's is left open."""
    journal, model = MemoryJournal(), Counting(closed=[])

    async def work() -> list[str]:
        with calling(journal):
            stream: Any = instrument(model)._astream([HumanMessage("A.")])
            await anext(stream)
            await stream.aclose()
        return list(model.closed)

    assert asyncio.run(work()) == ["async"]
    _assert_broken_off(journal)


def _assert_broken_off(journal: MemoryJournal) -> None:
    (record,) = journal.records
    assert record.error is not None
    assert record.error["type"] == "GeneratorExit"
    assert (record.answered, record.response) == (False, "")


@pytest.mark.parametrize("ask", [streamed, astreamed])
def test_a_stream_without_an_answer_raises(ask: Ask) -> None:
    """A stream that ends before it began is a StepError, on record."""

    class Silent(Native):
        def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
            yield from ()

        async def _astream(self, *args: Any, **kwargs: Any) -> AsyncIterator[ChatGenerationChunk]:
            for chunk in list[ChatGenerationChunk]():
                yield chunk

    recorder = Recorder()
    with pytest.raises(StepError, match="ended without an answer"):
        ask(Silent(), recorder)
    assert [record.answered for record in recorder.journal.records] == [False]


@pytest.mark.parametrize("ask", WAYS)
def test_a_cancelled_or_failed_call_is_recorded_once(ask: Ask) -> None:
    """A failure is one record too, in every way of calling."""
    recorder = Recorder()
    with pytest.raises(TimeoutError):
        ask(ScriptedModel([TimeoutError("no")]), recorder)
    (record,) = recorder.journal.records
    assert record.error == {"type": "TimeoutError", "message": "no"}


def test_a_cancelled_call_is_recorded() -> None:
    """A task that is cancelled while its model answers leaves the failure on record."""
    recorder = Recorder()

    class Waiting(Native):
        async def _agenerate(self, *args: Any, **kwargs: Any) -> ChatResult:
            started.set()
            await asyncio.Event().wait()
            return result()

    async def work() -> None:
        task = asyncio.create_task(ainterpret(Step("A."), model=Waiting(), recorder=recorder))
        await started.wait()
        task.cancel()
        await asyncio.sleep(0)
        task.cancel()  # the second drops a call that would have half a minute to land
        with pytest.raises(asyncio.CancelledError):
            await task

    started = asyncio.Event()
    asyncio.run(work())
    assert [record.error and record.error["type"] for record in recorder.journal.records] == [
        "CancelledError"
    ]


def test_calls_in_many_threads_keep_apart() -> None:
    """Each call of a wide parallel block is recorded under its own path with its own answer."""
    together = threading.Barrier(8, timeout=10)

    class Meeting(Plain):
        def _generate(self, messages: list[BaseMessage], *args: Any, **kwargs: Any) -> ChatResult:
            together.wait()
            message = AIMessage(f"to {messages[-1].text}")
            return ChatResult(generations=[ChatGeneration(message=message)])

    recorder = Recorder()
    tree = Block([Step(f"{n}.") for n in range(8)], parallel=True)
    interpret(tree, model=Meeting(), recorder=recorder)
    found: dict[str, CallRecord] = {record.path: record for record in recorder.journal.records}
    for n in range(8):
        record = found[f"pipeline/step_{n + 1:02d}"]
        assert (record.prompt, record.response) == (f"{n}.", f"to {n}.")


@pytest.mark.parametrize(
    ("model", "expected"),
    [
        (ScriptedModel([]), "scripted:scripted"),
        (ScriptedModel([], model_name="other"), "scripted:other"),
    ],
)
def test_identity_is_provider_and_name(model: BaseChatModel, expected: str) -> None:
    """A model is known by provider:name, never by a repr."""
    assert identity(model, {}) == expected


def test_a_model_without_a_name_is_known_by_its_provider() -> None:
    """Where LangChain knows no name the provider stands alone."""
    assert identity(Plain(), {}) == "plain"
