"""The scripted server: OpenAI's wire format, its faults, and connections that end cleanly."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import socket
import threading
import warnings
from collections.abc import Callable
from contextlib import closing
from typing import Any, cast
from urllib.parse import urlsplit

import openai
import pytest
from langchain_core.messages import AIMessage, AIMessageChunk, HumanMessage, SystemMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel
from tests import provider

from mergepoint.testing.server import Body, Exchange, ModelServer, ServerReply

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


def client(server: ModelServer, **fields: Any) -> ChatOpenAI:
    """Give LangChain's OpenAI model, pointed at the server."""
    key: Any = "x"
    settings = {"model": "m", "max_retries": 0, **fields}
    return ChatOpenAI(base_url=server.url, api_key=key, **settings)


def joined(chunks: list[AIMessageChunk]) -> AIMessage:
    """Add up the chunks of a stream."""
    whole = chunks[0]
    for chunk in chunks[1:]:
        whole = whole + chunk
    return whole


def invoke(model: Any, given: Any) -> AIMessage:
    """Ask by invoke."""
    return cast("AIMessage", model.invoke(given))


def ainvoke(model: Any, given: Any) -> AIMessage:
    """Ask by ainvoke."""
    return cast("AIMessage", asyncio.run(model.ainvoke(given)))


def stream(model: Any, given: Any) -> AIMessage:
    """Ask by stream."""
    return joined(list(model.stream(given)))


def astream(model: Any, given: Any) -> AIMessage:
    """Ask by astream."""

    async def collect() -> list[AIMessageChunk]:
        return [chunk async for chunk in model.astream(given)]

    return joined(asyncio.run(collect()))


PARTS = [{"type": "text", "text": "a b"}, {"type": "text", "text": "c"}]

every_way = pytest.mark.parametrize("ask", [invoke, ainvoke, stream, astream])


def connect(server: ModelServer) -> http.client.HTTPConnection:
    """Open a plain connection."""
    return http.client.HTTPConnection(urlsplit(server.url).netloc, timeout=5)


def post(connection: http.client.HTTPConnection, body: object, path: str = "") -> tuple[int, Body]:
    """Send a body over an open connection and read the answer."""
    data = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path or "/v1/chat/completions", data)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def asked(*roles: str, **fields: Any) -> Body:
    """Return the body of a request whose messages have these roles."""
    messages = [{"role": role, "content": f"{role} says"} for role in roles]
    return {"model": "m", "messages": messages, **fields}


def ask_plainly(server: ModelServer, body: object, path: str = "") -> tuple[int, Body]:
    """Send one request over a connection of its own."""
    with closing(connect(server)) as connection:
        return post(connection, body, path)


def raw_exchange(server: ModelServer, data: bytes) -> bytes:
    """Send bytes and read until the server closes."""
    parts = urlsplit(server.url)
    with socket.create_connection((str(parts.hostname), parts.port or 0), timeout=5) as peer:
        peer.sendall(data)
        return b"".join(iter(lambda: peer.recv(65536), b""))


def raw_stream(server: ModelServer, **fields: Any) -> list[str]:
    """Return the events of a stream as they went over the wire."""
    with closing(connect(server)) as connection:
        body = json.dumps(asked("user", stream=True, **fields))
        connection.request("POST", "/v1/chat/completions", body)
        answer = connection.getresponse()
        assert answer.headers["Content-Type"] == "text/event-stream"
        events = answer.read().decode().split("\n\n")
    assert events.pop() == ""
    return [event.removeprefix("data: ") for event in events]


# Answers as LangChain reads them


@every_way
def test_text_answers_in_order(ask: Ask) -> None:
    """LangChain's OpenAI model gets each text once, with usage, in every way of asking."""
    with ModelServer(["one two", ServerReply("three", usage=(70, 8))]) as server:
        model = client(server, stream_usage=True)
        first, second = ask(model, "a b c"), ask(model, "d")
    assert (first.text, second.text) == ("one two", "three")
    assert first.usage_metadata is not None
    assert first.usage_metadata["input_tokens"] == 3
    assert first.usage_metadata["output_tokens"] == 2
    assert second.usage_metadata is not None
    assert second.usage_metadata["total_tokens"] == 78
    assert first.response_metadata["finish_reason"] == "stop"
    assert first.response_metadata["model_name"] == "m"
    assert [exchange.status for exchange in server.log] == [200, 200]


def test_a_stream_gives_words() -> None:
    """The pieces of a stream are words with their following space."""
    with ModelServer(["  one two\nthree"]) as server:
        pieces = [chunk.content for chunk in client(server).stream("x") if chunk.content]
    assert pieces == ["  one ", "two\n", "three"]


@every_way
def test_empty_and_foreign_text(ask: Ask) -> None:
    """An empty answer and text beyond ASCII arrive unchanged."""
    with ModelServer(["", "Größe \u2028 日本"]) as server:
        model = client(server)
        assert [ask(model, "x").text for _ in range(2)] == ["", "Größe \u2028 日本"]


@every_way
def test_tool_calls(ask: Ask) -> None:
    """Tool calls arrive with name, arguments and id, beside text, or alone."""
    calls = [
        {"name": "search", "args": {"query": "größer als 3"}},
        {"name": "order", "args": {}, "id": "me"},
    ]
    with ModelServer(
        [ServerReply("wait", tool_calls=calls), ServerReply(tool_calls=calls[:1])]
    ) as server:
        model = client(server).bind_tools([search, order])
        both, alone = ask(model, "x"), ask(model, "x")
    assert both.text == "wait"
    assert [(call["name"], call["args"], call["id"]) for call in both.tool_calls] == [
        ("search", {"query": "größer als 3"}, "call_1_1"),
        ("order", {}, "me"),
    ]
    assert both.response_metadata["finish_reason"] == "tool_calls"
    assert (alone.text, alone.tool_calls[0]["id"]) == ("", "call_2_1")


@every_way
def test_unreadable_tool_arguments(ask: Ask) -> None:
    """Arguments given as text go out unread, so that a broken call can be played."""
    with ModelServer([ServerReply(tool_calls=[{"name": "search", "args": "]no"}])]) as server:
        made = ask(client(server).bind_tools([search]), "x")
    assert made.tool_calls == []
    assert made.invalid_tool_calls[0]["args"] == "]no"


# OpenAI's client dumps a model it has parsed itself with this warning.
@pytest.mark.filterwarnings("ignore:Pydantic serializer warnings:UserWarning")
@pytest.mark.parametrize("method", ["json_schema", "function_calling", "json_mode"])
@pytest.mark.parametrize("streaming", [False, True])
def test_structured_output(method: Any, streaming: bool) -> None:  # noqa: FBT001
    """A dict answers each of LangChain's methods for structured output, streamed or not."""
    with ModelServer(lambda _: {"winner": "é", "score": 1}) as server:
        model = client(server, streaming=streaming)
        bound = model.with_structured_output(Verdict, method=method)
        assert bound.invoke("give JSON") == Verdict(winner="é", score=1)
        assert provider.on_a_loop(bound.ainvoke("give JSON")) == Verdict(winner="é", score=1)
    asks_tool = "tools" in server.log[0].body
    assert asks_tool == (method == "function_calling")


def test_a_dict_becomes_a_call_of_the_tool_that_is_offered() -> None:
    """The tool is the chosen one, else the only one; where none may be called it is JSON text."""
    with ModelServer(lambda _: {"item": "tea"}) as server:
        model = client(server)
        chosen = model.bind_tools([search, order], tool_choice="order").invoke("x")
        only = model.bind_tools([search]).invoke("x")
        none = model.bind_tools([search], tool_choice="none").invoke("x")
        free = model.invoke("x")
    assert [one.tool_calls[0]["name"] for one in (chosen, only)] == ["order", "search"]
    assert [one.text for one in (none, free)] == ['{"item": "tea"}'] * 2


def test_a_dict_that_fits_several_tools_is_refused() -> None:
    """The server never guesses a tool: status 400 names the tools and the way out."""
    with ModelServer([{"item": "tea"}]) as server:
        model = client(server).bind_tools([search, order])
        with pytest.raises(openai.BadRequestError, match="search, order: script ServerReply"):
            model.invoke("x")


@pytest.mark.parametrize("ask", [invoke, ainvoke])
def test_content_goes_out_as_it_is(ask: Ask) -> None:
    """Content of any form replaces the text, for providers that answer in parts."""
    with ModelServer([ServerReply("unused", content=PARTS)]) as server:
        made = ask(client(server), "x")
    assert made.content == PARTS
    assert made.usage_metadata is not None
    assert made.usage_metadata["output_tokens"] == 3


def test_parts_are_streamed_one_by_one() -> None:
    """A list of parts goes out one part a chunk."""
    with ModelServer([ServerReply(content=PARTS)]) as server:
        events = [json.loads(event) for event in raw_stream(server)[1:-2]]
    deltas = [event["choices"][0]["delta"] for event in events]
    assert deltas == [{"content": [part]} for part in PARTS]


def test_a_callable_gets_the_body() -> None:
    """A callable sees the request and may change it without changing the log."""

    def echo(body: Body) -> ServerReply:
        text = body["messages"].pop()["content"]
        return ServerReply(f"{body['model']}: {text}")

    with ModelServer(echo) as server:
        assert client(server, temperature=0.5).invoke("hello").text == "m: hello"
    (exchange,) = server.log
    assert (exchange.method, exchange.path) == ("POST", "/v1/chat/completions")
    assert exchange.body["messages"] == [{"role": "user", "content": "hello"}]
    assert exchange.body["temperature"] == 0.5


# The wire itself


def test_stream_events_on_the_wire() -> None:
    """A stream opens with the role, ends with its reason and the end mark, all under one id."""
    with ModelServer(["a b"]) as server:
        *events, end = raw_stream(server)
    chunks = [json.loads(event) for event in events]
    assert end == "[DONE]"
    assert {(chunk["id"], chunk["object"]) for chunk in chunks} == {
        ("chatcmpl-1", "chat.completion.chunk")
    }
    assert [chunk["choices"][0]["delta"] for chunk in chunks] == [
        {"role": "assistant", "content": ""},
        {"content": "a "},
        {"content": "b"},
        {},
    ]
    reasons = [chunk["choices"][0]["finish_reason"] for chunk in chunks]
    assert reasons == [None, None, None, "stop"]
    assert not any("usage" in chunk for chunk in chunks)


def test_content_is_null_beside_a_tool_call_alone() -> None:
    """A message of nothing but tool calls has no content, as OpenAI sends it."""
    with ModelServer([ServerReply(tool_calls=[{"name": "search", "args": {}}])]) as server:
        _, body = ask_plainly(server, asked("user"))
    assert body["choices"][0]["message"]["content"] is None
    assert body["choices"][0]["finish_reason"] == "tool_calls"


def test_usage_chunk_comes_when_asked_for() -> None:
    """With include_usage the last chunk has usage and no choice, the others a null usage."""
    with ModelServer([ServerReply("a b", usage=(3, 4))]) as server:
        *events, _ = raw_stream(server, stream_options={"include_usage": True})
    *chunks, last = [json.loads(event) for event in events]
    assert {str(chunk["usage"]) for chunk in chunks} == {"None"}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert (last["choices"], last["usage"]) == ([], usage)


def test_models_are_listed() -> None:
    """OpenAI's client lists the models the server was given."""
    with (
        ModelServer([], models=("a", "b")) as server,
        openai.OpenAI(base_url=server.url, api_key="x", max_retries=0) as api,
    ):
        assert [model.id for model in api.models.list()] == ["a", "b"]
    assert server.log == [Exchange("GET", "/v1/models", {}, 200)]


def test_kept_connections_serve_every_kind_of_answer() -> None:
    """One connection serves answers, errors and streams after each other."""
    script: list[Any] = ["a", ServerReply("no", status=429), "b c", "d"]
    with (
        ModelServer(script, keep_alive=True) as server,
        closing(connect(server)) as connection,
    ):
        assert post(connection, asked("user"))[0] == 200
        port = connection.sock.getsockname()[1]
        assert post(connection, asked("user"))[0] == 429
        assert post(connection, b"{", "/v1/chat/completions")[0] == 400
        assert post(connection, asked("user"), "/elsewhere")[0] == 404
        connection.request("GET", "/v1/chat/completions")
        assert connection.getresponse().read().startswith(b'{"error":')
        connection.request("POST", "/v1/chat/completions", json.dumps(asked("user", stream=True)))
        assert connection.getresponse().read().endswith(b"[DONE]\n\n")
        assert post(connection, asked("user"))[1]["choices"][0]["message"]["content"] == "d"
        assert connection.sock.getsockname()[1] == port


def test_connections_are_closed_after_an_answer_unless_kept() -> None:
    """Without keep_alive the answer says that the connection ends, and it ends."""
    body = json.dumps(asked("user")).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n"
    with ModelServer(["a"]) as server:
        answer = raw_exchange(server, head.encode() + body)
    assert b"Connection: close\r\n" in answer
    assert answer.count(b"HTTP/1.1 200 OK") == 1


def test_one_model_may_be_used_in_several_event_loops() -> None:
    """A model whose library pools connections works in one loop after the other."""
    with ModelServer(["a", "b", "c"]) as server:
        model = client(server)
        assert [ainvoke(model, "x").text for _ in range(3)] == ["a", "b", "c"]


def test_requests_side_by_side() -> None:
    """Requests are served at the same time: each of these waits until all have come."""
    barrier = threading.Barrier(8, timeout=5)

    def together(body: Body) -> str:
        barrier.wait()
        return str(body["messages"][0]["content"])

    async def many(model: ChatOpenAI) -> list[str]:
        made = await asyncio.gather(*(model.ainvoke(str(number)) for number in range(8)))
        return [one.text for one in made]

    with ModelServer(together) as server:
        assert provider.on_a_loop(many(client(server))) == [str(number) for number in range(8)]
    assert len(server.log) == 8


# Faults


@pytest.mark.parametrize(
    ("status", "error", "code"),
    [
        (400, openai.BadRequestError, "invalid_request"),
        (401, openai.AuthenticationError, "invalid_api_key"),
        (404, openai.NotFoundError, "not_found"),
        (422, openai.UnprocessableEntityError, "invalid_request"),
        (429, openai.RateLimitError, "rate_limit_exceeded"),
        (500, openai.InternalServerError, "server_error"),
        (503, openai.InternalServerError, "server_error"),
    ],
)
def test_statuses_are_openai_errors(
    status: int, error: type[openai.APIStatusError], code: str
) -> None:
    """A status of 400 or above is the client's matching exception, with the script's words."""
    with ModelServer([ServerReply("my words", status=status)]) as server:
        model = client(server)
        with pytest.raises(error, match="my words") as caught:
            model.invoke("x")
    assert (caught.value.status_code, caught.value.code) == (status, code)
    assert [exchange.status for exchange in server.log] == [status]


@every_way
def test_an_error_ends_one_request_only(ask: Ask) -> None:
    """After an error, streamed or not, the same model gets the next line."""
    with ModelServer([ServerReply("my words", status=500), "after"]) as server:
        model = client(server)
        with pytest.raises(openai.InternalServerError, match="my words"):
            ask(model, "x")
        assert ask(model, "x").text == "after"


def test_an_error_without_words_has_some() -> None:
    """The message of an error tells the status where the script says nothing."""
    with ModelServer([ServerReply(status=500)]) as server:
        status, body = ask_plainly(server, asked("user"))
    assert (status, body["error"]["message"]) == (500, "scripted status 500")


@pytest.mark.parametrize(
    ("reply", "expected"),
    [
        (ServerReply(status=429), {"Retry-After": "1"}),
        (ServerReply(status=429, headers={"retry-after": "0.01"}), {"Retry-After": "0.01"}),
        (ServerReply("a", headers={"X-Mine": "y"}), {"X-Mine": "y", "Retry-After": None}),
    ],
)
def test_headers(reply: ServerReply, expected: dict[str, str | None]) -> None:
    """A 429 says when to try again; headers of the script go out and win."""
    with ModelServer([reply]) as server, closing(connect(server)) as connection:
        connection.request("POST", "/v1/chat/completions", json.dumps(asked("user")))
        answer = connection.getresponse()
        answer.read()
        for name, value in expected.items():
            assert answer.headers.get_all(name) == (value and [value])


def test_a_client_that_retries_gets_the_next_line() -> None:
    """OpenAI's client tries again after a 429, and the script goes on."""
    wait = {"Retry-After": "0.001"}
    with ModelServer([ServerReply(status=429, headers=wait), "a"]) as server:
        model = client(server, max_retries=1)
        assert model.invoke("x").text == "a"
    assert [exchange.status for exchange in server.log] == [429, 200]


@pytest.mark.parametrize("after", [0, 2, 9])
def test_a_stream_is_dropped_where_told(after: int) -> None:
    """The connection ends after that many pieces, and the client notices that it was cut."""
    got: list[object] = []
    with ModelServer([ServerReply("a b c", drop_after=after), "next"]) as server:
        model = client(server)

        def read() -> None:
            for chunk in model.stream("x"):
                got.append(chunk.content)  # noqa: PERF401 - what came before the error counts

        with pytest.raises(openai.APIConnectionError):
            read()
        assert "".join(map(str, got)) == "a b c"[: after * 2]
        assert model.invoke("x").text == "next"
    assert server.log[0].status == 200


def test_a_whole_answer_is_dropped_too() -> None:
    """Without a stream the body breaks off, and no client takes it for an answer."""
    with ModelServer([ServerReply("a b c", drop_after=1)], keep_alive=True) as server:
        model = client(server)
        with pytest.raises(openai.APIConnectionError):
            model.invoke("x")


@pytest.mark.parametrize("after", [0, 2])
def test_a_cut_stream_ends_as_if_all_were_well(after: int) -> None:
    """Neither a finish reason nor [DONE] comes, and HTTP says nothing of it."""
    with ModelServer([ServerReply("a b c", cut_after=after)], keep_alive=True) as server:
        events = raw_stream(server, stream_options={"include_usage": True})
    found = [json.loads(event)["choices"][0] for event in events]
    assert [one["finish_reason"] for one in found] == [None] * (after + 1)
    assert "".join(one["delta"]["content"] for one in found) == "a b c"[: after * 2]


@every_way
def test_a_reason_fields_and_usage_go_out_as_they_are(ask: Ask) -> None:
    """What a provider may say of an answer can be scripted word for word."""
    usage = {"prompt_tokens": -3, "completion_tokens": 10**20, "total_tokens": 7}
    reply = ServerReply(
        "a b", finish_reason="length", usage=usage, fields={"reasoning_content": "hm"}
    )
    with ModelServer([reply]) as server:
        found = ask(client(server, stream_usage=True), "x")
    assert found.response_metadata["finish_reason"] == "length"
    assert found.usage_metadata is not None
    assert found.usage_metadata["input_tokens"] == -3
    assert found.usage_metadata["output_tokens"] == 10**20


def test_fields_of_the_message_are_on_the_wire() -> None:
    """Further fields stand in the message, and in a stream in a piece of their own."""
    reply = ServerReply("a", fields={"reasoning_content": "hm"})
    with ModelServer([reply, reply]) as server:
        whole = ask_plainly(server, asked("user"))[1]
        events = raw_stream(server)
    assert whole["choices"][0]["message"]["reasoning_content"] == "hm"
    assert any('"reasoning_content": "hm"' in event for event in events)


@pytest.mark.parametrize(
    ("raw", "kind"),
    [
        ("<html>Bad gateway</html>", "text/html"),
        ('{"choices": [', "application/json"),
        ("", "application/json"),
        (b"\xff", "application/json"),
        ({"error": {"message": "overloaded"}}, "application/json"),
        ('data: {"error": "x"}\n\n', "text/event-stream"),
    ],
)
def test_a_raw_body_goes_out_as_it_is(raw: Any, kind: str) -> None:
    """What is no completion can be sent with status 200, and the connection goes on."""
    with (
        ModelServer([ServerReply(raw=raw), "next"], keep_alive=True) as server,
        closing(connect(server)) as connection,
    ):
        connection.request("POST", "/v1/chat/completions", json.dumps(asked("user")))
        response = connection.getresponse()
        body = response.read()
        assert (response.status, response.headers["Content-Type"]) == (200, kind)
        assert (json.loads(body) if isinstance(raw, dict) else body.decode("latin1")) == (
            raw.decode("latin1") if isinstance(raw, bytes) else raw
        )
        assert post(connection, asked("user"))[0] == 200


def test_a_raw_body_answers_the_responses_interface_too() -> None:
    """/v1/responses gives what is scripted raw, and says so of anything else."""
    with ModelServer([ServerReply(raw={"id": "r"}), "text"]) as server:
        path = "/v1/responses"
        assert ask_plainly(server, {"model": "m", "input": "x"}, path) == (200, {"id": "r"})
        status, body = ask_plainly(server, {"model": "m", "input": "x"}, path)
    assert (status, body["error"]["message"]) == (400, "/v1/responses: script ServerReply(raw=...)")


def test_connections_are_counted() -> None:
    """Each exchange tells its connection, so that a test sees what a client keeps open."""
    with (
        ModelServer(["a", "b", "c"], keep_alive=True) as server,
        closing(connect(server)) as first,
        closing(connect(server)) as second,
    ):
        for connection in (first, first, second):
            post(connection, asked("user"))
    assert [exchange.connection for exchange in server.log] == [1, 1, 2]
    assert server.connections == 2


def test_delay_holds_up_its_own_answer_only() -> None:
    """A delayed reply waits by itself: the next request is answered meanwhile."""
    came = threading.Event()

    def answer(body: Body) -> ServerReply:
        came.set()
        text = body["messages"][0]["content"]
        return ServerReply(text, delay=3600 if text == "slow" else 0)

    async def both(model: ChatOpenAI) -> None:
        slow = asyncio.create_task(model.ainvoke("slow"))
        assert await asyncio.to_thread(came.wait, 5)
        assert (await model.ainvoke("fast")).text == "fast"
        assert not slow.done()
        slow.cancel()
        await asyncio.wait([slow])

    with ModelServer(answer) as server:
        provider.on_a_loop(both(client(server)))


def test_closing_does_not_wait_for_a_delay() -> None:
    """A server that is left while a reply is delayed ends the connection at once."""
    with ModelServer([ServerReply("never", delay=3600)]) as server:
        connection = connect(server)
        connection.request("POST", "/v1/chat/completions", json.dumps(asked("user")))
        while not server.log:
            threading.Event().wait(0.001)
    with closing(connection), pytest.raises(http.client.RemoteDisconnected):
        connection.getresponse()


def test_an_exhausted_script_says_so() -> None:
    """A request too many gets status 400, which no client tries again."""
    with ModelServer(["a"]) as server:
        model = client(server)
        model.invoke("x")
        with pytest.raises(openai.BadRequestError, match="the script is exhausted"):
            model.invoke("x")


def test_a_callable_that_fails_is_heard_of() -> None:
    """The error of a callable, or its wrong answer, reaches the client as status 500."""

    def failing(body: Body) -> ServerReply:
        assert body["messages"][0]["content"] != "bad", "my check"
        return cast("ServerReply", 3)

    with ModelServer(failing) as server:
        model = client(server)
        with pytest.raises(openai.InternalServerError, match="AssertionError: my check"):
            model.invoke("bad")
        with pytest.raises(openai.InternalServerError, match="int isn't a reply"):
            model.invoke("good")


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "not JSON"),
        (b"\xff", "not JSON"),
        (b"[1]", "JSON list"),
        ({"messages": [{"role": "user"}]}, "model:"),
        ({"model": "m"}, "messages:"),
        ({"model": "m", "messages": []}, "messages:"),
        ({"model": "m", "messages": ["x"]}, "messages:"),
    ],
)
def test_bad_bodies_are_refused(body: object, words: str) -> None:
    """What could be no chat completion is refused and takes nothing from the script."""
    with ModelServer(["a"]) as server:
        status, answer = ask_plainly(server, body)
        assert (status, words in answer["error"]["message"]) == (400, True)
        assert ask_plainly(server, asked("user"))[0] == 200
    assert [exchange.status for exchange in server.log] == [400, 200]


@pytest.mark.parametrize(
    ("request_", "status"),
    [
        (b"DELETE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n", 501),
        (b"nonsense here at all\r\n\r\n", 400),
        (b"GET /v1/models HTTP/9.9\r\n\r\n", 505),
        (b"POST /v1/x HTTP/1.1\r\nContent-Length: y\r\n\r\n", 411),
        (b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 411),
    ],
)
def test_what_is_no_request_here_gets_an_openai_error(request_: bytes, status: int) -> None:
    """Wrong methods and broken HTTP are answered in JSON, logged, and closed."""
    with ModelServer([], keep_alive=True) as server:
        head, _, body = raw_exchange(server, request_).partition(b"\r\n\r\n")
    assert json.loads(body)["error"]["message"]
    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert [exchange.status for exchange in server.log] == [status]


# Strict alternation


@pytest.mark.parametrize(
    "roles",
    [
        ["user"],
        ["system", "user"],
        ["user", "assistant", "user"],
        ["system", "user", "assistant", "user", "assistant"],
    ],
)
def test_alternating_roles_are_served(roles: list[str]) -> None:
    """User and assistant in turn, after an optional system message, is what a template takes."""
    with ModelServer(["a"], alternate=True) as server:
        assert ask_plainly(server, asked(*roles))[0] == 200


@pytest.mark.parametrize(
    ("roles", "words"),
    [
        (["system"], "open with a user message"),
        (["assistant"], "open with a user message"),
        (["system", "assistant"], "open with a user message"),
        (["system", "system", "user"], "open with a user message"),
        (["user", "user"], "message 1 has role 'user', expected 'assistant'"),
        (["user", "system"], "message 1 has role 'system'"),
        (["system", "user", "assistant", "assistant"], "message 3 has role 'assistant'"),
        (["user", "assistant", "tool"], "message 2 has role 'tool'"),
    ],
)
def test_roles_that_do_not_alternate_are_refused(roles: list[str], words: str) -> None:
    """Anything else gets status 400 that names the message, and takes nothing from the script."""
    with ModelServer(["a"], alternate=True) as server:
        status, answer = ask_plainly(server, asked(*roles))
        assert (status, words in answer["error"]["message"]) == (400, True)
        assert ask_plainly(server, asked("user"))[0] == 200
    assert server.log[0].body == asked(*roles)


def test_roles_are_free_unless_told() -> None:
    """Without alternate any order of roles is served, and langchain's roles arrive."""
    with ModelServer(["a"]) as server:
        client(server).invoke([HumanMessage("a"), HumanMessage("b"), SystemMessage("c")])
    roles = [message["role"] for message in server.log[0].body["messages"]]
    assert roles == ["user", "user", "system"]


def test_a_refusal_reaches_langchain() -> None:
    """LangChain raises the refusal of an alternating server as a bad request."""
    with ModelServer(["a"], alternate=True) as server:
        model = client(server)
        with pytest.raises(openai.BadRequestError, match="must alternate user/assistant"):
            model.invoke([HumanMessage("a"), HumanMessage("b")])


# Opening and closing


@pytest.mark.campaign
def test_nothing_is_left_open() -> None:
    """Leaving the server ends its threads and idle connections without a warning or a word."""
    before = set(threading.enumerate())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        with ModelServer(["a"], keep_alive=True) as server:
            idle, used = connect(server), connect(server)
            idle.connect()
            post(used, asked("user"))
            port = urlsplit(server.url).port
        idle.close()
        used.close()
        gc.collect()
    assert set(threading.enumerate()) == before
    assert [str(one.message) for one in caught] == []
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port or 0), timeout=5)


def test_nothing_is_printed(capfd: pytest.CaptureFixture[str]) -> None:
    """Answers, errors, broken requests and clients that hang up leave no line on stderr."""
    with ModelServer(lambda _: "word " * 100_000) as server:
        ask_plainly(server, asked("user"))
        ask_plainly(server, b"{")
        raw_exchange(server, b"nonsense here at all\r\n\r\n")
        hasty = connect(server)
        hasty.request("POST", "/v1/chat/completions", json.dumps(asked("user", stream=True)))
        hasty.getresponse().close()
        hasty.close()
    assert capfd.readouterr() == ("", "")


def test_a_server_may_be_opened_again() -> None:
    """Its script and log go on, on another port or the same; the URL is there only while open."""
    server = ModelServer(["a", "b"])
    for text in ("a", "b"):
        with pytest.raises(RuntimeError, match="not open"):
            _ = server.url
        with server:
            assert server.url.endswith("/v1")
            assert client(server).invoke("x").text == text
            with pytest.raises(RuntimeError, match="already open"), server:
                pass
    assert len(server.log) == 2


def test_an_error_inside_comes_out() -> None:
    """The server hides no error of the block it serves, and closes all the same."""
    before = set(threading.enumerate())
    with pytest.raises(OSError, match="mine"), ModelServer([]):
        raise OSError("mine")
    assert set(threading.enumerate()) == before


def test_the_log_cannot_be_changed_from_outside() -> None:
    """The log is a copy and its records are frozen."""
    with ModelServer(["a"]) as server:
        ask_plainly(server, asked("user"))
    server.log.clear()
    (exchange,) = server.log
    with pytest.raises(AttributeError):
        exchange.status = 500  # type: ignore[misc]


@pytest.mark.parametrize("script", ["text", 3, [3], [None]])
def test_a_wrong_script_is_refused(script: Any) -> None:
    """What could answer nothing is a TypeError when the server is made."""
    with pytest.raises(TypeError, match="script:"):
        ModelServer(script)


@pytest.mark.parametrize(
    "fields",
    [{"status": 100}, {"status": 600}, {"delay": -1}, {"drop_after": -1}, {"cut_after": -1}],
)
def test_a_wrong_reply_is_refused(fields: dict[str, Any]) -> None:
    """A reply that could not be sent is a ValueError when it is written."""
    with pytest.raises(ValueError, match="Reply:"):
        ServerReply(**fields)
