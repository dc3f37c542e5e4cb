"""FunctionCall: how a Call runs its function, tool, Runnable or graph, the same in every engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, replace
from typing import Any, Literal

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.errors import GraphBubbleUp
from langgraph.pregel import Pregel

from mergepoint.record.answers import Asked
from mergepoint.record.record import CallKey, CallRecord, error_of, now
from mergepoint.record.request import call_digest
from mergepoint.run.facts import Facts, context_of, within
from mergepoint.run.outcome import Outcome, outcome_of
from mergepoint.run.recorder import METADATA, Event, Recorder, recorders_of
from mergepoint.tree.call import Call
from mergepoint.tree.context import CallContext, PromptContext
from mergepoint.tree.fold import Messages
from mergepoint.tree.template import Reads, Template, declared_reads


@dataclass(frozen=True, slots=True)
class _Prepared:
    key: CallKey
    context: CallContext
    args: Mapping[str, Any] | None
    request: str
    config: RunnableConfig
    recorders: Sequence[Recorder]


class FunctionCall:
    """A Call that can be run at any path. Made once, used in every run.

    Its whole execution is one record. Model calls inside of it are recorded too, under its path
    and as `inner`, and are made again when it is.
    """

    def __init__(self, call: Call, models: Callable[[Any], Any]) -> None:
        self._call = call
        self._models = models
        self._label = call.label

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Give what the call makes: its messages, and its captured result."""
        asked = self._prepared(path, base, facts, config)
        if (record := self._known(asked)) is not None:
            return record.made(self._call.capture_key)
        self._tell(asked, "start")
        started = now()
        try:
            result = self._run(asked, base)
            if inspect.isawaitable(result):
                result = _awaited(result)
            outcome = outcome_of(result, base.messages, speaks=self._call.merge != "none")
        except GraphBubbleUp:
            raise
        except BaseException as error:
            self._failed(asked, started, error)
            raise
        return self._done(asked, started, outcome)

    async def ainvoke(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> Messages:
        """Give what the call makes: its messages, and its captured result."""
        asked = self._prepared(path, base, facts, config)
        if (record := self._known(asked)) is not None:
            return record.made(self._call.capture_key)
        self._tell(asked, "start")
        started = now()
        try:
            result = await self._arun(asked, base)
            outcome = outcome_of(result, base.messages, speaks=self._call.merge != "none")
        except GraphBubbleUp:
            raise
        except BaseException as error:
            self._failed(asked, started, error)
            raise
        return self._done(asked, started, outcome)

    def _prepared(
        self, path: str, base: Messages, facts: Facts, config: RunnableConfig
    ) -> _Prepared:
        recorders = recorders_of(config)
        key = CallKey(facts.run, facts.host, path)
        plain = context_of(path, base, facts, self._call.reads)
        context = CallContext(
            **{name: getattr(plain, name) for name in PromptContext.__dataclass_fields__},
            call_id=f"{facts.run}/{key.full_path}",
            models=self._models,
        )
        for required in context.reads.required:
            context.read(required)
        args = None if self._call.args is None else self._filled(self._call.args, context)
        request = self._digest(context, base, facts, args, recorders)
        about = {"path": path, "run": facts.run, "host": facts.host, "inside": True}
        metadata = {**config.get("metadata", {}), METADATA: about}
        config = {**within(config, key.full_path), "metadata": metadata}
        return _Prepared(key, context, args, request, config, recorders)

    def _filled(self, args: Mapping[str, Any], context: CallContext) -> dict[str, Any]:
        """Give the arguments with what their templates read."""
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
        """Give the digest of what is called and what it is given; its whole view if undeclared."""
        keyed = [one for one in recorders if one.answers is not None or one.journal.keyed]
        if not keyed:
            return ""
        declared = None if args is not None else declared_reads(self._call.target)
        if args is not None:
            given: Any = dict(args)
        elif declared is not None and not isinstance(self._call.target, Runnable):
            given = {name: context.read(name) for name in declared.keys}
        else:
            seen = keyed[0].digests.state(base.messages, base.outputs)
            given = [seen, dict(facts.inputs)]
        return call_digest(self._label, self._call.version, given)

    def _known(self, asked: _Prepared) -> CallRecord | None:
        """Give the record that stands in for the call, written to those journals that lack it."""
        question = Asked(asked.key.full_path, asked.request, "", self._label, asked.args or {}, 0)
        for recorder in asked.recorders:
            if recorder.answers is None:
                continue
            found = recorder.answers.find(question)
            if found is None:
                continue
            record = replace(found, key=asked.key, source="replayed")
            for other in asked.recorders:
                if other is not recorder or not recorder.answers.same_run:
                    other.journal.append(record)
            self._tell(asked, "start")
            self._tell(asked, "end", record.response)
            return record
        return None

    def _run(self, asked: _Prepared, base: Messages) -> Any:
        target: Any = self._call.target
        if isinstance(target, Runnable):
            return target.invoke(self._input(asked, base), asked.config)
        with set_config_context(asked.config) as context:
            return context.run(self._applied, target, asked)

    async def _arun(self, asked: _Prepared, base: Messages) -> Any:
        target: Any = self._call.target
        if isinstance(target, Runnable):
            return await target.ainvoke(self._input(asked, base), asked.config)
        with set_config_context(asked.config) as context:
            if not inspect.iscoroutinefunction(target):
                work = asyncio.get_running_loop().run_in_executor(
                    None, context.run, self._applied, target, asked
                )
                result = await work
                return await result if inspect.isawaitable(result) else result
            task = asyncio.get_running_loop().create_task(
                self._applied(target, asked), context=context
            )
            return await task

    def _applied(self, target: Callable[..., Any], asked: _Prepared) -> Any:
        if asked.args is None:
            return target(asked.context)
        wants = inspect.signature(target).parameters
        extra = {"ctx": asked.context} if "ctx" in wants and "ctx" not in asked.args else {}
        return target(**_copied(asked.args), **extra)

    def _input(self, asked: _Prepared, base: Messages) -> Any:
        if asked.args is not None:
            return _copied(asked.args)
        copies = [message.model_copy(deep=True) for message in base.messages]
        return {"messages": copies} if isinstance(self._call.target, Pregel) else copies

    def _done(self, asked: _Prepared, started: float, outcome: Outcome) -> Messages:
        record = self._record(asked, started, None, outcome)
        for recorder in asked.recorders:
            recorder.journal.append(record)
        self._tell(asked, "end", outcome.text)
        return record.made(self._call.capture_key)

    def _failed(self, asked: _Prepared, started: float, error: BaseException) -> None:
        record = self._record(asked, started, error, Outcome(None, ()))
        for recorder in asked.recorders:
            recorder.journal.append(record)
        self._tell(asked, "error", str(error))

    def _tell(
        self, asked: _Prepared, kind: Literal["start", "end", "error"], text: str = ""
    ) -> None:
        for recorder in asked.recorders:
            recorder.tell(Event(kind, asked.key.path, asked.key.host, self._label, text, of="call"))

    def _record(
        self, asked: _Prepared, started: float, error: BaseException | None, outcome: Outcome
    ) -> CallRecord:
        return CallRecord(
            key=asked.key,
            prompt="",
            params=asked.args or {},
            model=self._label,
            started=started,
            ended=now(),
            request=asked.request,
            error=None if error is None else error_of(error),
            kind="call",
            response=outcome.text,
            value=outcome.value,
            messages=outcome.messages,
        )


def _copied(value: Any) -> Any:
    """Give lists and mappings again, so that nobody can change the tree or what is on record."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _awaited(work: Any) -> Any:
    """Wait for an async function in sync work, also where an event loop runs already."""

    async def wait() -> Any:
        return await work

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, wait()).result()
