"""Calls of Steps: the prompt, the messages for the model, and the answer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from operator import attrgetter, is_
from threading import Lock
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel

from mergepoint.core.errors import AnswerError, BudgetExceeded, StepError
from mergepoint.core.merge import State
from mergepoint.core.text import clean_text
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import METADATA, Event, recorders_of
from mergepoint.engine.run_constants import Facts, context_of
from mergepoint.journal.call_records import (
    CallKey,
    CallRecord,
    now,
    prompt_message,
    response_message,
    skipped_error,
    skipped_record,
)
from mergepoint.journal.fingerprint import setting_digest
from mergepoint.journal.writer import append_record, call_and_flush
from mergepoint.models.budget import merged, shape_of
from mergepoint.models.call import CALL, ModelCall, find_recorded_answer
from mergepoint.models.identity import (
    ChatModel,
    ModelBinding,
    carrying,
    composed,
    configured,
    identity,
    is_dynamic,
    part_of,
    parts,
    whole_name,
)
from mergepoint.models.instrument import instrument
from mergepoint.models.pricing import prepare_prices
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, View, view_of
from mergepoint.models.requests import example_messages, lead_messages, prompt_content
from mergepoint.models.responses import finish_reason, json_of, structured
from mergepoint.tree.leaves import Content, Method, Step
from mergepoint.tree.prompts import copied, copied_message
from mergepoint.tree.semantics import Messages

_MOST = 8
"""The maximum number of sets of copies per run, one for each concurrent call."""


class CopyPool:
    """Copies of a conversation that the calls of a run use one after another, never together.

    A call needs a copy of its whole conversation. A copy that comes back unchanged is used again,
    because comparing a message takes a sixth of the time of copying it.
    """

    def __init__(self) -> None:
        self._free: list[tuple[Sequence[BaseMessage], Sequence[BaseMessage]]] = []
        self._lock = Lock()

    def borrow(self, messages: Sequence[BaseMessage]) -> list[BaseMessage]:
        """Return copies of messages to which only the caller has access."""
        originals, copies = self._longest(messages)
        same = _common(originals, messages)
        made = list(copies[:same])
        # A model or callback may have edited the copies. If comparing fails, they count as edited.
        try:
            if list(map(_fields, originals[:same])) != list(map(_fields, made)):
                made = []
        except Exception:  # noqa: BLE001  (whatever an object's own way of being compared raises)
            made = []
        made += map(copied_message, messages[len(made) :])
        return made

    def give_back(self, messages: Sequence[BaseMessage], copies: Sequence[BaseMessage]) -> None:
        """Take back copies after the call that borrowed them has ended."""
        with self._lock:
            self._free.append((messages, copies))
            del self._free[:-_MOST]

    def _longest(
        self, messages: Sequence[BaseMessage]
    ) -> tuple[Sequence[BaseMessage], Sequence[BaseMessage]]:
        with self._lock:
            if not self._free:
                return (), ()
            if len(self._free) == 1:  # the common case: the calls of the run are sequential
                return self._free.pop()
            # Of several sets, the one with the longest common start needs the fewest new copies.
            lengths = [_common(originals, messages) for originals, _ in self._free]
            return self._free.pop(lengths.index(max(lengths)))


COPY_POOL: ContextVar[CopyPool | None] = ContextVar("mergepoint_copy_pool", default=None)


@contextmanager
def reusing_copies() -> Iterator[None]:
    """Lend copies to the calls of a run, until it ends."""
    token = COPY_POOL.set(CopyPool())
    try:
        yield
    finally:
        COPY_POOL.reset(token)


def _common(some: Sequence[BaseMessage], others: Sequence[BaseMessage]) -> int:
    """Return the number of identical objects at the front of both."""
    if all(map(is_, some, others)):
        return min(len(some), len(others))
    pairs = enumerate(zip(some, others, strict=False))
    return next(number for number, (one, other) in pairs if one is not other)


_fields = attrgetter("__class__", "__dict__", "__pydantic_extra__")


@dataclass(frozen=True, slots=True)
class Request:
    """The request of a step: `messages` are lead, base and prompt, in this order."""

    key: CallKey
    lead: tuple[BaseMessage, ...]
    base: Messages
    prompt: HumanMessage
    messages: list[BaseMessage]

    def sent(self) -> ChatPromptValue:
        """Return copies of the messages as LangChain passes them to callbacks and the model."""
        # LangChain would convert and validate a list message by message in every call: with some
        # thousand messages, a third to a half of the call's time. These are messages already.
        pool = COPY_POOL.get()
        of_base = pool.borrow if pool is not None else _copies
        lead = _copies(self.lead) if self.lead else []
        prompt = copied_message(self.prompt)
        return ChatPromptValue.model_construct(
            messages=[*lead, *of_base(self.base.messages), prompt]
        )


def _copies(messages: Sequence[BaseMessage]) -> list[BaseMessage]:
    return [copied_message(message) for message in messages]


class StepModel:
    """The instrumented model of a step, with the settings of its calls.

    In a Runnable of several chat models, each call sets its own name, parameters and view when it
    reaches the instrumented model.
    """

    def __init__(self, step: Step, model: ChatModel, *, view: View | None) -> None:
        self.params = _params_of(step, model)
        has_schema = step.schema is not None
        self.bound = self.params if has_schema else {}
        self.passed = {} if has_schema else self.params
        self.identity = identity(model, self.params)
        self.own_view = view
        self.accept: Callable[[AIMessage], str] = (
            any_text_of if step.allow_empty_response else text_of
        )
        change: Callable[[BaseChatModel], ChatModel] = instrument
        if step.schema is not None:
            self.accept = json_of(step.schema, step.method)
            change = partial(_structured, step.schema, step.method)
        schema = None if step.schema is None else step.schema.model_json_schema()
        name = self.identity
        self.view: View = view or "as_is"
        self.composed = not isinstance(model, BaseChatModel)
        if isinstance(model, BaseChatModel):
            self.view = view or view_of(model)
            self.model = change(
                carrying(model, ModelBinding())
            )  # the parameters that it carried are in `self.params`
        else:
            name = whole_name(model)
            self.model = composed(model, change, name)
        self.fields: Mapping[str, Any] = {
            "model": name,
            "params": self.params,
            "view": self.view,
            "schema": schema,
            **({} if step.method is None else {"method": step.method}),
        }
        asked = schema if step.method is None else {"schema": schema, "method": step.method}
        self.setting = setting_digest(name, self.params, self.view, asked)
        named = [(identity(one, {**own, **self.params}), one) for one, own in parts(model)]
        self.shape = shape_of(named, schema)
        prepare_prices(one for one, _ in named)


def _structured(
    schema: type[BaseModel], method: Method | None, model: BaseChatModel
) -> Runnable[Any, Any]:
    return structured(instrument(model), schema, method)


def _params_of(step: Step, model: ChatModel) -> dict[str, Any]:
    """Return the parameters of a step's calls: its own override those of the run."""
    bound = part_of(model).bound if isinstance(model, BaseChatModel) else {}
    params = merged(bound, step.params)
    if step.temperature is not None:
        params["temperature"] = step.temperature
    return params


_JOURNAL_OF = attrgetter("journal")


class StepCall:
    """A step with its instrumented model, compiled once and called in every run."""

    def __init__(
        self,
        step: Step,
        model: ChatModel,
        *,
        view: View | None,
        spending: Spending,
        settings: ModelSettings = NO_SETTINGS,
    ) -> None:
        self._spending = spending
        self._step = step
        self._policy = settings.policy(step.policy)
        self._settings = settings
        self._view = view
        self._given = model
        # The config of each run chooses the model of a configurable one, so it is compiled per
        # call.
        self._only = None if is_dynamic(model) else StepModel(step, model, view=view)
        self.shape = None if self._only is None else self._only.shape
        self._examples = tuple(example_messages(step))
        self._has_fixed_lead = step.system is None and step.schema is None
        self._text = clean_text(step.prompt) if isinstance(step.prompt, str) else None

    @property
    def fields(self) -> Mapping[str, Any]:
        """Return the settings of the model call, by name; for a configurable model its defaults."""
        if self._only is not None:
            return self._only.fields
        params = _params_of(self._step, self._given)
        return {"model": identity(self._given, {}), "params": params, "view": self._view or ""}

    def model_for(self, config: RunnableConfig) -> StepModel:
        """Return the settings for the model that a config chooses."""
        if self._only is not None:
            return self._only
        chosen = self._settings.on(configured(self._given, config), declared=True)
        return StepModel(self._step, chosen, view=self._view)

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Return the new messages of the step: prompt and response."""
        asked = self._only or self.model_for(config)
        request, call, config = self._prepared(asked, path, base, facts, config)
        token = CALL.set(call)
        try:
            if call.answer is not None and call.answer.kind == "left_out":
                raise self._left_out_again(call.answer, request, call, config)
            while True:
                try:
                    sent = request.sent()
                    asked.model.invoke(sent, config, **asked.passed)
                    break
                except Exception:
                    # A stream that broke after its first token cannot be retried inside LangChain's
                    # call, whose callbacks have seen the token. So the whole call starts again, as
                    # another LangChain run.
                    if not call.begin_again():
                        raise
        except BudgetExceeded as error:
            self._left_out(request, call, error, facts.within)
            raise
        finally:
            CALL.reset(token)
        return self._made(request, call, sent)

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Return the new messages of the step: prompt and response."""
        asked = self._only or self.model_for(config)
        request, call, config = self._prepared(asked, path, base, facts, config)
        token = CALL.set(call)
        try:
            if call.answer is not None and call.answer.kind == "left_out":
                raise self._left_out_again(call.answer, request, call, config)
            while True:
                try:
                    sent = request.sent()
                    await asked.model.ainvoke(sent, config, **asked.passed)
                    break
                except Exception:
                    if not call.begin_again():
                        raise
        except BudgetExceeded as error:
            await call_and_flush(self._left_out, request, call, error, facts.within)
            raise
        finally:
            CALL.reset(token)
        return self._made(request, call, sent)

    def _prepared(
        self, asked: StepModel, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> tuple[Request, ModelCall, RunnableConfig]:
        request = self.request(path, base, facts)
        recorders = recorders_of(config)
        call = ModelCall(
            key=request.key,
            model=asked.identity,
            view=asked.view,
            lead=len(request.lead),
            params=asked.params,
            journals=[*map(_JOURNAL_OF, recorders)],
            accept=asked.accept,
            bound=asked.bound,
            budget=self._spending.source_for(facts, recorders),
            policy=self._policy,
            composed=asked.composed,
            own_view=asked.own_view,
            messages=request.messages,
        )
        for recorder in recorders:
            # A fingerprint reads the whole conversation, so it is computed only for recorded
            # answers and for journals that store it.
            if recorder.answers is not None or recorder.journal.keyed:
                call.request = recorder.digests.request(
                    asked.setting, request.messages, lead=len(request.lead)
                )
                if recorder.answers is not None:
                    find_recorded_answer(call, request.messages, recorder)
        about = {"path": path, "run": facts.run, "host": facts.host, "n": 0}
        if self._step.meta:
            about["meta"] = dict(self._step.meta)
        full_path = request.key.full_path
        marked: RunnableConfig = {
            **config,
            "run_name": full_path,
            "tags": [*(config.get("tags") or ()), full_path],
            "metadata": {**config.get("metadata", {}), METADATA: about},
        }
        return request, call, marked

    def _left_out_again(
        self, answer: CallRecord, request: Request, call: ModelCall, config: RunnableConfig
    ) -> BudgetExceeded:
        """Return the error of a call that is recorded as skipped, whatever the budget is now."""
        gone = skipped_error(answer)
        about = (request.key.path, request.key.host, call.model)
        for recorder in recorders_of(config):
            recorder.tell(Event("start", *about))
            recorder.tell(Event("left_out", *about, str(gone)))
        return gone

    def _left_out(
        self, request: Request, call: ModelCall, error: BudgetExceeded, within: str
    ) -> None:
        """Record a skipped call, if a node around continues without it."""
        if not self._spending.continues_without(error, within):
            return
        at = now()
        asked = CallRecord(
            key=request.key,
            prompt=copied(request.prompt.content),
            lead=request.lead,
            context=len(request.base.messages),
            params=call.params,
            model=call.model,
            view=call.view,
            started=at,
            ended=at,
            source="live" if call.answer is None else "replayed",
            request=call.request,
        )
        for journal in call.journals:
            append_record(journal, skipped_record(asked, error))

    def _made(self, request: Request, call: ModelCall, sent: ChatPromptValue) -> Messages:
        if not call.entered:
            raise StepError("the model answered without calling its instrumented methods")
        # Only the model had access to these copies, and the call has succeeded. After a failure or
        # a timeout, its code could still be running and edit them.
        if call.unshared and (pool := COPY_POOL.get()) is not None:
            start, base = len(request.lead), request.base.messages
            pool.give_back(base, sent.messages[start : start + len(base)])
        response = response_message(request.key, call.response, call.message)
        return State((request.prompt, response))

    def request(self, path: str, base: Messages, facts: Facts) -> Request:
        """Return the request of the step."""
        lead = self._examples if self._has_fixed_lead else self.lead(path, base, facts)
        key = CallKey(facts.run, facts.host, path)
        text: Content | None = self._text
        if text is None:
            text = prompt_content(self._step, partial(context_of, path, base, facts))
        prompt = prompt_message(key, text)
        return Request(key, lead, base, prompt, [*lead, *base.messages, prompt])

    def lead(self, path: str, base: Messages, facts: Facts) -> tuple[BaseMessage, ...]:
        """Return the messages of this call only: the system message and the examples."""
        return lead_messages(self._step, self._examples, partial(context_of, path, base, facts))


def text_of(message: AIMessage) -> str:
    """Return an answer's text. Raises AnswerError if it is blank."""
    text = str(message.text)
    if text.strip():
        return text
    if message.tool_calls or message.invalid_tool_calls:
        names = ", ".join(str(call["name"]) for call in message.tool_calls) or "invalid ones"
        raise AnswerError(f"the model answered with tool calls and no text ({names})")
    if refusal := message.additional_kwargs.get("refusal"):
        raise AnswerError(f"the model refused to answer: {refusal}")
    reason = finish_reason(message)
    because = f" (finish_reason: {reason})" if reason else ""
    raise AnswerError(
        f"the model's answer is blank{because}; to accept it, set allow_empty_response=True"
    )


def any_text_of(message: AIMessage) -> str:
    """Return an answer's text, which may be blank."""
    return str(message.text)
