"""Calls, on every engine: functions, tools, Runnables, graphs, and what becomes of results."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.runnables import RunnableLambda
from langchain_core.tools import tool
from langgraph.graph import START, MessagesState, StateGraph
from tests.engine.engines import Engine

from mergepoint import Block, Call, CallContext, Step, StepError, Template, TreeError, reads
from mergepoint.core.merge import State
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.interpreter import interpret
from mergepoint.journal.replay import replay
from mergepoint.testing.scripted_model import ScriptedModel


def after(call: Call) -> Block:
    """Return a call between two steps."""
    return Block([Step("Write.", name="write"), call, Step("Go on.", name="go")], name="root")


def model() -> ScriptedModel:
    """Return a model for the two steps."""
    return ScriptedModel(["a text", "on"])


def test_a_result_is_captured_and_no_message(engine: Engine) -> None:
    """By default a call's result goes to outputs, and the conversation does not change."""

    def count(ctx: CallContext) -> dict[str, int]:
        return {"words": len(ctx.messages[-1].text.split())}

    end = engine(after(Call(count, name="count", capture_key="count")), model())
    assert end.texts == ["Write.", "a text", "Go on.", "on"]
    assert end.outputs == {"count": {"words": 2}}


def test_a_result_may_become_a_message(engine: Engine) -> None:
    """With a merge mode the text of the result is one assistant message with the call's id."""
    end = engine(after(Call(lambda ctx: "42", name="tell", merge="all_messages")), model())
    assert end.texts == ["Write.", "a text", "42", "Go on.", "on"]
    assert isinstance(end.messages[2], AIMessage)
    assert end.messages[2].id == "r1/root/tell/0"


def test_async_functions_run_everywhere(engine: Engine) -> None:
    """An async function gives its result in sync and in async work."""

    async def slowly(ctx: CallContext) -> str:
        return f"from {ctx.path}"

    end = engine(after(Call(slowly, name="slowly", capture_key="said")), model())
    assert end.outputs == {"said": "from root/slowly"}


def test_arguments_are_filled_from_templates(engine: Engine) -> None:
    """A template becomes text, one that is a single place passes the value, the rest is literal."""
    given: dict[str, Any] = {}

    def take(text: str, data: Any, number: int) -> None:
        given.update(text=text, data=data, number=number)

    args = {"text": Template("On {{ facts }}!"), "data": Template("{{ facts }}"), "number": 3}
    first = Call(lambda ctx: [1, {"a": 2}], name="facts", capture_key="facts")
    engine(Block([first, Call(take, args=args, name="take")]), model())
    assert given == {"text": 'On [1, {"a": 2}]!', "data": [1, {"a": 2}], "number": 3}


def test_tools_are_called_with_arguments(engine: Engine) -> None:
    """A LangChain tool is invoked with its arguments, and its result captured."""

    @tool
    def add(a: int, b: int) -> int:
        """Add two numbers."""
        return a + b

    end = engine(Call(add, args={"a": 2, "b": 3}, capture_key="sum", name="add"), None)
    assert end.outputs == {"sum": 5}


def test_a_graph_returns_new_messages_only(engine: Engine) -> None:
    """The leading copy of what a host graph was given is cut, so nothing is there twice."""

    def answer(state: MessagesState) -> dict[str, list[BaseMessage]]:
        return {"messages": [AIMessage(f"after {len(state['messages'])}")]}

    host = StateGraph(MessagesState)
    host.add_node("answer", answer)
    host.add_edge(START, "answer")
    call = Call(host.compile(), name="graph", merge="all_messages", capture_key="said")
    end = engine(after(call), model())
    assert end.texts == ["Write.", "a text", "after 2", "Go on.", "on"]
    assert end.outputs == {"said": "after 2"}


def test_a_runnable_that_rewrites_the_conversation_is_refused(engine: Engine) -> None:
    """Messages of the base that come back changed are an error, not a merge."""

    def reverse(messages: list[BaseMessage]) -> list[BaseMessage]:
        return list(reversed(messages))

    call = Call(RunnableLambda(reverse), name="reverse", merge="all_messages")
    with pytest.raises(StepError, match="return only new messages") as caught:
        engine(after(call), model())
    assert getattr(caught.value, "pipeline_path", "") == "root/reverse"


def test_a_call_cannot_change_what_it_was_given(engine: Engine) -> None:
    """A function that writes on its messages and outputs writes on copies."""

    def spoil(ctx: CallContext) -> None:
        ctx.messages[0].content = "spoilt"
        ctx.outputs["facts"].append("spoilt")

    facts = Call(lambda ctx: ["fact"], name="facts", capture_key="facts")
    tree = Block([Step("Hi."), facts, Call(spoil, name="spoil")])
    end = engine(tree, ScriptedModel(["x"]))
    assert end.texts == ["Hi.", "x"]
    assert end.outputs == {"facts": ["fact"]}


@pytest.mark.parametrize(
    ("result", "problem"),
    [(object(), "JSON data"), ({"a": float("nan")}, "JSON data"), ({1, 2}, "JSON data")],
)
def test_results_that_are_no_data_are_refused(engine: Engine, result: Any, problem: str) -> None:
    """What JSON does not hold is an error with the call's path, and a failed record."""
    recorder = Recorder()
    with pytest.raises(StepError, match=problem) as caught:
        engine(after(Call(lambda ctx: result, name="odd")), model(), recorder=recorder)
    assert getattr(caught.value, "pipeline_path", "") == "root/odd"
    assert [record.path for record in recorder.journal.records if record.error] == ["root/odd"]


def test_a_blank_result_is_no_message(engine: Engine) -> None:
    """A call that is to make a message and has none to make fails."""
    with pytest.raises(StepError, match="result is blank"):
        engine(after(Call(lambda ctx: None, name="x", merge="last_response")), model())


def test_an_error_keeps_its_type_and_gets_the_path(engine: Engine) -> None:
    """What a function raises reaches the caller as it is."""

    def fail(ctx: CallContext) -> None:
        raise ZeroDivisionError("by zero")

    with pytest.raises(ZeroDivisionError) as caught:
        engine(after(Call(fail, name="fail")), model())
    assert getattr(caught.value, "pipeline_path", "") == "root/fail"


def test_a_call_is_on_record_and_replays(engine: Engine) -> None:
    """The record holds result and messages, and the state follows from the records."""
    tree = after(
        Call(lambda ctx: {"n": 1}, name="count", merge="all_messages", capture_key="count")
    )
    recorder = Recorder()
    end = engine(tree, model(), recorder=recorder)
    records = recorder.journal.records
    [call] = [record for record in records if record.kind == "call"]
    assert (call.path, call.value) == ("root/count", {"n": 1})
    again = replay(records, tree, base=State())
    assert again.state is not None
    assert [(m.type, m.content, m.id) for m in again.state.messages] == [
        (m.type, m.content, m.id) for m in end.messages
    ]
    assert dict(again.state.outputs) == end.outputs


def test_models_inside_of_a_call_are_recorded_under_its_path(engine: Engine) -> None:
    """A call to a chat model that a function makes is an inner record of the call."""
    inside = ScriptedModel(["inner answer"])

    def ask(ctx: CallContext) -> str:
        return str(inside.invoke([HumanMessage("Inner?")]).text)

    recorder = Recorder()
    end = engine(after(Call(ask, name="ask", capture_key="said")), model(), recorder=recorder)
    assert end.outputs == {"said": "inner answer"}
    [inner] = [record for record in recorder.journal.records if record.kind == "inner"]
    assert (inner.path, inner.response) == ("root/ask", "inner answer")


def test_declared_reads_of_a_function_are_checked() -> None:
    """A key that nobody writes is found before anything is called."""

    @reads("missing")
    def look(ctx: CallContext) -> None:
        """Read nothing."""

    with pytest.raises(TreeError, match="reads 'missing'"):
        interpret(Block([Call(look, name="look")]), model=None)


def test_the_id_of_a_call_is_its_run_and_path(engine: Engine) -> None:
    """The id is the same in every engine and every retry, to be idempotent with."""
    end = engine(Call(lambda ctx: ctx.call_id, name="id", capture_key="id"), None)
    assert end.outputs == {"id": "r1/id"}
