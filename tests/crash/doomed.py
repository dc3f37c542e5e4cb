"""A run in a process of its own, which may be killed at any moment and started again.

What happens to it is told at once, by a pipe to who counts: a write to a pipe outlives the process
that made it, so what was told before a kill is known after it, without looking at a clock.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import pickle
import struct
import traceback
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from multiprocessing.connection import Connection
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, ChatResult
from tests.crash.trees import Ask, Said, turning

from mergepoint import Event, Recorder, RunContext, run_generation
from mergepoint.engine.compiler import Form
from mergepoint.engine.run_tree import arun_generation
from mergepoint.journal.file_journal import store_at

ROLES = {"human": "user", "ai": "assistant", "system": "system"}


def key_of(said: Said) -> str:
    """Return the key under which what was said is counted."""
    return sha256(json.dumps(list(said)).encode()).hexdigest()[:12]


def plain(messages: Sequence[BaseMessage]) -> Said:
    """Return messages as they are sent."""
    return [{"role": ROLES[one.type], "content": str(one.text)} for one in messages]


class Tell:
    """Tells who counts what happened, as `Connection.send` would.

    It writes without letting go of the interpreter's lock. Otherwise other threads would run
    between the telling and what follows, and the telling would make what it measures longer.
    """

    _write = ctypes.PyDLL(None).write

    def __init__(self, pipe: Connection) -> None:
        self._file = pipe.fileno()

    def __call__(self, what: str, about: Any = None) -> None:
        """Tell it; when this returns it cannot be lost any more."""
        body = pickle.dumps((what, about))
        message = struct.pack("!i", len(body)) + body
        written = self._write(self._file, message, len(message))
        assert written == len(message), f"told {written} of {len(message)} bytes of {what}"


@dataclass(frozen=True)
class Line:
    """The line to the model's server; it tells of every answer that has come in."""

    url: str
    attempt: int
    tell: Tell

    def __call__(self, said: Said) -> str:
        """Return the server's answer."""
        text = self._answer(said)
        self.tell("came", key_of(said))
        return text

    async def later(self, said: Said) -> str:
        """Return the server's answer; it has come in when the event loop has it."""
        text = await asyncio.to_thread(self._answer, said)
        self.tell("came", key_of(said))
        return text

    def _answer(self, said: Said) -> str:
        body = {"model": "served", "messages": list(said), "user": str(self.attempt)}
        request = urllib.request.Request(  # noqa: S310  (a loopback address)
            f"{self.url}/chat/completions",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            return str(json.load(answer)["choices"][0]["message"]["content"])


class AskingModel(BaseChatModel):
    """A model that asks for each answer; it keeps count of nothing itself."""

    ask: Callable[[Any], str]

    @property
    def _llm_type(self) -> str:
        return "served"

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        return _result(self.ask(plain(messages)))

    async def _agenerate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: Any = None,
        **kwargs: Any,
    ) -> ChatResult:
        later = getattr(self.ask, "later", None)
        said = plain(messages)
        return _result(self.ask(said) if later is None else await later(said))


def _result(text: str) -> ChatResult:
    return ChatResult(generations=[ChatGeneration(message=AIMessage(text))])


@dataclass(frozen=True)
class Order:
    """What a process is to do; `attempt` counts the processes of one run.

    `runs` is where runs are kept: a folder, or the URL of a database.
    """

    url: str
    runs: str
    run: str
    form: Form
    attempt: int
    on_loop: bool = False


def live(order: Order, pipe: Connection) -> None:
    """Run the looping tree to its end, and tell how it ended."""
    telling(Tell(pipe), lambda tell: _run(order, tell))


def telling(tell: Tell, work: Callable[[Tell], Any]) -> None:
    """Report how work ends: what it gives, or how it failed."""
    tell("ready")
    try:
        tell("end", work(tell))
    except BaseException:
        tell("failed", traceback.format_exc())
        raise


def ended(messages: Sequence[BaseMessage], outputs: Mapping[str, Any]) -> dict[str, Any]:
    """Return conversation and outputs as plain data, so that ends can be compared."""
    said = [[one.type, one.id, one.content] for one in messages]
    return {"messages": said, "outputs": dict(outputs)}


def kept(tell: Tell) -> Callable[[Event], None]:
    """Return a listener that tells which calls and decisions are on record."""

    def hear(event: Event) -> None:
        if event.kind == "end":
            tell("kept", event.path)

    return hear


def _run(order: Order, tell: Tell) -> Any:
    ask: Ask = Line(order.url, order.attempt, tell)
    store = store_at(order.runs)
    options: dict[str, Any] = {
        "model": AskingModel(ask=ask),
        "ctx": RunContext(run_id=order.run, recorder=Recorder(on_event=kept(tell))),
        "runs": store,
        "form": order.form,
        "resume": order.run if store.has(order.run) else None,
    }
    if order.on_loop:
        done = asyncio.run(arun_generation(turning(ask), **options))
    else:
        done = run_generation(turning(ask), **options)
    return ended(done.messages, done.outputs)
