"""The tool channel: the only connection out of the sandbox, for calls of tools.

It carries a line of JSON each way, one call at a time. The other end may send anything: names are
looked up in the list of allowed tools, and everything is limited.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import socket
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from selectors import EVENT_READ, EVENT_WRITE
from typing import Any

from mergepoint.sandbox.bootstrap import MESSAGE
from mergepoint.sandbox.job import ToolCall

MAX_CALLS = 1_000
"""The maximum number of tool calls per run."""
MAX_TRANSFER = 16_000_000
"""The maximum number of bytes on the channel per run."""


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call of a tool that the code requests."""

    name: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]


class ToolChannel:
    """Our end of the channel. It never blocks, and reads nothing during a call."""

    def __init__(self, end: socket.socket, tools: Mapping[str, Callable[..., Any]]) -> None:
        end.setblocking(False)  # noqa: FBT003  (it takes no keyword)
        self.end = end
        self.calls: list[ToolCall] = []
        self._tools = tools
        self._received, self._outgoing = bytearray(), bytearray()
        self._in_call = False
        self._transferred = 0

    @property
    def events(self) -> int:
        """Return the selector's events to wait for, 0 if the channel is closed or idle."""
        if self.end.fileno() < 0:
            return 0
        return (EVENT_WRITE if self._outgoing else 0) | (0 if self._in_call else EVENT_READ)

    def move(self) -> ToolRequest | None:
        """Send and receive available data, and return a call once it is complete."""
        try:
            if self._outgoing:
                del self._outgoing[: self.end.send(self._outgoing)]
            if not self._in_call:
                came = self.end.recv(65536)  # the kernel closes descriptors that are sent with it
                if not came:
                    self.end.close()
                self._received += came
        except BlockingIOError:
            pass
        except OSError:
            self.end.close()
        return self._next()

    def answer(self, call: ToolCall) -> None:
        """Send the result of a call."""
        self.calls.append(call)
        self._send(reply(call))

    def _next(self) -> ToolRequest | None:
        if self._in_call:
            return None
        line, newline, rest = self._received.partition(b"\n")
        if not newline:
            if len(self._received) > MESSAGE:
                self.end.close()
            return None
        self._received = rest
        self._transferred += len(line)
        self._in_call = True
        try:
            if self._transferred > MAX_TRANSFER or len(self.calls) >= MAX_CALLS:
                raise RuntimeError(
                    f"at most {MAX_CALLS} calls and {MAX_TRANSFER} bytes are transferred"
                )
            return parse_request(bytes(line), self._tools)
        except (LookupError, ValueError, RuntimeError) as error:
            self._send(_refusal(error))
            return None

    def _send(self, message: bytes) -> None:
        self._transferred += len(message)
        self._in_call = False
        self._outgoing += message


def parse_request(line: bytes, tools: Mapping[str, Callable[..., Any]]) -> ToolRequest:
    """Return the requested call.

    Raises ValueError for invalid data, and LookupError for a tool that is not allowed.
    """
    try:
        given = json.loads(line)
        name, arguments, keywords = given["tool"], given["arguments"], given["keywords"]
    except (ValueError, RecursionError, LookupError, TypeError) as error:
        raise ValueError("not a call of a tool") from error
    if not (isinstance(name, str) and isinstance(arguments, list) and isinstance(keywords, dict)):
        raise ValueError("not a call of a tool")
    if name not in tools:
        raise LookupError(f"no tool {name[:80]!r}; known tools: {', '.join(tools) or 'none'}")
    return ToolRequest(name, tuple(arguments), keywords)


async def call_tool(call: ToolRequest, tool: Callable[..., Any]) -> ToolCall:
    """Call a tool, a plain function in a thread. Its exception becomes part of the result."""
    result, error = None, None
    try:
        result = await asyncio.to_thread(tool, *call.arguments, **call.keywords)
        # A coroutine function only creates its coroutine in the thread; it runs on this loop.
        if inspect.isawaitable(result):
            result = await result
        text = json.dumps(result)
        if len(text) >= MESSAGE:
            raise ValueError(
                f"{call.name}() gave {len(text)} bytes, at most {MESSAGE} go through: ask for less"
            )
        # The record shows what the code receives: a tuple, for example, arrives as a list.
        result = json.loads(text)
    # SystemExit too: raised in a task, it would end the event loop.
    except (Exception, SystemExit) as raised:  # noqa: BLE001  (reported to the code)
        result, error = None, f"{type(raised).__name__}: {_message(raised)}"[:10_000]
    return ToolCall(
        name=call.name,
        arguments=call.arguments,
        keywords=call.keywords,
        result=result,
        error=error,
    )


def reply(call: ToolCall) -> bytes:
    """Return the line with the result of a call."""
    if call.error is None:
        return json.dumps({"result": call.result}).encode() + b"\n"
    kind, _, message = call.error.partition(": ")
    return json.dumps({"error": kind, "message": message}).encode() + b"\n"


def _message(raised: BaseException) -> str:
    alone = raised.args[0] if len(raised.args) == 1 else None
    return alone if isinstance(alone, str) else str(raised)  # a KeyError would show the repr


def _refusal(error: Exception) -> bytes:
    return json.dumps({"error": type(error).__name__, "message": _message(error)}).encode() + b"\n"
