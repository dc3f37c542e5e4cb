"""A chat-completions server on this machine that answers from a script.

The wire format is OpenAI's: https://platform.openai.com/docs/api-reference/chat

The module is longer than most because it contains three parts that belong together: the script, the
wire format, and the connections.
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
from dataclasses import KW_ONLY, dataclass, field
from functools import partial
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from re import findall
from socketserver import TCPServer
from typing import Any, Final, Self, TypeAlias, cast

from mergepoint.tree.prompts import as_text

Body: TypeAlias = dict[str, Any]
"""A JSON object: a request or a response."""

Line: TypeAlias = "ServerReply | str | dict[str, Any]"
"""One entry of a script; text and dicts stand for a ServerReply of them."""

_CODES: Final[Mapping[int, tuple[str, str]]] = {
    400: ("invalid_request_error", "invalid_request"),
    401: ("authentication_error", "invalid_api_key"),
    404: ("invalid_request_error", "not_found"),
    429: ("rate_limit_error", "rate_limit_exceeded"),
}


@dataclass(frozen=True)
class ServerReply:
    """One answer of the server.

    Args:
        text: The answer, or the error's message for a `status` of 400 or above. A dict is a call of
            the tool that the request offers, or JSON text if it offers none.
        status: HTTP status.
        headers: Additional HTTP headers.
        delay: Seconds before the answer.
        drop_after: Number of pieces after which the connection is closed early; without a stream,
            halfway through the body.
        usage: Prompt and completion tokens, or the usage object as sent; by default, words are
            counted.
        tool_calls: `{"name", "args"}` with an optional `"id"`; args as text are sent unparsed.
        content: Content that is sent unchanged, instead of the text.
        finish_reason: Default: "stop" or "tool_calls".
        fields: Additional fields of the message, such as `refusal` or `reasoning_content`.
        cut_after: Number of pieces after which a stream ends without finish reason, usage, or
            `[DONE]`, and without an HTTP error.
        raw: The body itself, for responses that aren't completions: HTML, half a JSON text,
            nothing, or a dict such as an error object with status 200.

    Raises:
        ValueError: The status isn't a final HTTP status, or a number is negative.
    """

    text: str | dict[str, Any] = ""
    _: KW_ONLY
    status: int = 200
    headers: Mapping[str, str] | None = None
    delay: float = 0.0
    drop_after: int | None = None
    usage: tuple[int, int] | Mapping[str, Any] | None = None
    tool_calls: Sequence[Mapping[str, Any]] = ()
    content: Any = None
    finish_reason: str | None = None
    fields: Mapping[str, Any] | None = None
    cut_after: int | None = None
    raw: str | bytes | Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        if not 200 <= self.status <= 599:
            raise ValueError(f"ServerReply: status is {self.status}; use one from 200 to 599")
        if self.delay < 0 or min(self.drop_after or 0, self.cut_after or 0) < 0:
            raise ValueError("ServerReply: delay, drop_after, and cut_after can't be negative")


@dataclass(frozen=True)
class Exchange:
    """One request and the status of its answer; `body` is empty if it couldn't be read.

    `connection` is the number of its connection, from 1.
    """

    method: str
    path: str
    body: Body
    status: int
    connection: int = field(default=0, compare=False)


class _RefusedError(Exception):
    """A request that gets an error instead of an answer."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.reply = ServerReply(message, status=status)


def _disorder(messages: Sequence[Body]) -> str | None:
    """Return the error of a chat template that requires strictly alternating roles, or None."""
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


def _offered(reply: ServerReply, body: Body) -> str | None:
    """Return the tool that a dict calls, or None if the request wants it as content."""
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
        "script ServerReply(tool_calls=[{'name': ..., 'args': ...}])",
    )


def _message(reply: ServerReply, body: Body, number: int) -> Body:
    name = _offered(reply, body)
    calls = [{"name": name, "args": reply.text}] if name else []
    made: Body = {"role": "assistant", "content": reply.content}
    if reply.content is None and name is None:
        made["content"] = as_text(reply.text)
    calls = [_tool_call(*one, number) for one in enumerate([*calls, *reply.tool_calls], start=1)]
    if calls:
        made["tool_calls"] = calls
        made["content"] = made["content"] or None
    return {**made, **(reply.fields or {})}


def _tool_call(index: int, call: Mapping[str, Any], number: int) -> Body:
    args = call["args"]
    return {
        "id": call.get("id") or f"call_{number}_{index}",
        "type": "function",
        "function": {
            "name": call["name"],
            "arguments": as_text(args),
        },
    }


def _usage(reply: ServerReply, body: Body, message: Body) -> Body:
    if isinstance(reply.usage, Mapping):
        return dict(reply.usage)
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
    reason: str | None = None

    def _frame(self, kind: str, **fields: Any) -> Body:
        made = {"id": f"chatcmpl-{self.number}", "object": kind, "created": 0, "model": self.model}
        return {**made, **fields}

    def _finish(self) -> str:
        return self.reason or ("tool_calls" if "tool_calls" in self.message else "stop")

    def whole(self) -> Body:
        choice = {
            "index": 0,
            "message": {"refusal": None, **self.message},
            "logprobs": None,
            "finish_reason": self._finish(),
        }
        return self._frame("chat.completion", choices=[choice], usage=self.usage)

    def pieces(self) -> list[Body]:
        """Return the parts of the message in a stream, without its start and end."""
        content = self.message["content"]
        known = ("role", "content", "tool_calls")
        parts: list[Body] = [{k: v} for k, v in self.message.items() if k not in known]
        parts += [{"content": word} for word in _words(content)]
        if isinstance(content, list):
            parts += [{"content": [block]} for block in content]
        for index, call in enumerate(self.message.get("tool_calls", ())):
            start = {**call, "function": {"name": call["function"]["name"], "arguments": ""}}
            parts.append({"tool_calls": [{"index": index, **start}]})
            parts += [
                {"tool_calls": [{"index": index, "function": {"arguments": word}}]}
                for word in _words(call["function"]["arguments"])
            ]
        return parts

    def events(self, end_after: int | None = None) -> Iterator[Body]:
        """Yield the chunks of a stream, up to where it is dropped or cut."""
        yield self._chunk({"role": "assistant", "content": ""})
        yield from map(self._chunk, self.pieces()[:end_after])
        # A dropped or cut stream has neither a finish reason nor usage.
        if end_after is not None:
            return
        yield self._chunk({}, self._finish())
        if self.with_usage:
            yield self._frame("chat.completion.chunk", choices=[], usage=self.usage)

    def _chunk(self, delta: Body, finish: str | None = None) -> Body:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        usage = {"usage": None} if self.with_usage else {}
        return self._frame("chat.completion.chunk", choices=[choice], **usage)


def _complete(reply: ServerReply, body: Body, number: int) -> _Completion:
    message = _message(reply, body, number)
    return _Completion(
        number=number,
        model=body["model"],
        message=message,
        usage=_usage(reply, body, message),
        stream=bool(body.get("stream")),
        with_usage=bool((body.get("stream_options") or {}).get("include_usage")),
        reason=reply.finish_reason,
    )


def _reply(line: Line) -> ServerReply:
    if isinstance(line, ServerReply):
        return line
    if isinstance(line, (str, dict)):
        return ServerReply(line)
    raise TypeError(f"script: {type(line).__name__} isn't a reply; use ServerReply, str, or dict")


def _read(raw: bytes) -> Body:
    """Return the parsed body of a request. Raise _RefusedError if it isn't a JSON object."""
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
        raise _RefusedError(400, "model: set the name of a model")
    if not isinstance(messages, list) or not messages:
        raise _RefusedError(400, "messages: pass a list with at least one message")
    if not all(isinstance(message, dict) for message in messages):
        raise _RefusedError(400, "messages: each message must be an object")


def _error(reply: ServerReply) -> Body:
    kind, code = _CODES.get(reply.status, ("server_error", "server_error"))
    if 400 <= reply.status < 500 and reply.status not in _CODES:
        kind, code = _CODES[400]
    message = _text(reply.text) or f"scripted status {reply.status}"
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


class _Handler(BaseHTTPRequestHandler):
    """HTTP on one connection; the server decides the answers."""

    protocol_version = "HTTP/1.1"
    # Nagle's algorithm would hold back small chunks until the client acknowledges earlier ones.
    disable_nagle_algorithm = True

    @property
    def _owner(self) -> ModelServer:
        return cast("_Listener", self.server).owner

    @property
    def _number(self) -> int:
        return cast("_Listener", self.server).number_of(self.connection)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Write nothing: the server's log is the record."""

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Refuse an unreadable request in OpenAI's form, and close the connection."""
        self.close_connection = True
        # A request without a readable first line counts as HTTP/0.9, which would get no status
        # line.
        self.request_version = self.protocol_version
        asked = getattr(self, "command", "") or "", getattr(self, "path", "")
        self._owner._record(Exchange(*asked, {}, code, self._number))
        self._send(ServerReply(message or explain or HTTPStatus(code).phrase, status=code))

    def do_GET(self) -> None:
        """Answer with the list of models, or with the script's next reply."""
        length = self.headers.get("Content-Length", "0")
        # Without a length, the end of the body is unknown, and a kept-alive connection would block.
        if not length.isdigit() or "Transfer-Encoding" in self.headers:
            self.send_error(411, "set the body's Content-Length")
            return
        raw = self.rfile.read(int(length))
        self.close_connection = self.close_connection or not self._owner._keep_alive
        reply, made = self._owner._answer_to(self.command, self.path, raw, self._number)
        # Waiting on the event instead of sleeping lets the server close during a delay.
        if self._owner._closing.wait(reply.delay):
            self.close_connection = True
        elif reply.raw is not None:
            self._send_raw(reply, reply.raw)
        elif isinstance(made, _Completion) and made.stream:
            self._stream(reply, made)
        else:
            self._send(reply, made.whole() if isinstance(made, _Completion) else made)

    do_POST = do_GET  # noqa: N815  (the base class looks the methods up by these names)

    def _head(self, reply: ServerReply, headers: Mapping[str, str]) -> None:
        self.send_response(reply.status)
        added = dict(reply.headers or {})
        if reply.status == 429 and "retry-after" not in map(str.lower, added):
            added["Retry-After"] = "1"
        for name, value in {**headers, **added}.items():
            self.send_header(name, value)
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()

    def _send(self, reply: ServerReply, made: Body | None = None) -> None:
        data = json.dumps(_error(reply) if made is None else made).encode()
        self._head(reply, {"Content-Type": "application/json", "Content-Length": str(len(data))})
        if reply.drop_after is not None:
            self.close_connection = True
            data = data[: len(data) // 2]
        self.wfile.write(data)

    def _send_raw(self, reply: ServerReply, raw: str | bytes | Mapping[str, Any]) -> None:
        kind = "application/json"
        if isinstance(raw, str):
            # Clients parse by content type, so raw streams and HTML error pages need the right one.
            kind = "text/event-stream" if raw.startswith("data:") else kind
            kind = "text/html" if raw.startswith("<") else kind
        text = json.dumps(raw) if isinstance(raw, Mapping) else raw
        data = text.encode() if isinstance(text, str) else text
        self._head(reply, {"Content-Type": kind, "Content-Length": str(len(data))})
        self.wfile.write(data)

    def _stream(self, reply: ServerReply, made: _Completion) -> None:
        kind = {"Content-Type": "text/event-stream", "Transfer-Encoding": "chunked"}
        self._head(reply, kind)
        cut = reply.cut_after if reply.drop_after is None else reply.drop_after
        for event in made.events(cut):
            self._write_event(json.dumps(event))
        if reply.drop_after is not None:
            self.close_connection = True
            return
        if cut is None:
            self._write_event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")

    def _write_event(self, data: str) -> None:
        event = f"data: {data}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))


class _Listener(ThreadingHTTPServer):
    """The listening socket; it tracks its open connections, so that it can close them."""

    # server_close() joins only threads that are not daemons.
    daemon_threads = False
    request_queue_size = 256

    def __init__(self, owner: ModelServer) -> None:
        self.owner = owner
        self._open: dict[socket.socket, int] = {}
        self._numbers = count(1)
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), _Handler)

    def server_bind(self) -> None:
        """Bind without the base class's name lookup, which may leave the machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = "127.0.0.1", self.socket.getsockname()[1]

    def process_request(self, request: Any, client_address: Any) -> None:
        """Record the connection, then serve it in a thread."""
        with self._lock:
            self._open[request] = next(self._numbers)
        super().process_request(request, client_address)

    def number_of(self, request: Any) -> int:
        """Return the number of an open connection."""
        with self._lock:
            return self._open.get(request, 0)

    def shutdown_request(self, request: Any) -> None:
        """Forget the connection and close it."""
        with self._lock:
            self._open.pop(request, None)
        super().shutdown_request(request)

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors of connections that the client or this server closed."""
        if not isinstance(sys.exception(), OSError):
            super().handle_error(request, client_address)

    def end(self) -> None:
        """Stop accepting, close every connection, and wait for its thread."""
        self.shutdown()
        with self._lock:
            for connection in self._open:
                # The client may have closed the connection in the meantime.
                with suppress(OSError):
                    connection.shutdown(socket.SHUT_RDWR)
        self.server_close()


class ModelServer:
    """An OpenAI-compatible server on 127.0.0.1 with scripted answers; a context manager.

    It answers `POST /v1/chat/completions`, whole or streamed, and `GET /v1/models`. For `POST
    /v1/responses`, it sends replies with a `raw` body. A request without a reply gets status 400,
    and a callable that raises gets status 500, with the reason in the error's message.

    Args:
        script: A list of `ServerReply`, text, or dict, used in order of requests, or a callable
            that receives the request's body and returns one of these.
        alternate: Whether to refuse, with status 400, messages that don't alternate user/assistant
            after an optional system message. They use no reply.
        keep_alive: Whether a connection serves many requests, like a provider's. By default, it is
            closed after each answer, for tests that run several event loops: a client library that
            pools connections fails if another loop finds one.
        models: Names for `GET /v1/models`.

    Raises:
        TypeError: The script is invalid.
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
            raise TypeError(f"script: pass a list or a callable, not {type(script).__name__}")
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
        """The base URL for clients. Raise RuntimeError while the server isn't open."""
        if self._listener is None:
            raise RuntimeError(
                "ModelServer: not open; use it as `with ModelServer(...) as server:`"
            )
        return f"http://127.0.0.1:{self._listener.server_port}/v1"

    @property
    def connections(self) -> int:
        """The number of connections that have carried a request."""
        return len({exchange.connection for exchange in self.log})

    @property
    def log(self) -> list[Exchange]:
        """The requests so far, in the order in which their answers were chosen."""
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

    def __exit__(self, kind: object, error: object, trace: object) -> None:
        if self._listener is not None and self._thread is not None:
            self._closing.set()
            self._listener.end()
            self._thread.join()
        self._listener = self._thread = None

    def _record(self, exchange: Exchange) -> None:
        with self._lock:
            self._log.append(exchange)

    def _answer_to(
        self, method: str, path: str, raw: bytes, connection: int = 0
    ) -> tuple[ServerReply, _Completion | Body | None]:
        """Return the reply to a request, and the body to send if it isn't an error; log both."""
        body: Body = {}
        made: _Completion | Body | None = None
        try:
            if (method, path) == ("GET", "/v1/models"):
                reply, made = ServerReply(), self._list()
            elif (method, path) in (("POST", "/v1/chat/completions"), ("POST", "/v1/responses")):
                body = _read(raw)
                reply = self._next(body)
                if reply.status < 400 and reply.raw is None:
                    if path == "/v1/responses":
                        raise _RefusedError(400, f"{path}: script ServerReply(raw=...)")
                    made = _complete(reply, body, next(self._numbers))
            else:
                raise _RefusedError(404, f"{method} {path} isn't served here")
        except _RefusedError as error:
            reply = error.reply
        except Exception as error:  # noqa: BLE001 - whatever it is, the client must hear of it
            reply = ServerReply(f"the script failed: {type(error).__name__}: {error}", status=500)
        self._record(Exchange(method, path, body, reply.status, connection))
        return reply, made

    def _list(self) -> Body:
        kind = {"object": "model", "created": 0, "owned_by": "script"}
        return {"object": "list", "data": [{"id": name, **kind} for name in self._models]}

    def _next(self, body: Body) -> ServerReply:
        if "input" not in body:  # the messages of /v1/responses
            _require(body)
        fault = _disorder(body["messages"]) if self._alternate else None
        if fault:
            raise _RefusedError(400, fault)
        if callable(self._script):
            return _reply(self._script(deepcopy(body)))
        with self._lock:
            if self._script:
                return self._script.popleft()
        raise _RefusedError(400, "the script is exhausted: add a ServerReply, or pass a callable")
