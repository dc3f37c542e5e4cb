"""Recorder: a callback handler that records calls and reports events."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from dataclasses import dataclass, replace
from functools import partial, wraps
from operator import attrgetter, is_
from typing import Any, Literal, TypeVar, cast
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from mergepoint.core.errors import BudgetExceeded, RailError
from mergepoint.core.paths import join
from mergepoint.engine.run_constants import Facts, node_names
from mergepoint.journal.call_records import (
    CallKey,
    CallRecord,
    Kind,
    error_of,
    now,
    own_answer,
    sound_usage,
)
from mergepoint.journal.fingerprint import Digests
from mergepoint.journal.recorded_answers import RecordedAnswers
from mergepoint.journal.stores import Journal, MemoryJournal
from mergepoint.journal.transcript import Transcript
from mergepoint.journal.writer import append_record
from mergepoint.models.budget import BudgetLedger, BudgetSource, NestedBudget
from mergepoint.models.call import CALL
from mergepoint.models.instrument import SCOPED
from mergepoint.models.responses import cut_off
from mergepoint.models.scope import SCOPE
from mergepoint.models.timeouts import CHECK
from mergepoint.tree.decision import Answerer
from mergepoint.tree.leaves import Content
from mergepoint.tree.prompts import copied

METADATA = "mergepoint"
_LOG = logging.getLogger("mergepoint.recorder")

F = TypeVar("F", bound=Callable[..., None])


Happening = Literal[
    "start", "token", "end", "error", "stopped", "retry", "left_out", "stage", "thing", "result"
]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened in a run, most often to a call.

    A call "start"s, yields a "token", "end"s, fails with an "error", or is "left_out". A "stopped"
    call was interrupted or cancelled from outside; it did not fail. A "retry" says
    that its stream broke off and it starts again: the tokens so far are void. `of` says what was
    called: a step's model, a Call, a Gate (from its question to the decision, which is its
    `text`), or a model inside of a Call (`inner`, at the Call's path). `truncated` is the finish
    reason of an answer that was cut off and accepted all the same. With `recorded`, the answer of
    an "end" comes from a journal, and nothing was called.

    Streams of `mergepoint.stream` also have events about Things of a recipe, and about the run. At
    a "stage" a Thing has left the stage at the path, as a "thing" it has come out of the recipe;
    the Thing is the `value`. The last one is "result", whose `value` is the Result of the run.
    """

    kind: Happening
    path: str
    host: str = ""
    model: str = ""
    text: str = ""
    tokens: int = 0
    of: Kind = "step"
    truncated: str = ""
    value: Any = None
    recorded: bool = False


@dataclass(slots=True)
class _Open:
    key: CallKey
    ours: bool
    model: str
    prompt: Content
    context: int
    started: float
    kind: Kind = "step"


def how_ended(error: BaseException) -> Happening:
    """Return the event of a call that an error ended: stopped from outside, or failed."""
    outside = isinstance(error, KeyboardInterrupt | asyncio.CancelledError | GeneratorExit)
    return "stopped" if outside else "error"


def _harmless(method: F) -> F:
    """Log an error of a handler instead of raising it: an observer never fails its host.

    RailError passes: with it `ChatRunner.events` stops a run to which nobody listens any more.
    """

    @wraps(method)
    def handle(*args: Any, **kwargs: Any) -> None:
        try:
            method(*args, **kwargs)
        except RailError:
            raise
        except Exception:  # noqa: BLE001  (whatever a listener or a journal raises)
            _LOG.warning("Recorder.%s failed; the run goes on", method.__name__, exc_info=True)

    return cast("F", handle)


class Recorder(BaseCallbackHandler):
    """A callback handler that records calls in a journal and passes each Event to `on_event`.

    Pass it to any graph in `config={"callbacks": [recorder]}`. Steps write their own records into
    the journal. For other chat models in the same host graph the callbacks write them, under the
    path of the host's nodes.

    One recorder serves any number of runs at once; `record.key.run` tells their records apart. An
    error that `on_event` raises is logged (`mergepoint.recorder`), and the run goes on.

    Recorded `answers` that fit a call are given in its place. The `answerer` decides at gates. A
    `budget` grants the calls of all runs that the recorder is given to; without one each run has
    its own, with the tree's budgets.
    """

    run_inline = True
    raise_error = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True
    watches_runs = False  # whether `begin_run` and `end_run` are called

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
        answers: RecordedAnswers | None = None,
        answerer: Answerer | None = None,
        budget: BudgetSource | None = None,
    ) -> None:
        self.journal: Journal = MemoryJournal() if journal is None else journal
        self.answers = answers
        self.answerer = answerer
        self.budget = budget
        self.digests = Digests()
        self._on_event = on_event
        self._listeners: list[Callable[[Event], None]] = []
        self._running: set[tuple[str, str]] = set()
        self._lock = threading.Lock()
        self._open: dict[UUID, _Open] = {}

    @contextmanager
    def heard_by(self, listener: Callable[[Event], None]) -> Iterator[None]:
        """Call the listener with each Event for a while; with a RailError it stops the run."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

    @_harmless
    def on_chat_model_start(
        self,
        serialized: dict[str, Any],
        messages: list[list[BaseMessage]],
        *,
        run_id: UUID,
        parent_run_id: UUID | None = None,
        tags: list[str] | None = None,
        metadata: dict[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """Report that a call starts."""
        metadata = metadata or {}
        about = metadata.get(METADATA, {})
        inside = about.get("inside")
        # Behind the door of a scope, or asked by a model whose own call is under way.
        doored = SCOPED in metadata or (inside and CALL.get() is not None)
        ours = doored or ("run" in about and not inside)
        if ours and not self._listeners and self._on_event is None:
            return
        if not about:
            key = CallKey(run="", host="", path="/".join(node_names(metadata)) or "call")
        else:
            key = CallKey(about["run"], about["host"], about["path"])
        model = f"{metadata.get('ls_provider', '')}:{metadata.get('ls_model_name', '')}".strip(":")
        kind: Kind = "inner" if inside or SCOPED in metadata else "step"
        *before, last = messages[0]
        prompt = "" if ours else copied(last.content)
        self._open[run_id] = _Open(key, ours, model, prompt, len(before), now(), kind)
        self.tell(Event("start", key.path, key.host, model, of=kind))

    @_harmless
    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Report a token."""
        call = self._open.get(run_id)
        if call is not None:
            about = (call.key.path, call.key.host, call.model, str(token))
            self.tell(Event("token", *about, of=call.kind))

    @_harmless
    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Report that a call ended, and record it if its model is not instrumented."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        generation = response.generations[0][0]
        message = generation.message if isinstance(generation, ChatGeneration) else None
        answer = message if isinstance(message, AIMessage) else None
        if not call.ours:
            cost = self._charged(run_id, call, answer)
            append_record(self.journal, _record(call, answer, None, cost), later=True)
        usage = sound_usage(answer.usage_metadata) if answer is not None else None
        tokens = usage["total_tokens"] or 0 if usage else 0
        text = str(answer.text) if answer is not None else ""
        about = (call.key.path, call.key.host, call.model, text, tokens)
        cut = "" if answer is None else cut_off(answer)
        current = CALL.get()
        recorded = current is not None and current.answer is not None
        self.tell(Event("end", *about, of=call.kind, truncated=cut, recorded=recorded))

    @_harmless
    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Report that a call failed, and record it if its model is not instrumented."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        if not call.ours:
            cost = self._charged(run_id, call, None)
            append_record(self.journal, _record(call, None, error, cost), later=True)
        about = (call.key.path, call.key.host, call.model, str(error))
        kind = how_ended(error)
        if isinstance(error, BudgetExceeded) and error.keep:
            kind = "left_out"
        elif (under_way := CALL.get()) is not None and under_way.again is not None:
            kind = "retry"
        self.tell(Event(kind, *about, of=call.kind))

    def _charged(self, run: UUID, call: _Open, message: AIMessage | None) -> float | None:
        """Charge a call that was made without a reservation, and return its cost."""
        source, scope = self.budget, SCOPE.get()
        if call.kind == "inner" and scope is not None:
            return scope.charged(run, call.model, message)
        if not isinstance(source, BudgetLedger | NestedBudget):
            return None
        return source.charge(call.key, call.model, message)

    def tell(self, event: Event) -> None:
        """Pass an event to `on_event` and to every listener."""
        if self._on_event is not None:
            try:
                self._on_event(event)
            except Exception:  # noqa: BLE001  (whatever it raises)
                _LOG.warning("on_event failed; the run goes on", exc_info=True)
        for listener in self._listeners:
            listener(event)

    def begin_run(self, run_id: str, outline: Mapping[str, Any]) -> None:
        """Receive the outline of a run that begins."""

    def end_run(self, run_id: str, transcript: Transcript) -> None:
        """Receive the transcript of a run that has ended, well or not."""

    def claim(self, run: str, path: str) -> bool:
        """Return whether no root of that run and full path is running; from now on it is."""
        with self._lock:
            free = (run, path) not in self._running
            self._running.add((run, path))
            return free

    def release(self, run: str, path: str) -> None:
        """Note that the root of a run and full path has ended."""
        with self._lock:
            self._running.discard((run, path))


class RunWatch:
    """Notifies the recorders of configs of the begin and the end of a run, if they want to know."""

    def __init__(self, run_id: str, *configs: RunnableConfig | None) -> None:
        found = [one for config in configs for one in recorders_of(config or {})]
        self._recorders = [one for one in dict.fromkeys(found) if one.watches_runs]
        self._run_id = run_id

    def __bool__(self) -> bool:
        return bool(self._recorders)

    def begin(self, outline: Callable[[], Mapping[str, Any]]) -> None:
        """Pass on the outline of the run, which is computed only if a recorder wants it."""
        self._tell("begin_run", outline)

    def end(self, transcript: Callable[[], Transcript]) -> None:
        """Pass on the transcript of the run, which is computed only if a recorder wants it."""
        self._tell("end_run", transcript)

    def _tell(self, method: str, value: Callable[[], Any]) -> None:
        for recorder in self._recorders:
            try:
                getattr(recorder, method)(self._run_id, value())
            except Exception:  # noqa: BLE001  (an observer never fails a run)
                _LOG.warning("Recorder.%s failed; the run goes on", method, exc_info=True)


@contextmanager
def running(recorders: Sequence[Recorder], facts: Facts, root: str) -> Iterator[Facts]:
    """Yield the facts of a root that runs, with a scope of its own.

    Records, ids of messages and what a call saw are kept by run and path. Where a root of the same
    run and path is running, as in a host that sends many items to one node, the next one gets the
    scope "2", and so on.
    """
    for number in itertools.count(1):
        own = facts if number == 1 else _scoped(facts, str(number))
        path = join(own.around, root)
        claimed = [recorder for recorder in recorders if recorder.claim(own.run, path)]
        try:
            if len(claimed) == len(recorders):
                yield own
                return
        finally:
            for recorder in claimed:
                recorder.release(own.run, path)


def _scoped(facts: Facts, scope: str) -> Facts:
    if facts.within:
        return replace(facts, within=join(facts.within, scope))
    return replace(facts, host=join(facts.host, scope))


_JOURNAL_OF = attrgetter("journal")


def recorders_of(config: RunnableConfig) -> list[Recorder]:
    """Return the recorders that a config's callbacks carry, one for each journal."""
    callbacks = config.get("callbacks")
    handlers: Iterable[Any]
    if callbacks is None:
        return []
    handlers = callbacks if isinstance(callbacks, list) else callbacks.handlers
    found: list[Recorder] = []
    for handler in handlers:
        if isinstance(handler, Recorder):
            journals = [*map(_JOURNAL_OF, found)] if found else []
            if not any(map(partial(is_, handler.journal), journals)):
                found.append(handler)
    return found


def with_recorder(config: RunnableConfig, recorder: Recorder) -> RunnableConfig:
    """Return a config whose callbacks include a recorder; the given one stays as it is."""
    callbacks = config.get("callbacks")
    if callbacks is None:
        handlers: Any = [recorder]
    elif isinstance(callbacks, list):
        handlers = [*callbacks, recorder]
    else:
        handlers = callbacks.copy()
        handlers.add_handler(recorder, inherit=True)
    return {**config, "callbacks": handlers}


def traced(config: RunnableConfig, path: str) -> RunnableConfig:
    """Return a config by which traces show a path: as the run's name, and as a tag below it."""
    return {**config, "run_name": path, "tags": [*(config.get("tags") or ()), path]}


def without_recorders(config: RunnableConfig, recorders: Sequence[Recorder]) -> RunnableConfig:
    """Return a config whose callbacks are without these recorders; the given one stays as it is."""
    callbacks = config.get("callbacks")
    if callbacks is None or not recorders:
        return config
    if isinstance(callbacks, list):
        return {**config, "callbacks": [one for one in callbacks if one not in recorders]}
    manager = callbacks.copy()
    for recorder in recorders:
        manager.remove_handler(recorder)
    return {**config, "callbacks": manager}


@contextmanager
def ambient(config: RunnableConfig) -> Iterator[None]:
    """Set a config as the ambient one.

    LangGraph would merge the callbacks of the config around into this one.
    """
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _record(
    call: _Open, message: AIMessage | None, error: BaseException | None, cost: float | None
) -> CallRecord:
    return CallRecord(
        key=call.key,
        prompt=call.prompt,
        context=call.context,
        response=str(message.text) if message is not None else "",
        message=None if message is None else own_answer(message),
        model=call.model,
        started=call.started,
        ended=now(),
        kind=call.kind,
        error=None if error is None else error_of(error),
        cost=cost,
    )


class StreamingRecorder(Recorder):
    """A Recorder that makes models stream, if they can, also when they are invoked.

    LangChain knows the handlers that want tokens by these two methods
    (`models.langchain_internals.TOKEN_TAPS`); it calls neither for a chat model.
    """

    def tap_output_aiter(self, run_id: UUID, output: AsyncIterator[Any]) -> AsyncIterator[Any]:
        """Return the output as it is."""
        return output

    def tap_output_iter(self, run_id: UUID, output: Iterator[Any]) -> Iterator[Any]:
        """Return the output as it is."""
        return output


class LoopEvents:
    """Events of a run on an event loop; once it has stopped it lets no call start."""

    def __init__(self) -> None:
        self.stopped = False
        self._heard: deque[Event] = deque()

    def __call__(self, event: Event) -> None:
        """Keep an event. Raises RailError for a call that starts after the stop."""
        if self.stopped and event.kind == "start":
            raise _nobody(event)
        self._heard.append(event)

    def drained(self) -> Iterator[Event]:
        """Yield the events that came since the last time."""
        while self._heard:
            yield self._heard.popleft()


class PulledEvents:
    """Events of a run in a thread of its own, which goes on as they are taken.

    A call starts when the events before it have been taken, so a listener that stops has caused
    no call beyond those that it heard of.
    """

    def __init__(self) -> None:
        self._heard: deque[Event] = deque()
        self._changed = threading.Condition()
        self._stopped = False
        self._done = False
        self._error: BaseException | None = None

    def __call__(self, event: Event) -> None:
        """Keep an event; a start waits its turn. Raises RailError for a start after the stop."""
        with self._changed:
            if event.kind == "start":
                self._changed.wait_for(lambda: self._stopped or not self._heard)
                if self._stopped:
                    raise _nobody(event)
            self._heard.append(event)
            self._changed.notify_all()

    def of(self, work: Callable[[], None]) -> Iterator[Event]:
        """Yield the events of some work while it is done. Raises what the work raises."""
        context = copy_context()
        thread = threading.Thread(target=context.run, args=(self._run, work), daemon=True)
        thread.start()
        try:
            while (event := self._next()) is not None:
                yield event
        finally:
            with self._changed:
                self._stopped = True
                self._changed.notify_all()
            while thread.is_alive():
                thread.join(CHECK)
        if self._error is not None:
            raise self._error

    def _run(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:  # noqa: BLE001  (raised again where the events are taken)
            self._error = error
        finally:
            with self._changed:
                self._done = True
                self._changed.notify_all()

    def _next(self) -> Event | None:
        with self._changed:
            while not self._changed.wait_for(lambda: self._heard or self._done, CHECK):
                pass  # the pause between two waits is when Python runs signal handlers
            event = self._heard.popleft() if self._heard else None
            self._changed.notify_all()
            return event


def _nobody(event: Event) -> RailError:
    return RailError(f"{event.path}: nobody listens any more; the run has been stopped")
