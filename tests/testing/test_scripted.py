"""The scripted model: which answer a call gets, how it is given, and what is kept as evidence."""

from __future__ import annotations

import asyncio
import copy
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, cast

import pytest
from langchain_core.callbacks import (
    BaseCallbackHandler,
    CallbackManager,
    get_usage_metadata_callback,
)
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import (
    AIMessage,
    AIMessageChunk,
    BaseMessage,
    HumanMessage,
    SystemMessage,
)
from langchain_core.outputs import ChatGenerationChunk
from langchain_core.runnables import RunnableConfig, RunnableLambda
from langchain_core.tools import tool
from langchain_core.tracers._streaming import _StreamingCallbackHandler
from langgraph.graph import START, MessagesState, StateGraph
from pydantic import BaseModel

from mergepoint.testing.scripted_model import Answer, ScriptedModel, ScriptExhausted, Seen

Ask = Callable[..., AIMessage]


class Verdict(BaseModel):
    """A structured answer."""

    winner: str
    score: int


@tool
def search(query: str) -> str:
    """Look something up."""
    return query


@tool
def order(item: str) -> str:
    """Order something."""
    return item


def joined(chunks: Sequence[AIMessageChunk]) -> AIMessage:
    """Add up the chunks of a stream."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def invoke(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by invoke."""
    return model.invoke(*args, **kwargs)


def ainvoke(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by ainvoke."""
    return asyncio.run(model.ainvoke(*args, **kwargs))


def stream(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by stream."""
    return joined(list(model.stream(*args, **kwargs)))


def astream(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by astream."""

    async def collect() -> list[AIMessageChunk]:
        return [chunk async for chunk in model.astream(*args, **kwargs)]

    return joined(asyncio.run(collect()))


class Tokens(BaseCallbackHandler, _StreamingCallbackHandler[Any]):
    """A handler that makes LangChain route an invoke through the model's stream."""

    def __init__(self) -> None:
        self.tokens: list[str] = []

    def on_llm_new_token(self, token: str | list[str | dict[str, Any]], **kwargs: Any) -> None:
        """Keep the token."""
        self.tokens.append(str(token))

    def tap_output_aiter(self, run_id: object, output: Any) -> Any:
        """Return the output as it is."""
        return output

    def tap_output_iter(self, run_id: object, output: Any) -> Any:
        """Return the output as it is."""
        return output


def with_tokens(config: RunnableConfig | None) -> RunnableConfig:
    """Add a streaming handler to a config."""
    made: RunnableConfig = {"callbacks": [Tokens()]}
    return {**(config or {}), **made}


def invoke_by_stream(
    model: BaseChatModel, given: Any, config: RunnableConfig | None = None, **kwargs: Any
) -> AIMessage:
    """Ask by an invoke that a streaming handler turns into a stream."""
    return model.invoke(given, with_tokens(config), **kwargs)


def ainvoke_by_stream(
    model: BaseChatModel, given: Any, config: RunnableConfig | None = None, **kwargs: Any
) -> AIMessage:
    """Ask by an ainvoke that a streaming handler turns into a stream."""
    return asyncio.run(model.ainvoke(given, with_tokens(config), **kwargs))


def events(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by LangChain's protocol of typed events."""
    return model.stream_events(*args, version="v3", **kwargs).output


def aevents(model: BaseChatModel, *args: Any, **kwargs: Any) -> AIMessage:
    """Ask by LangChain's protocol of typed events, asynchronously."""

    async def collect() -> AIMessage:
        made = await model.astream_events(*args, version="v3", **kwargs)
        output: AIMessage = await made.output
        return output

    return asyncio.run(collect())


WAYS = [invoke, ainvoke, stream, astream, invoke_by_stream, ainvoke_by_stream]
every_way = pytest.mark.parametrize("ask", WAYS)


def at(path: str) -> RunnableConfig:
    """Return the config of a call at a path."""
    return {"metadata": {"mergepoint": {"path": path}}}


# Which answer a call gets


@every_way
def test_answers_are_given_in_order_and_once(ask: Ask) -> None:
    """Each call takes exactly one answer, in whatever way LangChain routes it."""
    model = ScriptedModel(["a", "b", "c"])
    assert [ask(model, "x").text for _ in range(3)] == ["a", "b", "c"]
    assert len(model.calls) == 3


@every_way
def test_answers_by_path(ask: Ask) -> None:
    """The path in the call's metadata picks the answer, streamed or not."""
    model = ScriptedModel(by_path={"p/a": ["1", "2"], "p/b": "3"})
    paths = ["p/a", "p/b", "p/a"]
    assert [ask(model, "x", config=at(path)).text for path in paths] == ["1", "3", "2"]
    assert [seen.path for seen in model.calls] == paths


@every_way
def test_path_is_read_from_the_models_own_metadata(ask: Ask) -> None:
    """Metadata of the model itself counts, and goes before that of the call, as in LangChain."""
    model = ScriptedModel(by_path={"own": "a"}, metadata={"mergepoint": {"path": "own"}})
    assert ask(model, "x", config=at("call")).text == "a"


@pytest.mark.parametrize("ask", [invoke, ainvoke, stream, astream])
@pytest.mark.parametrize("handlers", [[], [Tokens()]])
def test_path_is_read_from_a_callback_manager(ask: Ask, handlers: list[Any]) -> None:
    """Metadata that a parent run hands down with its callbacks counts."""
    parent = CallbackManager(handlers, metadata={"mergepoint": {"path": "p"}})
    assert ask(ScriptedModel(by_path={"p": "a"}), "x", config={"callbacks": parent}).text == "a"


def test_path_is_read_from_a_parent_run() -> None:
    """A call inside a runnable has the path of the runnable, if it has none of its own."""
    inner = ScriptedModel(by_path={"outer": ["1", "2"]})

    def both(text: str) -> str:
        return inner.invoke(text).text + stream(inner, text).text

    assert RunnableLambda(both).invoke("x", at("outer")) == "12"


def test_path_is_read_inside_a_graph_that_streams_messages() -> None:
    """A node's invoke that LangGraph turns into a stream still finds its path, and its tokens."""
    model = ScriptedModel(by_path={"node": "two words"})

    def node(state: MessagesState) -> dict[str, Any]:
        return {"messages": [model.invoke(state["messages"], at("node"))]}

    graph = StateGraph(MessagesState).add_node("node", node).add_edge(START, "node").compile()
    parts = graph.stream({"messages": [HumanMessage("x")]}, stream_mode="messages")
    tokens = [part[0].content for part in parts]  # type: ignore[index]
    assert tokens == ["two ", "words"]
    assert [seen.path for seen in model.calls] == ["node"]


def test_path_of_one_stream_does_not_show_in_another() -> None:
    """While one stream is half read, a call without a path has none."""
    model = ScriptedModel(["bare", "plain"], by_path={"p": "one two three"})
    half_read = model.stream("x", at("p"))
    assert next(half_read).content == "one "
    assert model._generate([HumanMessage("z")]).generations[0].text == "bare"
    assert model.invoke("y").text == "plain"
    assert [chunk.content for chunk in half_read] == ["two ", "three"]
    assert [seen.path for seen in model.calls] == ["p", "", ""]


def test_answers_by_prompt_take_the_first_key_that_fits() -> None:
    """Keys are tried in declared order against the text of the last message only."""
    model = ScriptedModel(by_prompt={"cat": ["1"], "c": ["2", "3"]})
    earlier = [HumanMessage("cat"), HumanMessage([{"type": "text", "text": "a cow"}])]
    assert [model.invoke(one).text for one in ("the cat", earlier, "c")] == ["1", "2", "3"]


def test_path_goes_before_prompt_and_prompt_before_order() -> None:
    """The three scripts are asked in a fixed order."""
    model = ScriptedModel(["order"], by_path={"p": "path"}, by_prompt={"hi": "prompt"})
    assert model.invoke("hi", at("p")).text == "path"
    assert model.invoke("hi", at("q")).text == "prompt"
    assert model.invoke("ho", at("q")).text == "order"
    model.assert_used_up()


def test_a_key_that_is_used_up_does_not_eat_the_answers_of_others() -> None:
    """A call too many at a scripted path or prompt fails, although other answers are left."""
    model = ScriptedModel(["order"], by_path={"p": "path"}, by_prompt={"hi": "prompt"})
    model.invoke("x", at("p"))
    model.invoke("hi")
    with pytest.raises(ScriptExhausted):
        model.invoke("x", at("p"))
    with pytest.raises(ScriptExhausted):
        model.invoke("hi")
    assert model.invoke("x").text == "order"


@every_way
def test_an_exhausted_script_names_call_and_rest(ask: Ask) -> None:
    """The error tells path, start of the last message and every answer that is left."""
    model = ScriptedModel(by_path={"p/a": ["used", "left"]}, by_prompt={"zebra": "stripes"})
    ask(model, "x", config=at("p/a"))
    with pytest.raises(ScriptExhausted) as caught:
        ask(model, "tell me " + "more " * 50, config=at("p/b"))
    text = str(caught.value)
    assert isinstance(caught.value, AssertionError)
    assert "'p/b'" in text
    assert "'tell me more" in text
    assert "..." in text
    assert "by_path 'p/a': 1 (next 'left')" in text
    assert "by_prompt 'zebra': 1 (next 'stripes')" in text


def test_an_empty_script_says_that_nothing_is_left() -> None:
    """Without any answer, and even without a message, the error is still readable."""
    with pytest.raises(ScriptExhausted, match="Remaining answers: nothing"):
        ScriptedModel().invoke([])


@every_way
def test_default_answers_what_the_script_does_not_hold(ask: Ask) -> None:
    """A default is given again and again, after the script and beside it."""
    model = ScriptedModel(["a"], by_path={"p": "b"}, default="d")
    given = [ask(model, "x").text, ask(model, "x").text, ask(model, "x").text]
    assert given == ["a", "d", "d"]
    assert [ask(model, "x", config=at("p")).text for _ in range(2)] == ["b", "d"]


@every_way
def test_a_callable_gets_the_messages(ask: Ask) -> None:
    """A callable sees a tuple of the messages sent and returns any answer."""
    model = ScriptedModel(
        [lambda messages: Answer(str(type(messages)), usage=(1, 2))],
        default=lambda messages: "echo " + messages[-1].text,
    )
    first = ask(model, "x")
    assert first.text == str(tuple)
    assert first.usage_metadata is not None
    assert first.usage_metadata["total_tokens"] == 3
    assert ask(model, "hello").text == "echo hello"


# What an answer may be


@every_way
def test_kinds_of_answers(ask: Ask) -> None:
    """Text, message, content blocks, JSON values and None all become an assistant message."""
    blocks: list[str | dict[str, Any]] = [
        {"type": "reasoning", "reasoning": "hm"},
        {"type": "text", "text": "so"},
    ]
    model = ScriptedModel(
        [
            "text",
            AIMessage("message", id="m1", additional_kwargs={"k": "v"}),
            blocks,
            {"a": "é"},
            Verdict(winner="x", score=3),
            None,
        ]
    )
    made = [ask(model, "x") for _ in range(6)]
    assert [one.content for one in made] == [
        "text",
        "message",
        blocks,
        '{"a": "é"}',
        '{"winner": "x", "score": 3}',
        "",
    ]
    assert made[1].id == "m1"
    assert made[1].additional_kwargs == {"k": "v"}
    assert made[2].text == "so"


@every_way
@pytest.mark.parametrize("wrap", [lambda error: error, lambda error: lambda _: error, Answer])
def test_an_exception_is_raised(ask: Ask, wrap: Callable[[Exception], Any]) -> None:
    """The very exception of the script comes out, given plainly, by a callable or in an Answer."""
    error = ConnectionError("reset")
    model = ScriptedModel([wrap(error), "after"])
    with pytest.raises(ConnectionError) as caught:
        ask(model, "x")
    assert caught.value is error
    assert ask(model, "x").text == "after"


def test_a_scripted_message_is_not_shared() -> None:
    """Neither LangChain's marks nor a caller's edits reach a message or blocks of the script."""
    message = AIMessage("a", response_metadata={"k": {}})
    blocks: list[str | dict[str, Any]] = [{"type": "text", "text": "b", "extras": {}}]
    data: dict[str, Any] = {"nested": {}}
    called = Answer(tool_calls=[{"name": "search", "args": {"nested": {}}}])
    model = ScriptedModel([message, blocks, data, called] * 2)
    bound = model.bind_tools([search])
    first = [bound.invoke("x") for _ in range(4)]
    first[0].response_metadata["k"]["changed"] = True
    cast("list[dict[str, Any]]", first[1].content)[0]["extras"]["changed"] = True
    for one in first[2:]:
        one.tool_calls[0]["args"]["nested"]["changed"] = True
    second = [bound.invoke("x") for _ in range(4)]
    assert message == AIMessage("a", response_metadata={"k": {}})
    assert second[0].response_metadata["k"] == {}
    assert second[1].content == [{"type": "text", "text": "b", "extras": {}}]
    assert [one.tool_calls[0]["args"] for one in second[2:]] == [{"nested": {}}] * 2


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ScriptedModel(cast("Any", "abc")), "answers: pass a list of answers, not str"),
        (lambda: ScriptedModel([cast("Any", 3)]), "answers: int isn't an answer"),
        (lambda: ScriptedModel(by_path={"p": cast("Any", 3)}), "by_path 'p': int isn't an answer"),
        (lambda: ScriptedModel(by_prompt={"p": cast("Any", {1})}), "by_prompt 'p': set isn't"),
        (lambda: ScriptedModel(default=cast("Any", 3)), "default: int isn't an answer"),
        (lambda: ScriptedModel([cast("Any", HumanMessage("x"))]), "HumanMessage isn't an answer"),
        (lambda: ScriptedModel([ValueError]), "ValueError is a class"),
        (lambda: Answer(cast("Any", len)), "put the callable into the script"),
        (lambda: Answer(cast("Any", Answer("x"))), "content must be a value"),
        (lambda: ScriptedModel(default=lambda _: 3).invoke("x"), "callable returned: int"),
        (lambda: ScriptedModel(default=lambda _: len).invoke("x"), "content must be a value"),
    ],
)
def test_what_is_no_answer_is_refused(make: Callable[[], object], words: str) -> None:
    """A value no model could answer with is a TypeError that says where it stands."""
    with pytest.raises(TypeError, match=words):
        make()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"delay": -1}, "delay"),
        ({"fail_after": 1}, "fail_after"),
        ({"fail_after": -1, "error": OSError()}, "fail_after"),
        ({"content": "ab", "chunks": ["a"]}, "chunks"),
        ({"content": AIMessage("ab"), "chunks": ["a"]}, "chunks"),
        ({"content": {"a": 1}, "chunks": ["a"]}, "chunks"),
    ],
)
def test_fields_that_contradict_each_other_are_refused(fields: dict[str, Any], words: str) -> None:
    """An Answer that could not be played is a ValueError when it is written."""
    with pytest.raises(ValueError, match=words):
        Answer(**fields)


# How it is given


def test_a_stream_gives_words_with_usage_on_the_last() -> None:
    """Chunks are words with their following space; the last carries usage and its position."""
    chunks = list(ScriptedModel(["  one two\n\nthree "]).stream("a b"))
    assert [chunk.content for chunk in chunks] == ["  one ", "two\n\n", "three "]
    assert [chunk.usage_metadata is None for chunk in chunks] == [True, True, False]
    assert [chunk.chunk_position for chunk in chunks] == [None, None, "last"]


ANSWERS: list[Any] = [
    "one two  three",
    "",
    " ",
    None,
    AIMessage("a b", id="m1", additional_kwargs={"k": "v"}, response_metadata={"seed": "7"}),
    AIMessage("a", usage_metadata={"input_tokens": 5, "output_tokens": 6, "total_tokens": 11}),
    AIMessageChunk(content="a b"),
    [{"type": "text", "text": "a b"}, "c", {"type": "image", "url": "u"}],
    [],
    {"winner": "é", "score": 1},
    Answer("a b", tool_calls=[{"name": "f", "args": {"x": [1]}}, {"name": "g", "args": {}}]),
    Answer("abc", chunks=["a", "bc"], usage=(3, 4)),
]


@pytest.mark.parametrize("answer", ANSWERS, ids=range(len(ANSWERS)))
@pytest.mark.parametrize("tools", [[], [Verdict]], ids=["plain", "tool"])
def test_invoke_and_stream_give_the_same_message(answer: Any, tools: list[Any]) -> None:
    """However a call is made, content, tool calls, usage and metadata are equal."""

    def facts(ask: Ask) -> dict[str, Any]:
        model: Any = ScriptedModel([answer])
        made = ask(model.bind_tools(tools) if tools else model, "x y")
        keys = ("content", "tool_calls", "invalid_tool_calls", "usage_metadata")
        more = ("additional_kwargs", "response_metadata")
        return {key: getattr(made, key) for key in [*keys, *more]}

    expected = facts(invoke)
    for ask in WAYS[1:]:
        assert facts(ask) == expected, ask


def test_invalid_tool_calls_of_a_message_survive_a_stream() -> None:
    """A scripted message with unreadable arguments streams as such."""
    bad = {"name": "f", "args": "]no", "id": "1", "error": None, "type": "invalid_tool_call"}
    made = stream(ScriptedModel([AIMessage("", invalid_tool_calls=[cast("Any", bad)])]), "x")
    assert (made.tool_calls, made.invalid_tool_calls) == ([], [bad])


@pytest.mark.filterwarnings("ignore::langchain_core._api.LangChainBetaWarning")
@pytest.mark.parametrize("ask", [events, aevents])
def test_typed_events_take_one_answer_and_tell_tokens_once(ask: Ask) -> None:
    """LangChain's newest stream works, with path, and the answer is taken once."""
    model = ScriptedModel(by_path={"p": ["two words", "next"]})
    tokens = Tokens()
    made = ask(model, "x", config={**at("p"), "callbacks": [tokens]})
    assert made.text == "two words"
    assert tokens.tokens == ["two ", "words"]
    assert [seen.path for seen in model.calls] == ["p"]


def test_a_streaming_handler_hears_each_token_once() -> None:
    """An invoke that is routed through the stream tells no token twice."""
    tokens = Tokens()
    ScriptedModel(["two words"]).invoke("x", {"callbacks": [tokens]})
    assert tokens.tokens == ["two ", "words"]


def test_given_chunks_are_streamed_as_they_are() -> None:
    """Chunks may stand for the text, or cut it where the test wants."""
    model = ScriptedModel([Answer(chunks=["o", "ne"]), Answer("one", chunks=("on", "e"))])
    assert [chunk.content for chunk in model.stream("x")] == ["o", "ne"]
    assert [chunk.content for chunk in model.stream("x")] == ["on", "e"]
    assert ScriptedModel([Answer(chunks=["o", "ne"])]).invoke("x").text == "one"


@pytest.mark.parametrize("after", [None, 0, 2, 9])
def test_a_stream_breaks_where_told(after: int | None) -> None:
    """The error comes after the given number of chunks, at once without it, or at the end."""
    model = ScriptedModel([Answer("a b c", fail_after=after, error=OSError("cut"))] * 2)
    got: list[object] = []

    def read() -> None:
        for chunk in model.stream("x"):
            got.append(chunk.content)  # noqa: PERF401 - what came before the error counts

    async def aread() -> None:
        async for chunk in model.astream("x"):
            got.append(chunk.content)  # noqa: PERF401 - what came before the error counts

    with pytest.raises(OSError, match="cut"):
        read()
    assert got == ["a ", "b ", "c"][: after or 0]
    got.clear()
    with pytest.raises(OSError, match="cut"):
        asyncio.run(aread())
    assert got == ["a ", "b ", "c"][: after or 0]


def test_invoke_fails_where_a_stream_breaks() -> None:
    """Without a stream there is no half answer, only the error."""
    with pytest.raises(OSError, match="cut"):
        ScriptedModel([Answer("a b", fail_after=1, error=OSError("cut"))]).invoke("x")


def test_usage_counts_words_unless_given() -> None:
    """Tokens are the words of all messages and of the answer, or what the script says."""
    model = ScriptedModel(["one two", Answer("x", usage=(70, 8))])
    counted = model.invoke([SystemMessage("be kind"), HumanMessage("a b c")]).usage_metadata
    assert counted == {"input_tokens": 5, "output_tokens": 2, "total_tokens": 7}
    given = model.invoke("a").usage_metadata
    assert given == {"input_tokens": 70, "output_tokens": 8, "total_tokens": 78}


def test_usage_of_a_message_stands_unless_the_answer_has_its_own() -> None:
    """A scripted message keeps its usage; the Answer around it may replace it."""
    message = AIMessage(
        "a", usage_metadata={"input_tokens": 5, "output_tokens": 6, "total_tokens": 11}
    )
    model = ScriptedModel([message, Answer(message, usage=(1, 2))])
    made = [model.invoke("x").usage_metadata for _ in range(2)]
    assert [usage and usage["total_tokens"] for usage in made] == [11, 3]


def test_a_message_keeps_its_name() -> None:
    """The name is on the message and on each chunk; LangChain loses it when it adds chunks up."""
    model = ScriptedModel(default=AIMessage("a b", name="ann"))
    assert model.invoke("x").name == "ann"
    assert [chunk.name for chunk in model.stream("x")] == ["ann", "ann"]


def test_a_chunk_as_an_answer_is_a_whole_message() -> None:
    """A scripted chunk comes out of an invoke as an ordinary message."""
    made = ScriptedModel([AIMessageChunk(content="a")]).invoke("x")
    assert (type(made), made.text) == (AIMessage, "a")


def test_usage_is_found_by_langchains_own_counter() -> None:
    """LangChain's usage callback finds the usage under the model's name."""
    with get_usage_metadata_callback() as counter:
        ScriptedModel(["one two"], model_name="tiny").invoke("a")
    assert counter.usage_metadata["tiny"]["total_tokens"] == 3


@pytest.mark.parametrize("ask", [invoke, stream])
def test_delay_sleeps_in_sync(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """A synchronous call sleeps for its delay once."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    ask(ScriptedModel([Answer("a b c", delay=7)]), "x")
    assert slept == [7]


class SkippingLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock jumps to the next timer instead of waiting for it."""

    def __init__(self) -> None:
        super().__init__()
        self.skipped = 0.0
        real: Any = self._selector  # type: ignore[attr-defined]
        wait = real.select

        def skip(timeout: float | None) -> object:
            self.skipped += timeout or 0.0
            return wait(0 if timeout is not None else None)

        real.select = skip

    def time(self) -> float:
        """Return real time plus what was skipped."""
        return super().time() + self.skipped


@pytest.mark.parametrize("streamed", [False, True])
def test_delays_overlap_in_async(streamed: bool) -> None:  # noqa: FBT001
    """Asynchronous calls wait on the loop, side by side: the shorter delay answers first."""
    model = ScriptedModel([Answer("slow", delay=7200), Answer("fast", delay=3600)])
    done: list[str] = []

    async def one() -> None:
        if streamed:
            done.extend([str(chunk.content) async for chunk in model.astream("x")])
        else:
            done.append((await model.ainvoke("x")).text)

    async def both() -> None:
        await asyncio.gather(one(), one())

    with asyncio.Runner(loop_factory=SkippingLoop) as runner:
        runner.run(both())
    assert done == ["fast", "slow"]


def test_streams_of_one_loop_interleave() -> None:
    """Two streams read at the same time give their tokens in turn."""
    model = ScriptedModel(["a a a", "b b b"])
    got: list[str] = []

    async def read() -> None:
        async for chunk in model.astream("x"):
            got.append(str(chunk.content).strip())  # noqa: PERF401

    async def both() -> None:
        await asyncio.gather(read(), read())

    asyncio.run(both())
    assert got != sorted(got)
    assert sorted(got) == ["a", "a", "a", "b", "b", "b"]


def test_a_stream_left_early_is_closed() -> None:
    """Leaving a stream after one chunk costs its answer and leaves nothing open."""
    model = ScriptedModel(["a b c", "d e f", "g"])
    opened = cast("Any", model.stream("x"))
    next(opened)
    opened.close()

    async def leave() -> None:
        made = cast("Any", model.astream("x"))
        await anext(made)
        await made.aclose()

    asyncio.run(leave())
    assert model.invoke("x").text == "g"


def test_a_stream_that_is_never_read_takes_no_answer() -> None:
    """A stream only made is no call."""
    model = ScriptedModel(["a"])
    cast("Any", model.stream("x")).close()
    assert model.calls == []
    assert model.invoke("x").text == "a"


# Tools and structured output


@every_way
def test_tool_calls_of_an_answer(ask: Ask) -> None:
    """Tool calls get ids from path and count, equal in every run, unless the script names them."""
    calls = [{"name": "search", "args": {"query": "q"}}, {"name": "order", "args": {}, "id": "me"}]
    model = ScriptedModel(default=Answer("wait", tool_calls=calls))
    first, second = ask(model, "x"), ask(model, "x", config=at("p/a"))
    assert first.text == "wait"
    assert [call["id"] for call in first.tool_calls] == ["call_1_1", "me"]
    assert [call["id"] for call in second.tool_calls] == ["call_p.a.1_1", "me"]
    assert second.tool_calls[0]["args"] == {"query": "q"}
    assert second.response_metadata["finish_reason"] == "tool_calls"
    assert calls[1]["args"] == {}


def test_tool_calls_follow_those_of_the_message() -> None:
    """Tool calls of an Answer are added to those its message has."""
    message = AIMessage("", tool_calls=[{"name": "f", "args": {}, "id": "1"}])
    made = ScriptedModel([Answer(message, tool_calls=[{"name": "g", "args": {}}])]).invoke("x")
    assert [call["name"] for call in made.tool_calls] == ["f", "g"]


def test_bound_tools_are_recorded() -> None:
    """What was bound is in the call's params, tools in OpenAI's form."""
    model = ScriptedModel(["a", "b"])
    model.bind_tools([search], tool_choice="search", strict=True).invoke("x")
    model.bind(temperature=0.5).invoke("x", stop=["END"])
    first, second = (seen.params for seen in model.calls)
    assert first["tools"][0]["function"]["name"] == "search"
    assert (first["tool_choice"], first["strict"]) == ("search", True)
    assert second == {"temperature": 0.5, "stop": ["END"]}


SCHEMAS: list[Any] = [
    (Verdict, Verdict(winner="x", score=1)),
    (Verdict.model_json_schema(), {"winner": "x", "score": 1}),
]


@pytest.mark.parametrize(("schema", "expected"), SCHEMAS, ids=["pydantic", "json schema"])
@pytest.mark.parametrize("answer", [{"winner": "x", "score": 1}, Verdict(winner="x", score=1)])
def test_structured_output(schema: Any, expected: object, answer: Any) -> None:
    """A dict or an instance of the schema comes back parsed, in every way of asking."""
    model = ScriptedModel(default=answer)
    bound = model.with_structured_output(schema)
    assert bound.invoke("x") == expected
    assert asyncio.run(bound.ainvoke("x")) == expected
    assert list(bound.stream("x"))[-1] == expected
    assert model.calls[0].params["tools"][0]["function"]["name"] == "Verdict"


def test_structured_output_with_the_raw_message() -> None:
    """include_raw gives the tool call, the parsed value, or the parser's error."""
    model = ScriptedModel([{"winner": "x", "score": 1}, {"winner": "x"}, "no JSON at all"])
    bound = model.with_structured_output(Verdict, include_raw=True)
    good, wrong, text = (cast("dict[str, Any]", bound.invoke("x")) for _ in range(3))
    assert good["raw"].tool_calls[0]["name"] == "Verdict"
    assert (good["parsed"], good["parsing_error"]) == (Verdict(winner="x", score=1), None)
    assert wrong["parsed"] is None
    assert "score" in str(wrong["parsing_error"])
    assert (text["raw"].text, text["raw"].tool_calls) == ("no JSON at all", [])
    assert text["parsed"] is None


def test_text_stays_text_under_a_schema() -> None:
    """A plain string is no tool call, so that a model's refusal can be played."""
    assert ScriptedModel(["sorry"]).with_structured_output(Verdict).invoke("x") is None


def test_a_structured_answer_finds_its_tool() -> None:
    """The tool is the chosen one, else the one of the instance's class, else the only one."""
    tools: list[Any] = [search, Verdict]
    chosen: dict[str, Any] = {"type": "function", "function": {"name": "search"}}
    model = ScriptedModel(default=lambda _: Verdict(winner="x", score=1))
    asked = [
        model.bind_tools(tools, tool_choice="search"),
        model.bind_tools(tools, tool_choice=cast("Any", chosen)),
        model.bind_tools(tools, tool_choice="any"),
        model.bind_tools([search]),
    ]
    names = [one.invoke("x").tool_calls[0]["name"] for one in asked]
    assert names == ["search", "search", "Verdict", "search"]


def test_a_structured_answer_is_text_where_no_tool_may_be_called() -> None:
    """With tool_choice none a dict is JSON text."""
    model = ScriptedModel([{"a": 1}])
    made = model.bind_tools([search], tool_choice="none").invoke("x")
    assert (made.text, made.tool_calls) == ('{"a": 1}', [])


def test_a_structured_answer_that_fits_several_tools_is_refused() -> None:
    """The model never guesses a tool: the error names the tools and the way out."""
    model = ScriptedModel([{"item": "tea"}])
    with pytest.raises(ValueError, match="search, order; script Answer"):
        model.bind_tools([search, order]).invoke("x")


# The evidence


@every_way
def test_calls_are_deep_copies(ask: Ask) -> None:
    """Changing a message or a parameter after the call does not change what was seen."""
    message = HumanMessage([{"type": "text", "text": "before"}])
    options = {"nested": [1]}
    model = ScriptedModel(["a"])
    ask(model, [SystemMessage("s"), message], options=options)
    cast("list[dict[str, Any]]", message.content)[0]["text"] = "after"
    options["nested"].append(2)
    (seen,) = model.calls
    assert [one.text for one in seen.messages] == ["s", "before"]
    assert seen.params == {"options": {"nested": [1]}}


def test_calls_cannot_be_changed_from_outside() -> None:
    """The list of calls is a copy and its records are frozen."""
    model = ScriptedModel(["a"])
    model.invoke("x")
    model.calls.clear()
    (seen,) = model.calls
    with pytest.raises(AttributeError):
        seen.path = "other"  # type: ignore[misc]


def test_seen_at_gives_the_calls_of_a_path() -> None:
    """Only the calls made at exactly that path, in order."""
    model = ScriptedModel(default="a")
    for path, text in [("p", "1"), ("p/q", "2"), ("p", "3")]:
        model.invoke(text, at(path))
    assert [seen.messages[0].text for seen in model.seen_at("p")] == ["1", "3"]
    assert model.seen_at("q") == []


def test_a_failed_call_is_seen() -> None:
    """A call that raises, or finds no answer, is on record."""
    model = ScriptedModel([OSError("x")])
    for error in (OSError, ScriptExhausted):
        with pytest.raises(error):
            model.invoke("x")
    assert len(model.calls) == 2


def test_metadata_that_is_no_dict_is_no_path() -> None:
    """A mark of another shape does not break the call."""
    model = ScriptedModel(default="a")
    model.invoke("x", {"metadata": {"mergepoint": "odd"}})
    model.invoke("x", {"metadata": {"mergepoint": {}}})
    assert [seen.path for seen in model.calls] == ["", ""]


def test_calls_from_many_threads_lose_nothing() -> None:
    """Under threads each answer is given once and each call recorded once."""
    model = ScriptedModel([str(number) for number in range(200)])
    got: list[str] = []
    threads = [
        threading.Thread(target=lambda: got.extend(model.invoke("x").text for _ in range(25)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got, key=int) == [str(number) for number in range(200)]
    assert len(model.calls) == 200


def test_batch_takes_one_answer_each() -> None:
    """Batches in threads and in tasks take as many answers as they have inputs."""
    model = ScriptedModel(["a", "b", "c", "d"])
    made = [*model.batch(["1", "2"]), *asyncio.run(model.abatch(["3", "4"]))]
    assert sorted(one.text for one in made) == ["a", "b", "c", "d"]


def test_assert_used_up_lists_what_is_left() -> None:
    """Every list with answers left is named with their number and the next one."""
    model = ScriptedModel(["a", "b"], by_path={"p": "c"}, by_prompt={"q": "d", "r": "e"})
    model.invoke("q")
    with pytest.raises(AssertionError) as caught:
        model.assert_used_up()
    text = str(caught.value)
    assert "by_path 'p': 1 (next 'c')" in text
    assert "by_prompt 'r': 1 (next 'e')" in text
    assert "in order: 2 (next 'a')" in text
    assert "'q'" not in text


def test_context_manager_asserts_at_a_clean_exit_only() -> None:
    """A clean exit with answers left fails; another error is not hidden; all used is quiet."""
    with ScriptedModel(["a"]) as model:
        assert model.invoke("x").text == "a"
    with pytest.raises(AssertionError, match="in order: 1"), ScriptedModel(["a"]):
        pass
    with pytest.raises(OSError, match="mine"), ScriptedModel(["a"]):
        raise OSError("mine")


# What the library does to it at run time


class Mixin:
    """Stands for a layer that is put under the model's own class."""

    def _stream(self, *args: Any, **kwargs: Any) -> Iterator[ChatGenerationChunk]:
        for chunk in super()._stream(*args, **kwargs):  # type: ignore[misc]
            assert chunk.text != "forbidden"
            yield chunk


def reclassed(model: ScriptedModel) -> ScriptedModel:
    """Return a copy whose class is made at run time."""
    made = copy.copy(model)
    made.__class__ = type("Wrapped", (Mixin, ScriptedModel), {})
    return made


@pytest.mark.parametrize(
    "change",
    [
        copy.copy,
        copy.deepcopy,
        ScriptedModel.model_copy,
        lambda model: model.model_copy(update={"model_name": "other"}),
        reclassed,
    ],
)
@every_way
def test_copies_share_script_and_calls(
    ask: Ask, change: Callable[[ScriptedModel], ScriptedModel]
) -> None:
    """A copy, or a copy of another class, goes on in the same script and the same record."""
    model = ScriptedModel(["a", "c"], by_path={"p": "b"})
    other = change(model)
    assert other is not model
    given = [ask(model, "1"), ask(other, "2", config=at("p")), ask(other, "3")]
    assert [one.text for one in given] == ["a", "b", "c"]
    assert [seen.messages[0].text for seen in model.calls] == ["1", "2", "3"]
    assert model.calls == other.calls
    model.assert_used_up()


def test_identity_holds_no_answers() -> None:
    """Type, provider and name identify the model, in a class made at run time too."""
    model = ScriptedModel(["secret"], model_name="tiny")
    assert model._llm_type == "scripted"
    assert model.asdict() == {"model_name": "tiny", "_type": "scripted"}
    assert "secret" not in repr(model)
    params = reclassed(model)._get_ls_params()
    assert (params["ls_provider"], params["ls_model_name"]) == ("scripted", "tiny")


def test_seen_is_a_plain_value() -> None:
    """Two records of equal calls are equal."""
    model = ScriptedModel(default="a")
    message: list[BaseMessage] = [HumanMessage("x", id="1")]
    model.invoke(message, at("p"))
    assert model.calls == [Seen("p", (HumanMessage("x", id="1"),), {})]
