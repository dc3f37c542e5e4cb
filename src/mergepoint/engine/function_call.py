"""Calls of functions: arguments, attempts and outcomes."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from langchain_core.messages import AIMessage, BaseMessage, ToolMessage
from langchain_core.runnables import Runnable, RunnableConfig, RunnableLambda
from langchain_core.runnables.config import set_config_context
from langchain_core.tools import BaseTool
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel
from pydantic import BaseModel, ValidationError

from mergepoint.core.errors import BudgetExceeded, StepError
from mergepoint.core.merge import last_response
from mergepoint.core.text import clean
from mergepoint.engine.budgets import Spending
from mergepoint.engine.callbacks import (
    METADATA,
    Event,
    Happening,
    Recorder,
    how_ended,
    recorders_of,
    traced,
    with_recorder,
)
from mergepoint.engine.run_constants import Facts, context_of, within
from mergepoint.journal.call_records import (
    CallKey,
    CallRecord,
    error_of,
    now,
    skipped_error,
    skipped_record,
)
from mergepoint.journal.fingerprint import call_digest
from mergepoint.journal.recorded_answers import AnswerRequest
from mergepoint.journal.writer import FlushedContext, after_writes, append_record, call_and_flush
from mergepoint.models.budget import BudgetSource
from mergepoint.models.event_loop import run_sync
from mergepoint.models.identity import configured, is_dynamic
from mergepoint.models.instrument import instrument_in_scope
from mergepoint.models.providers import NO_SETTINGS, ModelSettings, View
from mergepoint.models.responses import cleaned
from mergepoint.models.retry import CLOCK, wait_before_next
from mergepoint.models.scope import Samples, Scope
from mergepoint.models.timeouts import STOP_SIGNAL, TimeLimits, awaited_in_time, in_time
from mergepoint.tree.leaves import Call, CallTarget
from mergepoint.tree.policy import Policy, Retry
from mergepoint.tree.prompts import (
    CallContext,
    PromptContext,
    Reads,
    Template,
    as_text,
    copied_message,
    declared_reads,
)
from mergepoint.tree.semantics import Messages


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of a Call as JSON data, with its messages."""

    value: Any
    messages: tuple[BaseMessage, ...]
    cleaned: tuple[str, ...] = ()

    @property
    def text(self) -> str:
        """Return the text of the last response or, without one, of the value."""
        response = last_response(self.messages)
        if response is not None:
            return str(response.text)
        return "" if self.value is None else as_text(self.value)


def outcome_of(result: Any, base: Sequence[BaseMessage], *, speaks: bool) -> Outcome:
    """Return the outcome of a function's result, without lone surrogates.

    Args:
        result: The result: JSON data, messages, or a state with messages.
        base: The messages that the function received, which a result may repeat at its start.
        speaks: Whether the outcome needs messages.

    Raises:
        StepError: The result is not JSON data, has no text although a message is needed, or
            changes messages that the function received.
    """
    found = _outcome_of(result, base, speaks=speaks)
    value, messages = clean(found.value), [cleaned(message) for message in found.messages]
    changed = {"value": value is not found.value, "messages": any(names for _, names in messages)}
    names = tuple(name for name, is_changed in changed.items() if is_changed)
    if not names:
        return found
    return Outcome(value, tuple(message for message, _ in messages), names)


def _outcome_of(result: Any, base: Sequence[BaseMessage], *, speaks: bool) -> Outcome:
    messages, rest = _messages_in(result)
    if messages is None:
        value = _plain(rest)
        if not speaks:
            return Outcome(value, ())
        text = "" if value is None else as_text(value)
        if not text.strip():
            raise StepError("the call's result is blank, and its merge asks for a message")
        return Outcome(value, (AIMessage(content=text),))
    new = _new(messages, base)
    response = last_response(new)
    said = None if response is None else str(response.text)
    value = _plain(rest) if rest else said
    return Outcome(value, tuple(map(copied_message, new)) if speaks else ())


def tool_content(content: Any) -> Any:
    """Return the content of a tool's result: a string if it is only text, otherwise its blocks.

    Ids of blocks are removed, because servers of tools create new ones for every call.
    """
    if not isinstance(content, list):
        return content
    blocks = [{"type": "text", "text": one} if isinstance(one, str) else one for one in content]
    if all(isinstance(one, Mapping) and one.get("type") == "text" for one in blocks):
        return "\n".join(str(one.get("text", "")) for one in blocks)
    return [
        {key: value for key, value in one.items() if key != "id"}
        if isinstance(one, Mapping)
        else one
        for one in blocks
    ]


def _messages_in(result: Any) -> tuple[list[BaseMessage] | None, Any]:
    """Return the messages of a result, or None, and the rest of it."""
    if isinstance(result, BaseMessage):
        return [result], None
    if isinstance(result, list) and result and all(isinstance(m, BaseMessage) for m in result):
        return result, None
    if isinstance(result, Mapping) and isinstance(result.get("messages"), list):
        rest = {key: value for key, value in result.items() if key != "messages"}
        found = result["messages"]
        if all(isinstance(message, BaseMessage) for message in found):
            return found, {key: value for key, value in rest.items() if value not in (None, {}, [])}
    return None, result


def _new(messages: list[BaseMessage], base: Sequence[BaseMessage]) -> list[BaseMessage]:
    """Return the messages without a leading copy of the base."""
    leading = messages[: len(base)]
    copied = bool(base) and [_said(one) for one in leading] == [_said(one) for one in base]
    new = messages[len(base) :] if copied else messages
    known = {message.id for message in base if message.id}
    if any(message.id in known for message in new):
        raise StepError(
            "the call returned messages of the conversation that it received, changed or in "
            "another order; return only new messages, or the whole conversation followed by them"
        )
    return new


def _said(message: BaseMessage) -> tuple[str, Any]:
    return message.type, message.content


def _plain(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    try:
        return json.loads(json.dumps(value, allow_nan=False, default=_dumped))
    except (TypeError, ValueError) as error:
        raise StepError(
            f"a Call's result must be JSON data or messages; {error}. Return text, "
            "numbers, lists and mappings of them"
        ) from error


def _dumped(value: Any) -> Any:
    if isinstance(value, BaseModel):
        return value.model_dump(mode="json")
    raise TypeError(f"it contains a {type(value).__name__}")


@dataclass(frozen=True, slots=True)
class Prepared:
    """One call of a function: its arguments, recorders and budget.

    `models` returns the chat model for a function's request, not instrumented. `inner` is the
    policy of the function's model calls if it differs from the Call's. `lead` contains the messages
    of this call only. `continues` returns whether a node continues without the Call after an error
    of its budget.
    """

    call: Call
    key: CallKey
    context: CallContext
    args: Mapping[str, Any] | None
    request: str
    config: RunnableConfig
    recorders: Sequence[Recorder]
    budget: BudgetSource
    view: View | None
    models: Callable[[Any], Any]
    continues_without: Callable[[BudgetExceeded], bool]
    settings: ModelSettings = NO_SETTINGS
    inner: Policy | None = None
    lead: tuple[BaseMessage, ...] = ()

    @property
    def limits(self) -> TimeLimits:
        """Return the time limits of one execution."""
        timeout = self.call.policy.timeout
        late = "the function returned no result"
        return TimeLimits(self.key.full_path, timeout, late=late, whose="call")

    def executions(self) -> Iterator[Execution]:
        """Yield executions until one has a result or the last has failed."""
        samples = None if self.call.policy.retry is None else Samples()
        one = Execution(self, samples, 1)
        yield one
        while one.next_in is not None:
            # After an unusable answer, the numbers of samples continue, so that models are called
            # again. After any other failure, the next attempt receives the paid answers.
            if samples is not None and not one.unusable:
                samples.again()
            one = Execution(self, samples, one.number + 1, after=one.next_in)
            yield one

    def keep(self, record: CallRecord) -> None:
        """Write a record to every journal."""
        for recorder in self.recorders:
            append_record(recorder.journal, record)

    def tell(self, kind: Happening, text: str = "", *, recorded: bool = False) -> None:
        """Report an event of the call to the recorders."""
        key, label = self.key, self.call.label
        for recorder in self.recorders:
            about = (key.path, key.host, label, text)
            recorder.tell(Event(kind, *about, of="call", recorded=recorded))


class Execution:
    """One attempt of a Call, which writes its record on exit.

    A failure that may be temporary is suppressed; `next_in` is then the number of seconds until the
    next attempt. The next attempt reuses the model answers of this one, unless it failed because
    an answer was `unusable`: then the models are called again.
    """

    def __init__(
        self, asked: Prepared, samples: Samples | None, number: int, *, after: float | None = None
    ) -> None:
        self._asked = asked
        self._samples = samples
        self._after = after
        self._stop_signal = STOP_SIGNAL.get()
        self._clock = CLOCK.get()
        self._started = 0.0
        self._outcome = Outcome(None, ())
        self.number = number
        self.unusable = False
        self.next_in: float | None = None

    def pause(self) -> None:
        """Wait until it is time for this attempt. Raises KeyboardInterrupt in a stopped run."""
        self._check()
        if self._after is not None:
            self._clock.sleep(self._after)

    async def apause(self) -> None:
        """Wait like `pause`, on an event loop."""
        self._check()
        if self._after is not None:
            await self._clock.asleep(self._after)

    def _check(self) -> None:
        if self._stop_signal is not None:
            self._stop_signal.check()

    def __enter__(self) -> Self:
        self._check()
        self._started = now()
        asked, policy = self._asked, self._asked.call.policy
        self.scope = Scope(
            asked.key,
            keepers=asked.recorders,
            budget=asked.budget,
            policy=asked.settings.policy(
                asked.inner or Policy(retry=policy.retry, accept_truncated=policy.accept_truncated)
            ),
            view=asked.view,
            samples=self._samples,
            seconds=policy.timeout,
        )
        self.context = replace(asked.context, models=self._model)
        return self

    def _model(self, model: Any) -> Any:
        return instrument_in_scope(self.scope, self._asked.models(model))

    def made(self, outcome: Outcome) -> None:
        """Store the result."""
        self._outcome = outcome

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool:
        asked = self._asked
        # LangGraph's own signals are no failures: a graph that waits for a person will be resumed.
        if isinstance(error, GraphBubbleUp):
            return False
        if error is not None:
            self._outcome = Outcome(None, ())
        self.record = self._record(error)
        lacking = (
            error if isinstance(error, BudgetExceeded) and asked.continues_without(error) else None
        )
        # Recorded before the wait for the next attempt, so that a crash during the wait loses
        # nothing. A skipped call is recorded as such: a resumed run must skip it again, not count
        # an attempt.
        asked.keep(self.record if lacking is None else skipped_record(self.record, lacking))
        if error is None:
            after_writes(partial(asked.tell, "end", self._outcome.text))
            return False
        retry = asked.call.policy.retry
        self.unusable = isinstance(error, StepError | ValidationError)
        if isinstance(retry, Retry) and lacking is None and not self.scope.gave_up(error):
            self.next_in = wait_before_next(retry, self.number, error, self._clock)
        if self.next_in is None:
            if self.number > 1:
                error.add_note(f"attempt {self.number}; the earlier ones are recorded as failures")
            asked.tell(how_ended(error) if lacking is None else "left_out", str(error))
        return self.next_in is not None

    def _record(self, error: BaseException | None) -> CallRecord:
        asked = self._asked
        return CallRecord(
            key=asked.key,
            prompt="",
            lead=asked.lead,
            params=asked.args or {},
            model=asked.call.label,
            started=self._started,
            ended=now(),
            attempt=self.number,
            request=asked.request,
            error=None if error is None else error_of(error),
            kind="call",
            response=self._outcome.text,
            value=self._outcome.value,
            messages=self._outcome.messages,
            cleaned=self._outcome.cleaned,
        )


Lead = Callable[[str, Messages, Facts], tuple[BaseMessage, ...]]
"""Returns the messages of one call only, which are not part of the state."""


class FunctionCall:
    """A compiled Call, which every run uses at any path.

    Each execution is one record. Model calls inside it are recorded too, at its path and with the
    kind `inner`. Models of its context are instrumented, so that a resumed run does not repeat
    their calls.
    """

    def __init__(
        self,
        call: Call,
        models: Callable[[Any], Any],
        *,
        view: View | None,
        spending: Spending,
        settings: ModelSettings = NO_SETTINGS,
        inner: Policy | None = None,
        lead: Lead | None = None,
    ) -> None:
        self._lead = lead
        self._settings = settings
        self._inner = inner
        self._call = call
        self._models = models
        self._view = view
        self._spending = spending
        self._label = call.label

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Return the messages and the captured result of the call."""
        asked = self._prepared(path, base, facts, config)
        record = self._known(asked)
        if record is None:
            asked.tell("start")
            for execution in asked.executions():
                execution.pause()
                with execution, execution.scope:
                    run = partial(self._run, asked, execution, base)
                    execution.made(self._outcome(in_time(run, asked.limits), base))
            record = execution.record
        return record.made(self._call.capture_key)

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Return the messages and the captured result of the call."""
        asked = self._prepared(path, base, facts, config)
        record = await call_and_flush(self._known, asked)
        if record is None:
            asked.tell("start")
            for execution in asked.executions():
                await execution.apause()
                async with FlushedContext(execution), execution.scope:
                    run = self._arun(asked, execution, base)
                    result = await awaited_in_time(run, asked.limits)
                    execution.made(self._outcome(result, base))
            record = execution.record
        return record.made(self._call.capture_key)

    def _outcome(self, result: Any, base: Messages) -> Outcome:
        return outcome_of(result, base.messages, speaks=self._call.merge != "none")

    def _prepared(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Prepared:
        recorders = recorders_of(config)
        key = CallKey(facts.run, facts.host, path)
        plain = context_of(path, base, facts, self._call.reads)
        context = CallContext(
            **{name: getattr(plain, name) for name in PromptContext.__dataclass_fields__},
            call_id=f"{facts.run}/{key.full_path}",
        )
        for required in context.reads.required:
            context.read(required)
        args = None if self._call.args is None else self._filled(self._call.args, context)
        request = self._digest(context, base, facts, args, recorders)
        about = {"path": path, "run": facts.run, "host": facts.host, "inside": True}
        metadata = {**config.get("metadata", {}), METADATA: about}
        config = traced(config, key.full_path)
        if not isinstance(self._call.target, Runnable):
            # The Runnables that a function calls would inherit the name in traces.
            config.pop("run_name")
        config = {**within(config, facts.host, path), "metadata": metadata}
        if not recorders and self._spending.limited:
            # A callback must charge calls of models that are not instrumented.
            config = with_recorder(config, Recorder())
        return Prepared(
            call=self._call,
            key=key,
            context=context,
            args=args,
            request=request,
            config=config,
            recorders=recorders,
            budget=self._spending.source_for(facts, recorders),
            view=self._view,
            models=lambda model: self._chosen(model, config),
            settings=self._settings,
            inner=self._inner,
            lead=() if self._lead is None else self._lead(path, base, facts),
            continues_without=lambda error: self._spending.continues_without(error, facts.within),
        )

    def _chosen(self, model: Any, config: RunnableConfig) -> Any:
        """Return the model that a function requests; the config chooses a configurable one."""
        found = self._models(model)
        if not is_dynamic(found):
            return found
        return self._settings.on(configured(found, config), declared=model is not None)

    def _filled(self, args: Mapping[str, Any], context: CallContext) -> dict[str, Any]:
        """Return the arguments with their templates filled in."""
        filled: dict[str, Any] = {}
        for name, value in args.items():
            if not isinstance(value, Template):
                filled[name] = value
                continue
            read = replace(context, reads=Reads(value.keys, value.defaults)).read
            filled[name] = value.render(read) if value.whole is None else read(value.whole)
        return filled

    def _digest(
        self,
        context: CallContext,
        base: Messages,
        facts: Facts,
        args: Mapping[str, Any] | None,
        recorders: Sequence[Recorder],
    ) -> str:
        """Return the fingerprint of a call: its target and arguments, or its whole view."""
        keyed = [one for one in recorders if one.answers is not None or one.journal.keyed]
        if not keyed:
            return ""
        declared = None if args is not None else declared_reads(self._call.target)
        if args is not None:
            given: Any = dict(args)
        elif declared is not None and not isinstance(self._call.target, Runnable | CallTarget):
            given = {name: context.read(name) for name in declared.keys}
        else:
            # Without declared reads, the function can read everything that it sees.
            seen = keyed[0].digests.state(base.messages, base.outputs)
            given = [seen, dict(facts.inputs)]
        return call_digest(self._label, self._call.version, given)

    def _known(self, asked: Prepared) -> CallRecord | None:
        """Return the record that replaces the call, and write it to the journals that lack it."""
        question = AnswerRequest(
            path=asked.key.full_path,
            request=asked.request,
            prompt="",
            model=self._label,
            params=asked.args or {},
            context=0,
            kind="call",
        )
        for recorder in asked.recorders:
            if recorder.answers is None:
                continue
            found = recorder.answers.find(question)
            if found is None:
                continue
            record = replace(found, key=asked.key, source="replayed")
            for other in asked.recorders:
                if other is not recorder or not recorder.answers.owns(found):
                    append_record(other.journal, record)
            asked.tell("start")
            if record.kind == "left_out":
                error = skipped_error(record)
                asked.tell("left_out", str(error))
                raise error
            after_writes(partial(asked.tell, "end", record.response, recorded=True))
            return record
        return None

    def _run(self, asked: Prepared, execution: Execution, base: Messages) -> Any:
        target: Any = self._call.target
        if _is_async_only(target):
            with set_config_context(asked.config) as context:
                work = self._arun(asked, execution, base)
                # The work may leave calls in progress on the shared event loop. They belong to this
                # execution, so its record has to wait for them.
                return context.run(run_sync, _ended(work, execution.scope))
        if isinstance(target, BaseTool):
            return _result_of(target, target.invoke(_tool_input(target, asked), asked.config))
        if isinstance(target, Runnable):
            return target.invoke(self._input(asked, base), asked.config)
        with set_config_context(asked.config) as context:
            result = context.run(self._applied, target, asked, execution.context)
            if not inspect.isawaitable(result):
                return result
            return context.run(run_sync, _ended(result, execution.scope))

    async def _arun(self, asked: Prepared, execution: Execution, base: Messages) -> Any:
        target: Any = self._call.target
        if isinstance(target, BaseTool):
            result = await target.ainvoke(_tool_input(target, asked), asked.config)
            return _result_of(target, result)
        if isinstance(target, Runnable):
            return await target.ainvoke(self._input(asked, base), asked.config)
        loop = asyncio.get_running_loop()
        with set_config_context(asked.config) as context:
            applied = partial(self._applied, target, asked, execution.context)
            if inspect.iscoroutinefunction(target):
                # LangChain reads the ambient config from the context of the running task.
                return await loop.create_task(applied(), context=context)
            # A sync function may block. The context goes with it, so that its models find their
            # scope.
            result = await loop.run_in_executor(None, context.run, applied)
            if not inspect.isawaitable(result):
                return result
            return await loop.create_task(_waited(result), context=context)

    def _applied(self, target: Any, asked: Prepared, given: CallContext) -> Any:
        if isinstance(target, CallTarget):
            return target.perform(asked, given)
        if asked.args is None:
            return target(given)
        wants = inspect.signature(target).parameters
        extra = {"ctx": given} if "ctx" in wants and "ctx" not in asked.args else {}
        return target(**_copied(asked.args), **extra)

    def _input(self, asked: Prepared, base: Messages) -> Any:
        if asked.args is not None:
            return _copied(asked.args)
        copies = [copied_message(message) for message in base.messages]
        return {"messages": copies} if isinstance(self._call.target, Pregel) else copies


def _is_async_only(target: Any) -> bool:
    """Return whether a tool or lambda has only an async function, as tools of MCP servers do."""
    if isinstance(target, BaseTool):
        return getattr(target, "func", target) is None and hasattr(target, "coroutine")
    return isinstance(target, RunnableLambda) and not hasattr(target, "func")


def _tool_input(tool: BaseTool, asked: Prepared) -> Any:
    """Return the arguments of a tool, as a tool call if its result can report a failure."""
    args = _copied(dict(asked.args or {}))
    if tool.response_format != "content_and_artifact":
        return args
    return {"type": "tool_call", "id": "", "name": tool.name, "args": args}


def _result_of(tool: BaseTool, result: Any) -> Any:
    """Return a tool's result, with blocks of text as a string. Raises StepError for a failure."""
    if not isinstance(result, ToolMessage):
        is_content = isinstance(result, list) and all(map(_is_block, result)) and bool(result)
        return tool_content(result) if is_content else result
    content = tool_content(result.content)
    if result.status == "error":
        raise StepError(f"the tool {tool.name!r} failed: {content}")
    return content


def _is_block(one: Any) -> bool:
    return isinstance(one, Mapping) and one.get("type") == "text" and "text" in one


def _copied(value: Any) -> Any:
    """Return copies of lists and mappings, so that no function changes the tree or the records."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


async def _ended(work: Awaitable[Any], scope: Scope) -> Any:
    """Wait for work, and for calls that it left in progress: they are part of the execution."""
    try:
        return await work
    finally:
        await scope.aend()


async def _waited(work: Awaitable[Any]) -> Any:
    return await work
