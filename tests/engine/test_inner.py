"""Models that functions ask, on every engine: behind the door, and found again."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel
from tests.engine.engines import Engine
from tests.engine.inner import (
    Function,
    around,
    asking,
    inner,
    listening,
    made,
    model,
    resumed,
)

from mergepoint import Block, Call, CallContext, Step, StepError
from mergepoint.engine.callbacks import Event
from mergepoint.engine.interpreter import ainterpret
from mergepoint.testing.scripted_model import Answer, ScriptedModel
from mergepoint.tree.policy import Policy


def test_a_call_of_a_model_is_one_record(engine: Engine) -> None:
    """It is on record once, at the Call's path, before the Call itself."""
    recorder = listening()
    end = engine(around(asking()), model("yes"), recorder=recorder)
    assert end.outputs == {"said": "yes"}
    assert [(one.path, one.kind) for one in recorder.journal.records] == [
        ("root/write", "step"),
        ("root/ask", "inner"),
        ("root/ask", "call"),
        ("root/go", "step"),
    ]
    [one] = inner(recorder)
    assert (one.prompt, one.response, one.model) == ("Inner?", "yes", "scripted:scripted")
    assert one.request != ""


def test_the_record_says_how_the_call_was_made(engine: Engine) -> None:
    """System messages belong to the call; parameters are those of the call and of the model."""

    def ask(ctx: CallContext) -> str:
        messages = [SystemMessage("Be brief."), HumanMessage("One?"), AIMessage("1")]
        asked = ctx.model().bind(max_tokens=7, stop=["."])
        return str(asked.invoke([*messages, HumanMessage("Two?")]).text)

    class Warm(ScriptedModel):
        """A model that has its own temperature."""

        temperature: float = 0.5

    recorder = listening()
    script = {"root/write": "a text", "root/ask": "2", "root/go": "on"}
    engine(around(ask), made(Warm, by_path=script), recorder=recorder)
    [one] = inner(recorder)
    assert ([message.text for message in one.lead], one.context) == (["Be brief."], 2)
    assert one.params == {"max_tokens": 7, "stop": ["."], "temperature": 0.5}


# Every way of calling a model


def invoked(ctx: CallContext) -> list[str]:
    """Ask three times, one after the other."""
    return [str(ctx.model().invoke(f"{n}?").text) for n in range(3)]


def streamed(ctx: CallContext) -> list[str]:
    """Take three answers in pieces."""
    return ["".join(str(one.text) for one in ctx.model().stream(f"{n}?")) for n in range(3)]


def batched(ctx: CallContext) -> list[str]:
    """Ask three times at once, by LangChain's threads."""
    return [str(answer.text) for answer in ctx.model().batch([f"{n}?" for n in range(3)])]


def threaded(ctx: CallContext) -> list[str]:
    """Ask three times at once, in threads with a copy of the context."""
    with ThreadPoolExecutor(3) as pool:
        asked = [
            pool.submit(copy_context().run, ctx.model().invoke, f"{number}?") for number in range(3)
        ]
    return [str(one.result().text) for one in asked]


def bare(ctx: CallContext) -> list[str]:
    """Ask three times at once, in threads that know nothing of the run."""
    asked = ctx.model()
    with ThreadPoolExecutor(3) as pool:
        return [str(answer.text) for answer in pool.map(asked.invoke, [f"{n}?" for n in range(3)])]


async def awaited(ctx: CallContext) -> list[str]:
    """Ask three times, one after the other, on an event loop."""
    return [str((await ctx.model().ainvoke(f"{n}?")).text) for n in range(3)]


async def gathered(ctx: CallContext) -> list[str]:
    """Ask three times at once, in tasks."""
    asked = ctx.model()
    answers = await asyncio.gather(*(asked.ainvoke(f"{number}?") for number in range(3)))
    return [str(answer.text) for answer in answers]


async def astreamed(ctx: CallContext) -> list[str]:
    """Take three answers in pieces at once, on an event loop."""

    async def taken(number: int) -> str:
        return "".join([str(one.text) async for one in ctx.model().astream(f"{number}?")])

    return list(await asyncio.gather(*map(taken, range(3))))


WAYS = (invoked, streamed, batched, threaded, bare, awaited, gathered, astreamed)
ANSWERS = {f"{number}?": f"answer {number}" for number in range(3)}


@pytest.mark.first_case
@pytest.mark.parametrize("way", WAYS)
def test_however_a_model_is_called_its_calls_are_found_again(engine: Engine, way: Function) -> None:
    """A function that failed at its end runs again, and is given every answer from the record."""
    asked = ScriptedModel(by_prompt={**ANSWERS, "Write.": "w"})
    recorder = listening()
    with pytest.raises(RuntimeError, match="after all"):
        engine(around(failing(way)), asked, recorder=recorder)
    assert sorted(one.response for one in inner(recorder)) == sorted(ANSWERS.values())
    again = resumed(recorder)
    end = engine(around(way), ScriptedModel(by_prompt={"Go": "g"}), recorder=again)
    assert end.outputs == {"said": list(ANSWERS.values())}
    assert [one.kind for one in again.journal.records[len(recorder.journal.records) :]] == [
        "call",
        "step",
    ]


def failing(way: Function) -> Function:
    """Return a function that fails when it has asked."""

    def fail(said: Any) -> Any:
        raise RuntimeError("after all")

    if asyncio.iscoroutinefunction(way):

        async def awork(ctx: CallContext) -> Any:
            return fail(await way(ctx))

        return awork
    return lambda ctx: fail(way(ctx))


# Tools, structured output, and what else a chat model does


class Verdict(BaseModel):
    """A structured answer."""

    good: bool


@tool
def look(place: str) -> str:
    """Look somewhere."""
    return f"nothing at {place}"


def with_tools(ctx: CallContext) -> str:
    """Let the model call a tool until it is done."""
    asked = ctx.model().bind_tools([look])
    messages: list[BaseMessage] = [HumanMessage("Where is it?")]
    while True:
        answer = asked.invoke(messages)
        messages.append(answer)
        if not answer.tool_calls:
            return str(answer.text)
        messages += [look.invoke(call) for call in answer.tool_calls]


def with_streamed_tools(ctx: CallContext) -> list[Any]:
    """Take a call of a tool in pieces."""
    pieces = list(ctx.model().bind_tools([look]).stream("Where is it?"))
    whole = pieces[0]
    for piece in pieces[1:]:
        whole = whole + piece
    return [[call["name"], call["args"], call["id"]] for call in whole.tool_calls]


def with_schema(ctx: CallContext) -> Any:
    """Ask for a structured answer."""
    return ctx.model().with_structured_output(Verdict).invoke("Is it good?").model_dump()


async def with_schema_on_a_loop(ctx: CallContext) -> Any:
    """Ask for a structured answer, with the message that holds it."""
    found = await ctx.model().with_structured_output(Verdict, include_raw=True).ainvoke("Good?")
    return [found["parsed"].model_dump(), found["raw"].tool_calls[0]["args"]]


CALLING = Answer(tool_calls=[{"name": "look", "args": {"place": "home"}, "id": "c1"}])


@pytest.mark.parametrize(
    ("way", "answers", "expected"),
    [
        (with_tools, [CALLING, CALLING, "lost"], "lost"),
        (with_streamed_tools, [CALLING], [["look", {"place": "home"}, "c1"]]),
        (with_schema, [Verdict(good=True)], {"good": True}),
        (with_schema_on_a_loop, [Verdict(good=False)], [{"good": False}, {"good": False}]),
    ],
)
def test_tools_and_structured_answers_work_live_and_from_the_record(
    engine: Engine, way: Function, answers: list[Any], expected: Any
) -> None:
    """What the function makes of recorded answers is what it made of live ones."""
    recorder = listening()
    with pytest.raises(RuntimeError, match="after all"):
        engine(around(failing(way)), model(answers), recorder=recorder)
    assert len(inner(recorder)) == len(answers)
    assert all("tools" in one.params for one in inner(recorder))
    end = engine(around(way), model([]), recorder=resumed(recorder))
    assert end.outputs == {"said": expected}


def test_a_call_of_a_tool_is_another_request_without_the_tool(engine: Engine) -> None:
    """What is bound to a model is part of what is asked."""

    def ask(ctx: CallContext) -> list[str]:
        asked = ctx.model()
        models = (asked, asked.bind_tools([look]), asked.bind(response_format=Verdict))
        return [str(one.invoke("Same.").text) for one in models]

    recorder = listening()
    engine(around(ask), model(["a", "b", "c"]), recorder=recorder)
    assert len({one.request for one in inner(recorder)}) == 3
    assert {one.sample for one in inner(recorder)} == {0}


def test_samples_of_one_prompt_are_told_apart(engine: Engine) -> None:
    """Answers to one request are numbered; a function that failed is given each of them again."""

    async def ask(ctx: CallContext) -> list[str]:
        answers = await asyncio.gather(*(ctx.model().ainvoke("Same.") for _ in range(4)))
        return sorted(str(answer.text) for answer in answers)

    async def fail(ctx: CallContext) -> None:
        await ctx.model().ainvoke("Other.")
        await ask(ctx)
        raise RuntimeError("after all")

    recorder = listening()
    with pytest.raises(RuntimeError, match="after all"):
        engine(around(fail), model(list("oabcd")), recorder=recorder)
    assert max((one.response, one.sample) for one in inner(recorder)) == ("o", 0)
    assert sorted(one.sample for one in inner(recorder)) == [0, 0, 1, 2, 3]
    end = engine(around(ask), model([]), recorder=resumed(recorder))
    assert end.outputs == {"said": list("abcd")}


def test_answers_are_the_function_s_own(engine: Engine) -> None:
    """A function that changes an answer changes nothing on record, live or from the record."""

    def ask(ctx: CallContext) -> list[Any]:
        answer = ctx.model().invoke("Inner?")
        first = [answer.content[0]["text"], answer.id]
        answer.content[0]["text"] = "spoilt"
        answer.tool_calls.append({"name": "x", "args": {}, "id": "1", "type": "tool_call"})
        return first

    block = AIMessage([{"type": "text", "text": "whole"}], id="the model's")
    recorder = listening()
    tree = around(ask)
    assert engine(tree, model(block), recorder=recorder).outputs == {
        "said": ["whole", "the model's"]
    }
    [one] = inner(recorder)
    assert one.message is not None
    assert (one.message.text, one.message.tool_calls) == ("whole", [])
    without = [record for record in recorder.journal.records if record.kind == "inner"]
    for _ in range(2):
        end = engine(tree, model([], default="on"), recorder=resumed(without))
        assert end.outputs == {"said": ["whole", "the model's"]}


def test_the_provider_s_view_holds_inside(engine: Engine) -> None:
    """What a function sends is changed on its way out as what a step sends."""

    class Strict(ScriptedModel):
        """A model of a provider that refuses neighbours of one role."""

        def _get_ls_params(self, stop: Any = None, **more: Any) -> Any:
            return {**super()._get_ls_params(stop=stop, **more), "ls_provider": "anthropic"}

    def ask(ctx: CallContext) -> str:
        return str(ctx.model().invoke([AIMessage("a"), HumanMessage("b"), HumanMessage("c")]).text)

    asked, recorder = made(Strict, default="x"), listening()
    engine(Call(ask, name="ask"), asked, recorder=recorder)
    assert [message.type for message in asked.calls[0].messages] == ["human", "ai", "human"]
    assert inner(recorder)[0].view == "alternate"


# Once


def test_a_model_asked_in_a_graph_is_recorded_once(engine: Engine) -> None:
    """One from the context is recorded by its door, one of the graph's own by the callbacks."""
    own = ScriptedModel(["own"])

    def ask(ctx: CallContext) -> str:
        def talk(state: MessagesState) -> dict[str, list[BaseMessage]]:
            return {"messages": [ctx.model().invoke("From ctx."), own.invoke("My own.")]}

        graph = StateGraph(MessagesState)
        graph.add_node("talk", talk)
        graph.add_edge(START, "talk")
        found = graph.compile().invoke({"messages": []})
        return " ".join(str(message.text) for message in found["messages"])

    recorder = listening()
    end = engine(around(ask), model("given"), recorder=recorder)
    assert end.outputs == {"said": "given own"}
    assert [(one.response, bool(one.request)) for one in inner(recorder)] == [
        ("given", True),
        ("own", False),
    ]


def test_a_model_that_asks_another_is_one_call(engine: Engine) -> None:
    """What a model's own code asks is part of its call, whether it is whole or a stream."""
    behind = ScriptedModel(default="from behind")

    class Router(ScriptedModel):
        """A model that has another answer."""

        def _generate(self, messages: list[BaseMessage], *args: Any, **more: Any) -> ChatResult:
            return ChatResult(generations=[ChatGeneration(message=behind.invoke(messages))])

        def _stream(self, messages: list[BaseMessage], *args: Any, **more: Any) -> Any:
            message = self._generate(messages).generations[0].message
            yield from ScriptedModel([message])._stream(messages)

    def ask(ctx: CallContext) -> list[str]:
        asked = ctx.model(Router())
        return [str(asked.invoke("A?").text), "".join(str(c.text) for c in asked.stream("B?"))]

    recorder = listening()
    end = engine(around(ask), model([]), recorder=recorder)
    assert end.outputs == {"said": ["from behind"] * 2}
    assert [one.prompt for one in inner(recorder)] == ["A?", "B?"]


def within(node: Any) -> Function:
    """Return a function that runs a tree of its own with its model."""

    async def run(ctx: CallContext) -> str:
        ended = await ainterpret(node, model=ctx.model(), run_id="own")
        return str(ended.messages[-1].text)

    return run


def test_a_run_inside_with_a_model_of_the_function_passes_its_door(engine: Engine) -> None:
    """Its steps are inner records of the Call, and are found again when it runs again."""
    tree = Block([Step("A?", name="a"), Step("B?", name="b", policy=Policy(retry=2))], name="t")
    recorder = listening()
    script: Any = {"A?": "a", "B?": "b", "Write": "w", "Go": "g"}
    with pytest.raises(RuntimeError, match="after all"):
        engine(around(failing(within(tree))), ScriptedModel(by_prompt=script), recorder=recorder)
    assert [(one.path, one.prompt, one.response) for one in inner(recorder)] == [
        ("root/ask", "A?", "a"),
        ("root/ask", "B?", "b"),
    ]
    asked = ScriptedModel(by_prompt={"Go": "g"})
    end = engine(around(within(tree)), asked, recorder=resumed(recorder))
    assert end.outputs == {"said": "b"}


def test_a_function_in_a_run_inside_passes_all_doors(engine: Engine) -> None:
    """The Call of the run that it is in has it on record, and so has the Call around that run."""
    own = listening()

    async def run(ctx: CallContext) -> str:
        tree = Call(asking("Deep?"), name="deep", capture_key="said")
        ended = await ainterpret(tree, model=ctx.model(), recorder=own)
        return str(ended.outputs["said"])

    recorder = listening()
    asked = ScriptedModel(by_prompt={"Deep?": "yes", "Write": "w", "Go": "g"})
    assert engine(around(run), asked, recorder=recorder).outputs == {"said": "yes"}
    assert [one.path for one in inner(own)] == ["deep"]
    assert [one.path for one in inner(recorder)] == ["root/ask"]
    assert len(asked.calls) == 3


def test_calls_between_the_pieces_of_a_stream_are_calls_of_their_own(engine: Engine) -> None:
    """A function may ask while it takes an answer in pieces, sync and on a loop."""

    async def ask(ctx: CallContext) -> list[str]:
        said = []
        async for piece in ctx.model().astream("Outer."):
            said += [str(piece.text), str((await ctx.model().ainvoke("Between.")).text)]
        for piece in ctx.model().stream("Outer."):
            said += [str(piece.text), str(ctx.model().invoke("Between.").text)]
        return [text for text in said if text != "b"]

    script: Any = {"Outer.": [Answer(chunks=["x ", "y"])] * 2, "Between.": ["b"] * 9}
    recorder = listening()
    end = engine(
        Call(ask, name="ask", capture_key="said"),
        ScriptedModel(by_prompt=script),
        recorder=recorder,
    )
    assert [text for text in end.outputs["said"] if text] == ["x ", "y"] * 2
    assert sum(one.prompt == "Outer." for one in inner(recorder)) == 2
    assert sum(one.prompt == "Between." for one in inner(recorder)) >= 4


def test_events_tell_of_models_inside(engine: Engine) -> None:
    """Start, tokens and end of a scoped call are told as `inner`, live and from the record."""

    def ask(ctx: CallContext) -> str:
        return "".join(str(piece.text) for piece in ctx.model().stream("Inner?"))

    recorder = listening()
    for answers in (None, recorder):
        heard: list[tuple[str, str]] = []
        one = listening() if answers is None else resumed(inner(answers))
        recorder = one if answers is None else recorder

        def hear(event: Event, heard: list[tuple[str, str]] = heard) -> None:
            heard.append((event.kind, event.of))

        with one.heard_by(hear):
            engine(around(ask), model(Answer("two words"), default="x"), recorder=one)
        told = [kind for kind, of in heard if of == "inner"]
        assert told[0] == "start"
        assert "token" in told
        assert told[-1] == "end"


# The end of a function


def test_a_model_is_not_asked_after_its_function_has_ended(engine: Engine) -> None:
    """Who kept a model and asks it later is told that the call is over."""
    kept: list[Any] = []

    def ask(ctx: CallContext) -> None:
        kept.append(ctx.model())

    engine(around(ask), model([]))
    with pytest.raises(StepError, match="root/ask: a model of this call was asked after"):
        kept[0].invoke("Late.")


class Slow(ScriptedModel):
    """A model that says when it is asked, and answers some turns of the loop later."""

    asked: Any = None

    async def _agenerate(self, *args: Any, **more: Any) -> ChatResult:
        self.asked.set()
        for _ in range(50):
            await asyncio.sleep(0)
        return self._generate(*args)


def test_calls_in_flight_land_when_a_function_fails(engine: Engine) -> None:
    """A failed function's paid calls come to their end, and are on record before it is."""
    left: list[Any] = []

    async def ask(ctx: CallContext) -> None:
        asked = asyncio.Event()
        left.append(
            asyncio.create_task(ctx.model(made(Slow, "paid", asked=asked)).ainvoke("Slow?"))
        )
        await asked.wait()
        raise RuntimeError("meanwhile")

    recorder = listening()
    with pytest.raises(RuntimeError, match="meanwhile"):
        engine(Call(ask, name="ask"), None, recorder=recorder)
    kinds = [(one.kind, one.answered) for one in recorder.journal.records]
    assert kinds == [("inner", True), ("call", False)]


def test_a_stream_that_is_left_open_ends_with_its_function(engine: Engine) -> None:
    """Nobody waits for pieces that nobody takes."""

    def ask(ctx: CallContext) -> None:
        for _ in ctx.model().stream("Inner?"):
            raise RuntimeError("enough")

    recorder = listening()
    with pytest.raises(RuntimeError, match="enough"):
        engine(Call(ask, name="ask"), ScriptedModel([Answer("one two three")]), recorder=recorder)
    assert recorder.journal.records[-1].path == "ask"


def test_a_call_without_messages_is_refused(engine: Engine) -> None:
    """The error names the Call, since a record is kept by what was asked."""
    with pytest.raises(StepError, match="ask: a model was called without any message"):
        engine(Call(asking([]), name="ask"), model("x"))
