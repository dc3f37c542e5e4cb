"""StepCall: how one step asks its model, the same in every engine."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage, SystemMessage
from langchain_core.prompt_values import ChatPromptValue
from langchain_core.runnables import Runnable, RunnableConfig
from pydantic import BaseModel, ValidationError

from mergepoint.core.errors import BudgetExceeded, StepError
from mergepoint.core.state import State
from mergepoint.core.swift import swift
from mergepoint.models.bound import shape_of
from mergepoint.models.door import behind_door
from mergepoint.models.identity import identity
from mergepoint.models.look_up import look_up, looks_up
from mergepoint.models.passage import CALL, ModelCall
from mergepoint.models.view import View, view_of
from mergepoint.record.left_out import exceeded, left_out
from mergepoint.record.record import (
    CallKey,
    CallRecord,
    now,
    prompt_message,
    response_message,
)
from mergepoint.record.request import setting_digest
from mergepoint.run.facts import Facts, context_of
from mergepoint.run.prompt import checked_prompt
from mergepoint.run.recorder import METADATA, Event, recorders_of
from mergepoint.run.spending import Spending
from mergepoint.tree.fold import Messages
from mergepoint.tree.step import Content, Step
from mergepoint.tree.template import Reads, Template, declared_reads


@swift
@dataclass(frozen=True, slots=True)
class Request:
    """What a step is about to send."""

    key: CallKey
    lead: tuple[BaseMessage, ...]
    base: Messages
    prompt: HumanMessage
    messages: list[BaseMessage]

    @classmethod
    def of(
        cls, key: CallKey, lead: tuple[BaseMessage, ...], base: Messages, prompt: HumanMessage
    ) -> Request:
        """Give the request of system message, examples, base and prompt, in this order."""
        return cls(key, lead, base, prompt, [*lead, *base.messages, prompt])

    def sent(self) -> ChatPromptValue:
        """Give the messages as LangChain passes them on.

        A list would be converted and validated at every call, message by message; at some
        thousand messages that is a third to a half of the call. These are messages already.
        """
        return ChatPromptValue.model_construct(messages=self.messages)


class StepCall:
    """A step with its model behind the door. Made once, called in every run."""

    def __init__(
        self, step: Step, model: BaseChatModel, *, view: View | None, spending: Spending
    ) -> None:
        self._spending = spending
        self._step = step
        self._params: dict[str, Any] = dict(step.params)
        if step.temperature is not None:
            self._params["temperature"] = step.temperature
        structured = step.schema is not None
        self._bound = self._params if structured else {}
        self._passed = {} if structured else self._params
        self._identity = identity(model, self._params)
        self._view: View = view or view_of(model)
        self._accept: Callable[[AIMessage], str] = text_of
        self._model: Runnable[Any, Any] = behind_door(model)
        if step.schema is not None:
            self._accept = json_of(step.schema)
            self._model = behind_door(model).with_structured_output(step.schema, include_raw=True)
        schema = None if step.schema is None else step.schema.model_json_schema()
        self.setting = setting_digest(self._identity, self._params, self._view, schema)
        self.shape = shape_of(self._identity, model, schema)
        self._examples = tuple(_example_messages(step))

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Give what the step makes of its base: prompt and response."""
        request, call, config = self._prepared(path, base, facts, config)
        token = CALL.set(call)
        try:
            self._left_out_again(request, call, config)
            self._model.invoke(request.sent(), config, **self._passed)
        except BudgetExceeded as error:
            self._left_out(request, call, error, facts.within)
            raise
        finally:
            CALL.reset(token)
        return self._made(request, call)

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Give what the step makes of its base: prompt and response."""
        request, call, config = self._prepared(path, base, facts, config)
        token = CALL.set(call)
        try:
            self._left_out_again(request, call, config)
            await self._model.ainvoke(request.sent(), config, **self._passed)
        except BudgetExceeded as error:
            self._left_out(request, call, error, facts.within)
            raise
        finally:
            CALL.reset(token)
        return self._made(request, call)

    def _prepared(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> tuple[Request, ModelCall, RunnableConfig]:
        request = self._request(path, base, facts)
        recorders = recorders_of(config)
        call = ModelCall(
            key=request.key,
            model=self._identity,
            view=self._view,
            lead=len(request.lead),
            params=self._params,
            journals=[recorder.journal for recorder in recorders],
            accept=self._accept,
            bound=self._bound,
            purse=self._spending.purse(facts, recorders),
            policy=self._step.policy,
        )
        for recorder in recorders:
            if looks_up(recorder):
                call.request = recorder.digests.request(
                    self.setting, request.messages, lead=len(request.lead)
                )
                look_up(call, request.messages, recorder)
        about = {"path": path, "run": facts.run, "host": facts.host, "n": 0}
        if self._step.meta:
            about["meta"] = dict(self._step.meta)
        marked: RunnableConfig = {
            **config,
            "metadata": {**config.get("metadata", {}), METADATA: about},
        }
        return request, call, marked

    def _left_out_again(self, request: Request, call: ModelCall, config: RunnableConfig) -> None:
        """Leave out what is on record as left out, whatever the budget is by now."""
        if call.answer is None or call.answer.kind != "left_out":
            return
        gone = exceeded(call.answer)
        about = (request.key.path, request.key.host, self._identity)
        for recorder in recorders_of(config):
            recorder.tell(Event("start", *about))
            recorder.tell(Event("left_out", *about, str(gone)))
        raise gone

    def _left_out(
        self, request: Request, call: ModelCall, error: BudgetExceeded, within: str
    ) -> None:
        """Put on record that a node around goes on without the call, if it does."""
        if not self._spending.goes_on(error, within):
            return
        at = now()
        asked = CallRecord(
            key=request.key,
            prompt=request.prompt.content,
            lead=request.lead,
            context=len(request.base.messages),
            params=self._params,
            model=self._identity,
            view=self._view,
            started=at,
            ended=at,
            source="live" if call.answer is None else "replayed",
            request=call.request,
        )
        for journal in call.journals:
            journal.append(left_out(asked, error))

    def _made(self, request: Request, call: ModelCall) -> Messages:
        if not call.entered:
            raise StepError("the model answered without passing the door")
        return State((request.prompt, response_message(request.key, call.response)))

    def _request(self, path: str, base: Messages, facts: Facts) -> Request:
        step = self._step
        lead = self._examples
        if step.system is not None:
            system = _rendered(step.system, path, base, facts)
            lead = (SystemMessage(content=system), *lead)
        key = CallKey(facts.run, facts.host, path)
        return Request.of(key, lead, base, prompt_message(key, self._prompt(path, base, facts)))

    def _prompt(self, path: str, base: Messages, facts: Facts) -> Content:
        prompt = self._step.prompt
        if isinstance(prompt, str | Template):
            return _rendered(prompt, path, base, facts)
        context = context_of(path, base, facts, declared_reads(prompt))
        for key in context.reads.required:
            context.read(key)
        try:
            return checked_prompt(prompt(context))
        except StopIteration as error:  # would end a coroutine that it passes through
            raise StepError("the prompt function raised StopIteration") from error


def _rendered(text: str | Template, path: str, base: Messages, facts: Facts) -> str:
    if isinstance(text, str):
        return text
    context = context_of(path, base, facts, Reads(text.keys, text.defaults))
    rendered = text.render(context.read)
    if not rendered.strip():
        raise StepError("the template rendered to blank text")
    return rendered


def text_of(message: AIMessage) -> str:
    """Give an answer's text. Raises StepError where there is none."""
    text = str(message.text)
    if text.strip():
        return text
    if message.tool_calls or message.invalid_tool_calls:
        names = ", ".join(str(call["name"]) for call in message.tool_calls) or "invalid ones"
        raise StepError(f"the model answered with tool calls and no text ({names})")
    reason = message.response_metadata.get("finish_reason")
    because = f" (finish_reason: {reason})" if reason else ""
    raise StepError(f"the model's answer is blank{because}")


def json_of(schema: type[BaseModel]) -> Callable[[AIMessage], str]:
    """Give the function that checks an answer against a schema and writes it as canonical JSON.

    Canonical: keys sorted, no spaces, as in RFC 8785.
    """

    def accept(message: AIMessage) -> str:
        try:
            if message.tool_calls:
                found = schema.model_validate(message.tool_calls[0]["args"])
            else:
                found = schema.model_validate_json(str(message.text))
        except ValidationError as error:
            raise StepError(f"the answer does not fit {schema.__name__}: {error}") from error
        plain = found.model_dump(mode="json")
        return json.dumps(plain, sort_keys=True, ensure_ascii=False, separators=(",", ":"))

    return accept


def _example_messages(step: Step) -> Sequence[BaseMessage]:
    shown: list[BaseMessage] = []
    for example in step.examples:
        if isinstance(example, BaseMessage):
            shown.append(example.model_copy(deep=True))
        else:
            user, assistant = example
            shown += [HumanMessage(content=user), AIMessage(content=assistant)]
    return shown
