"""A chat-completions server on this machine that answers from a script.

The wire format is OpenAI's: https://platform.openai.com/docs/api-reference/chat
The module is longer than most because it holds three things that make no sense apart: the script,
the wire format and the connections.
"""

from __future__ import annotations

import json
import socket
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import KW_ONLY, dataclass
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from re import findall
from socketserver import TCPServer
from types import TracebackType
from typing import Any, Final, Self, TypeAlias, cast

Body: TypeAlias = dict[str, Any]
"""A JSON object: what was asked, or what is answered."""

Line: TypeAlias = "Reply | str | dict[str, Any]"
"""One line of a script; text and a dict stand for a Reply of them."""

_CODES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


@dataclass(frozen=True)
class Reply:
    """One answer of the server.

    `text` is the answer, or the error's message where `status` is 400 or above. A dict is a call of
    the tool the request offers, JSON text where it offers none. `content` goes out as it is,
    instead of the text. `tool_calls` are `{"name", "args"}` with an optional `"id"`; args given as
    text are sent unread. `usage` is (prompt tokens, completion tokens); without it words are
    counted. `delay` is in seconds. With `drop_after` the connection is closed after that many
    pieces of the answer and before its end; without a stream, halfway through the body.

    Raises ValueError for a status that is no HTTP answer or numbers below zero.
    """

    text: str | dict[str, Any] = ""
    _: KW_ONLY
    status: int = 200
    headers: Mapping[str, str] | None = None
    delay: float = 0.0
    drop_after: int | None = None
    usage: tuple[int, int] | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    content: Any = None

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise ValueError(f"Reply: status is {self.status}; give one from 200 to 599")
        if self.delay < 0 or (self.drop_after or 0) < 0:
            raise ValueError("Reply: delay and drop_after cannot be negative")


@dataclass(frozen=True)
class Exchange:
    """One request and the status it was answered with; `body` is empty where none could be read."""

    method: str
    path: str
    body: Body
    status: int


class _RefusedError(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.reply = Reply(message, status=status)


def _disorder(messages: Sequence[Body]) -> str | None:
    """Tell what a chat template with strictly alternating roles has against these messages."""
    roles = [message.get("role") for message in messages]
    start = 1 if roles[:1] == ["system"] else 0
    if roles[start : start + 1] != ["user"]:
        return "after an optional system message the conversation must open with a user message"
    for index, role in enumerate(roles[start:], start):
        expected = ("user", "assistant")[(index - start) % 2]
        if role != expected:
            return (
                f"roles must alternate user/assistant: message {index} has role {role!r}, "
                f"expected {expected!r}"
            )
    return None


def _words(value: object) -> list[str]:
    return findall(r"\s*\S+\s*|\s+", value) if isinstance(value, str) else []


def _text(content: object) -> str:
    if isinstance(content, list):
        return " ".join(str(part.get("text") or "") for part in content if isinstance(part, dict))
    return str(content or "")


def _offered(reply: Reply, body: Body) -> str | None:
    """Name the tool that a dict answers for; None where the request wants it as content."""
    choice = body.get("tool_choice")
    names = [tool["function"]["name"] for tool in body.get("tools") or ()]
    if not isinstance(reply.text, dict) or not names or choice == "none":
        return None
    if isinstance(choice, dict):
        return str(choice["function"]["name"])
    if len(names) == 1:
        return str(names[0])
    raise _RefusedError(
        400,
        f"the scripted dict fits any of the tools {', '.join(names)}: "
        "script Reply(tool_calls=[{'name': ..., 'args': ...}])",
    )


def _message(reply: Reply, body: Body, number: int) -> Body:
    """Make the assistant message of a reply."""
    name = _offered(reply, body)
    calls = [{"name": name, "args": reply.text}] if name else []
    made: Body = {"role": "assistant", "content": reply.content}
    if reply.content is None and name is None:
        is_text = isinstance(reply.text, str)
        made["content"] = reply.text if is_text else json.dumps(reply.text, ensure_ascii=False)
    calls = [_tool_call(*one, number) for one in enumerate([*calls, *reply.tool_calls], start=1)]
    if calls:
        made["tool_calls"] = calls
        made["content"] = made["content"] or None
    return made


def _tool_call(index: int, call: Mapping[str, Any], number: int) -> Body:
    args = call["args"]
    return {
        "id": call.get("id") or f"call_{number}_{index}",
        "type": "function",
        "function": {
            "name": call["name"],
            "arguments": args if isinstance(args, str) else json.dumps(args, ensure_ascii=False),
        },
    }


def _usage(reply: Reply, body: Body, message: Body) -> Body:
    calls = [call["function"]["arguments"] for call in message.get("tool_calls", ())]
    given, made = reply.usage or (
        sum(len(_text(one.get("content")).split()) for one in body["messages"]),
        sum(len(text.split()) for text in [_text(message["content"]), *calls]),
    )
    return {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made}


@dataclass(frozen=True)
class _Completion:
    """The answer to one request, whole or in pieces."""

    number: int
    model: str
    message: Body
    usage: Body
    stream: bool
    with_usage: bool

    def _frame(self, kind: str, **fields: Any) -> Body:
        made = {"id": f"chatcmpl-{self.number}", "object": kind, "created": 0, "model": self.model}
        return {**made, **fields}

    def _finish(self) -> str:
        return "tool_calls" if "tool_calls" in self.message else "stop"

    def whole(self) -> Body:
        choice = {
            "index": 0,
            "message": {**self.message, "refusal": None},
            "logprobs": None,
            "finish_reason": self._finish(),
        }
        return self._frame("chat.completion", choices=[choice], usage=self.usage)

    def pieces(self) -> list[Body]:
        """Give the parts of the message that a stream carries, without its start and end."""
        content = self.message["content"]
        parts: list[Body] = [{"content": word} for word in _words(content)]
        if isinstance(content, list):
            parts = [{"content": [block]} for block in content]
        for index, call in enumerate(self.message.get("tool_calls", ())):
            start = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
            parts.append({"tool_calls": [{"index": index, **start}]})
            parts += [
                {"tool_calls": [{"index": index, "function": {"arguments": word}}]}
                for word in _words(call["function"]["arguments"])
            ]
        return parts

    def events(self, drop_after: int | None = None) -> Iterator[Body]:
        """Give the chunks of a stream, or those that come before it is dropped."""
        yield self._chunk({"role": "assistant", "content": ""})
        yield from map(self._chunk, self.pieces()[:drop_after])
        if drop_after is not None:
            return
        yield self._chunk({}, self._finish())
        if self.with_usage:
            yield self._frame("chat.completion.chunk", choices=[], usage=self.usage)

    def _chunk(self, delta: Body, finish: str | None = None) -> Body:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.with_usage else {}
        return self._frame("chat.completion.chunk", choices=[choice], **usage)


def _complete(reply: Reply, body: Body, number: int) -> _Completion:
    message = _message(reply, body, number)
    return _Completion(
        number=number,
        model=body["model"],
        message=message,
        usage=_usage(reply, body, message),
        stream=bool(body.get("stream")),
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
    )


def _reply(line: Line) -> Reply:
    if isinstance(line, Reply):
        return line
    if isinstance(line, (str, dict)):
        return Reply(line)
    raise TypeError(f"script: {type(line).__name__} is no reply; give Reply, str or dict")


def _read(raw: bytes) -> Body:
    """Parse a request's body. Raises _RefusedError for what is no JSON object."""
    try:
        body = json.loads(raw)
    except ValueError as error:
        raise _RefusedError(400, f"the body is not JSON: {error}") from error
    if not isinstance(body, dict):
        raise _RefusedError(400, f"the body is a JSON {type(body).__name__}, not an object")
    return body


def _require(body: Body) -> None:
    """Raise _RefusedError unless the body could be a chat completion's."""
    messages = body.get("messages")
    if not isinstance(body.get("model"), str):
        raise _RefusedError(400, "model: give the name of a model")
    if not isinstance(messages, list) or not messages:
        raise _RefusedError(400, "messages: give a list with one message at least")
    if not all(isinstance(message, dict) for message in messages):
        raise _RefusedError(400, "messages: every one must be an object")


def _error(reply: Reply) -> Body:
    kind, code = _CODES.get(reply.status, ("server_error", "server_error"))
    if 400 <= reply.status < 500 and reply.status not in _CODES:
        kind, code = _CODES[400]
    message = _text(reply.text) or f"scripted status {reply.status}"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


def _headers(reply: Reply) -> dict[str, str]:
    given = dict(reply.headers or {})
    if reply.status == 429 and "retry-after" not in map(str.lower, given):
        given["Retry-After"] = "1"
    return given


class _Handler(BaseHTTPRequestHandler):
    """HTTP on one connection; what to answer is the server's business."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    @property
    def _owner(self) -> ModelServer:
        return cast("_Listener", self.server).owner

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Stay silent: the server's log is the record."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse in OpenAI's form what is no request, and close the connection."""
        self.close_connection = True
        # What has no readable first line counts as HTTP/0.9, which would get no status line back.
        self.request_version = self.protocol_version
        made = Exchange(getattr(self, "command", "") or "", getattr(self, "path", ""), {}, code)
        self._owner._record(made)
        self._send(Reply(message or explain or HTTPStatus(code).phrase, status=code))

    def do_GET(self) -> None:
        """Answer with the list of models, the one thing there is to get."""
        self._answer()

    def do_POST(self) -> None:
        """Answer with the script's next line."""
        self._answer()

    def _answer(self) -> None:
        length = self.headers.get("Content-Length", "0")
        if not length.isdigit() or "Transfer-Encoding" in self.headers:
            self.send_error(411, "give the body's Content-Length")
            return
        raw = self.rfile.read(int(length))
        self.close_connection = self.close_connection or not self._owner._keep_alive
        reply, made = self._owner._answer_to(self.command, self.path, raw)
        if self._owner._closing.wait(reply.delay):
            self.close_connection = True
        elif isinstance(made, _Completion) and made.stream:
            self._stream(reply, made)
        else:
            self._send(reply, made.whole() if isinstance(made, _Completion) else made)

    def _head(self, reply: Reply, headers: Mapping[str, str]) -> None:
        self.send_response(reply.status)
        for name, value in {**headers, **_headers(reply)}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, reply: Reply, made: Body | None = None) -> None:
        data = json.dumps(_error(reply) if made is None else made).encode()
        self._head(reply, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        if reply.drop_after is not None:
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def _stream(self, reply: Reply, made: _Completion) -> None:
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self._head(reply, kind)
        for event in made.events(reply.drop_after):
            self._write_event(json.dumps(event))
        if reply.drop_after is not None:
            self.close_connection = True
        else:
            self._write_event("[DONE]")
            self.wfile.write(b"0\r\n\r\n")

    def _write_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))


class _Listener(ThreadingHTTPServer):
    """The listening socket; it knows its open connections, so that it can end them."""

    daemon_threads = False
    request_queue_size = 256

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        self._open: set[socket.socket] = set()
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        """Bind without the name look-up of the base class, which may leave the machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Note the connection, then serve it in a thread."""
        with self._lock:
            self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._lock:
            self._open.discard(request)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Stay silent where the client, or our own closing, ended the connection."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop accepting, end every connection and wait for its thread."""
        self.shutdown()
        with self._lock:
            for connection in self._open:
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class ModelServer:
    """An OpenAI-compatible server on 127.0.0.1 whose answers are scripted; a context manager.

    `script` is a list of `Reply`, text or dict, used in order of requests, or a callable that is
    given the request's body and returns one of these. It answers `POST /v1/chat/completions`, whole
    or streamed, and `GET /v1/models` with `models`. With `alternate` it refuses, with status 400,
    messages that do not alternate user/assistant after an optional system message, and takes
    nothing from the script for them.

    With `keep_alive` a connection serves many requests. Without it each is closed after its answer,
    because a client library that pools connections for an event loop fails when the next loop of
    the test finds one, and leaves it open at the end.

    A request that the script has no reply for gets status 400, a callable that raises status 500;
    the error's message says which.

    Raises TypeError for a script of anything else.
    """

    def __init__(
        self,
        script: Sequence[Line] | Callable[[Body], Line],
        *,
        alternate: bool = False,
        keep_alive: bool = False,
        models: Sequence[str] = ("scripted",),
    ) -> None:
        if not (callable(script) or isinstance(script, (list, tuple))):
            raise TypeError(f"script: give a list or a callable, not {type(script).__name__}")
        self._models = tuple(models)
        self._keep_alive = keep_alive
        self._closing = threading.Event()
        self._script = script if callable(script) else deque(_reply(line) for line in script)
        self._alternate = alternate
        self._log: list[Exchange] = []
        self._numbers = count(1)
        self._lock = threading.Lock()
        self._listener: _Listener | None = None
        self._thread: threading.Thread | None = None

    @property
    def url(self) -> str:
        """The base URL for clients. Raises RuntimeError while the server is not open."""
        if self._listener is None:
            raise RuntimeError(
                "ModelServer: not open; use it as `with ModelServer(...) as server:`"
            )
        return f"http://127.0.0.1:{self._listener.server_port}/v1"

    @property
    def log(self) -> list[Exchange]:
        """What was asked so far, in the order in which answers were chosen."""
        with self._lock:
            return list(self._log)

    def __enter__(self) -> Self:
        if self._listener is not None:
            raise RuntimeError("ModelServer: already open")
        self._closing.clear()
        self._listener = _Listener(self)
        serve = partial(self._listener.serve_forever, poll_interval=0.01)
        self._thread = threading.Thread(target=serve, name="ModelServer", daemon=True)
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._listener is not None and self._thread is not None:
            self._closing.set()
            self._listener.end()
            self._thread.join()
        self._listener = self._thread = None

    def _record(self, exchange: Exchange) -> None:
        """Append to the log."""
        with self._lock:
            self._log.append(exchange)

    def _answer_to(
        self, method: str, path: str, raw: bytes
    ) -> tuple[Reply, _Completion | Body | None]:
        """Choose and log the answer to a request: its reply, and what to send if no error."""
        body: Body = {}
        made: _Completion | Body | None = None
        try:
            if (method, path) == ("GET", "/v1/models"):
                reply, made = Reply(), self._list()
            elif (method, path) == ("POST", "/v1/chat/completions"):
                body = _read(raw)
                reply = self._next(body)
                made = _complete(reply, body, next(self._numbers)) if reply.status < 400 else None
            else:
                raise _RefusedError(404, f"there is no {method} {path} here")
        except _RefusedError as error:
            reply = error.reply
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear of it
            reply = Reply(f"the script failed: {type(error).__name__}: {error}", status=500)
        self._record(Exchange(method, path, body, reply.status))
        return reply, made

    def _list(self) -> Body:
        kind = {"object": "model", "created": 0, "owned_by": "script"}
        return {"object": "list", "data": [{"id": name, **kind} for name in self._models]}

    def _next(self, body: Body) -> Reply:
        _require(body)
        fault = _disorder(body["messages"]) if self._alternate else None
        if fault:
            raise _RefusedError(400, fault)
        if callable(self._script):
            return _reply(self._script(deepcopy(body)))
        with self._lock:
            if self._script:
                return self._script.popleft()
        raise _RefusedError(400, "the script is exhausted: add a Reply, or give a callable")
