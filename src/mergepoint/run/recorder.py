"""Recorder: a LangChain callback handler that carries a journal, and tells of calls as they run.

Give it to any graph in `config={"callbacks": [recorder]}`. Steps of mergepoint write their
records into its journal from behind the door; calls of other chat models in the same host graph
are recorded by the callbacks themselves, under the path of the host's nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from uuid import UUID

from langchain_core.callbacks import BaseCallbackHandler
from langchain_core.messages import AIMessage, BaseMessage
from langchain_core.outputs import ChatGeneration, LLMResult
from langchain_core.runnables import RunnableConfig
from langchain_core.runnables.config import var_child_runnable_config

from mergepoint.core.errors import BudgetExceeded
from mergepoint.models.door import SCOPED
from mergepoint.models.inner_purse import InnerPurse
from mergepoint.models.ledger import Ledger
from mergepoint.models.passage import CALL
from mergepoint.models.purse import Purse
from mergepoint.models.scope import SCOPE
from mergepoint.record.answers import Answers
from mergepoint.record.journal import Journal, MemoryJournal
from mergepoint.record.record import CallKey, CallRecord, Kind, error_of, now
from mergepoint.record.request import Digests
from mergepoint.run.facts import node_names
from mergepoint.tree.decision import Answerer

METADATA = "mergepoint"


Happening = Literal["start", "token", "end", "error", "left_out"]


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened to a call: it started, gave a token, ended, failed, or is left out.

    `of` says what was called: a step's model, a Call, a Gate (from its question to the decision,
    which is its `text`), or a model inside of a Call (`inner`, at the Call's path).
    """

    kind: Happening
    path: str
    host: str = ""
    model: str = ""
    text: str = ""
    tokens: int = 0
    of: Kind = "step"


@dataclass(slots=True)
class _Open:
    key: CallKey
    ours: bool
    model: str
    messages: list[BaseMessage]
    started: float
    kind: Kind = "step"


class Recorder(BaseCallbackHandler):
    """Carries a journal through a run; `on_event` is called with each Event, in order.

    Recorded `answers` that fit a call are given in its place. The `answerer` decides at gates. A
    `purse` grants the calls of all runs that the recorder is given to; without one each run has
    its own, with the tree's budgets.
    """

    run_inline = True
    raise_error = True
    ignore_chain = True
    ignore_agent = True
    ignore_retriever = True

    def __init__(
        self,
        journal: Journal | None = None,
        *,
        on_event: Callable[[Event], None] | None = None,
        answers: Answers | None = None,
        answerer: Answerer | None = None,
        purse: Purse | None = None,
    ) -> None:
        self.journal: Journal = MemoryJournal() if journal is None else journal
        self.answers = answers
        self.answerer = answerer
        self.purse = purse
        self.digests = Digests()
        self._listeners: list[Callable[[Event], None]] = [] if on_event is None else [on_event]
        self._open: dict[UUID, _Open] = {}

    @contextmanager
    def heard_by(self, listener: Callable[[Event], None]) -> Iterator[None]:
        """Call the listener with each Event for a while."""
        self._listeners.append(listener)
        try:
            yield
        finally:
            self._listeners.remove(listener)

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
        """Note that a call starts."""
        metadata = metadata or {}
        about = metadata.get(METADATA, {})
        inside = about.get("inside")
        # Behind the door of a scope, or asked by a model whose own call is under way.
        doored = SCOPED in metadata or (inside and CALL.get() is not None)
        ours = doored or ("run" in about and not inside)
        if ours and not self._listeners:
            return
        if not about:
            key = CallKey(run="", host="", path="/".join(node_names(metadata)) or "call")
        else:
            key = CallKey(about["run"], about["host"], about["path"])
        model = f"{metadata.get('ls_provider', '')}:{metadata.get('ls_model_name', '')}".strip(":")
        kind: Kind = "inner" if inside or SCOPED in metadata else "step"
        self._open[run_id] = _Open(key, ours, model, messages[0], now(), kind)
        self.tell(Event("start", key.path, key.host, model, of=kind))

    def on_llm_new_token(self, token: Any, *, run_id: UUID, **kwargs: Any) -> None:
        """Note a token."""
        call = self._open.get(run_id)
        if call is not None:
            about = (call.key.path, call.key.host, call.model, str(token))
            self.tell(Event("token", *about, of=call.kind))

    def on_llm_end(self, response: LLMResult, *, run_id: UUID, **kwargs: Any) -> None:
        """Note that a call ended, and record it if no door did."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        generation = response.generations[0][0]
        message = generation.message if isinstance(generation, ChatGeneration) else None
        answer = message if isinstance(message, AIMessage) else None
        if not call.ours:
            self.journal.append(_record(call, answer, None, self._charged(run_id, call, answer)))
        usage = answer.usage_metadata if answer is not None else None
        tokens = usage["total_tokens"] if usage else 0
        text = str(answer.text) if answer is not None else ""
        about = (call.key.path, call.key.host, call.model, text, tokens)
        self.tell(Event("end", *about, of=call.kind))

    def on_llm_error(self, error: BaseException, *, run_id: UUID, **kwargs: Any) -> None:
        """Note that a call failed, and record it if no door did."""
        call = self._open.pop(run_id, None)
        if call is None:
            return
        if not call.ours:
            self.journal.append(_record(call, None, error, self._charged(run_id, call, None)))
        about = (call.key.path, call.key.host, call.model, str(error))
        left_out = isinstance(error, BudgetExceeded) and error.keep
        self.tell(Event("left_out" if left_out else "error", *about, of=call.kind))

    def _charged(self, run: UUID, call: _Open, message: AIMessage | None) -> float | None:
        """Charge a call that no door asked for beforehand, and give its cost."""
        purse, scope = self.purse, SCOPE.get()
        if call.kind == "inner" and scope is not None:
            return scope.charged(run, call.model, message)
        if not isinstance(purse, Ledger | InnerPurse):
            return None
        return purse.charge(call.key, call.model, message)

    def tell(self, event: Event) -> None:
        """Tell those who listen of an event."""
        for listener in self._listeners:
            listener(event)


def recorders_of(config: RunnableConfig) -> list[Recorder]:
    """Give the recorders that a config's callbacks carry, one for each journal."""
    callbacks = config.get("callbacks")
    handlers: Iterable[Any]
    if callbacks is None:
        return []
    handlers = callbacks if isinstance(callbacks, list) else callbacks.handlers
    found: list[Recorder] = []
    for handler in handlers:
        if isinstance(handler, Recorder) and all(
            handler.journal is not other.journal for other in found
        ):
            found.append(handler)
    return found


def with_recorder(config: RunnableConfig, recorder: Recorder) -> RunnableConfig:
    """Give a config whose callbacks include a recorder; the given one stays as it is."""
    callbacks = config.get("callbacks")
    if callbacks is None:
        handlers: Any = [recorder]
    elif isinstance(callbacks, list):
        handlers = [*callbacks, recorder]
    else:
        handlers = callbacks.copy()
        handlers.add_handler(recorder, inherit=True)
    return {**config, "callbacks": handlers}


def without_recorders(config: RunnableConfig, recorders: Sequence[Recorder]) -> RunnableConfig:
    """Give a config whose callbacks are without these recorders; the given one stays as it is."""
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
    """Stand for the config around: LangGraph would bring its callbacks back into this one."""
    token = var_child_runnable_config.set(config)
    try:
        yield
    finally:
        var_child_runnable_config.reset(token)


def _record(
    call: _Open, message: AIMessage | None, error: BaseException | None, cost: float | None
) -> CallRecord:
    *before, last = call.messages
    return CallRecord(
        key=call.key,
        prompt=last.content,
        context=len(before),
        response=str(message.text) if message is not None else "",
        message=message,
        model=call.model,
        started=call.started,
        ended=now(),
        kind=call.kind,
        error=None if error is None else error_of(error),
        cost=cost,
    )
