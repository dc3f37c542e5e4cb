"""FunctionCall: how a Call runs its function, tool, Runnable or graph, the same in every engine."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import replace
from functools import partial
from typing import Any

from langchain_core.runnables import Runnable, RunnableConfig
from langchain_core.runnables.config import set_config_context
from langgraph.pregel import Pregel

from mergepoint.models.aside import in_time
from mergepoint.models.landing import awaited_in_time
from mergepoint.models.scope import Scope
from mergepoint.models.view import View
from mergepoint.record.answers import Asked
from mergepoint.record.left_out import exceeded
from mergepoint.record.record import CallKey, CallRecord
from mergepoint.record.request import call_digest
from mergepoint.run.execution import Execution, Prepared
from mergepoint.run.facts import Facts, context_of, within
from mergepoint.run.outcome import Outcome, outcome_of
from mergepoint.run.recorder import METADATA, Recorder, recorders_of, with_recorder
from mergepoint.run.spending import Spending
from mergepoint.tree.call import Call
from mergepoint.tree.context import CallContext, PromptContext
from mergepoint.tree.fold import Messages
from mergepoint.tree.performed import Performed
from mergepoint.tree.template import Reads, Template, declared_reads


class FunctionCall:
    """A Call that can be run at any path. Made once, used in every run.

    Its whole execution is one record. Models inside of it, under its path and as `inner`, are on
    record too; those that its context gives pass the door, and are not asked again.
    """

    def __init__(
        self,
        call: Call,
        models: Callable[[Any], Any],
        *,
        view: View | None,
        spending: Spending,
    ) -> None:
        self._call = call
        self._models = models
        self._view = view
        self._spending = spending
        self._label = call.label

    def invoke(self, path: str, base: Messages, facts: Facts, config: RunnableConfig) -> Messages:
        """Give what the call makes: its messages, and its captured result."""
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
        """Give what the call makes: its messages, and its captured result."""
        asked = self._prepared(path, base, facts, config)
        record = self._known(asked)
        if record is None:
            asked.tell("start")
            for execution in asked.executions():
                await execution.apause()
                with execution:
                    async with execution.scope:
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
        config = {**within(config, facts.host, path), "metadata": metadata}
        if not recorders and self._spending.limited:  # who hears of models that pass no door
            config = with_recorder(config, Recorder())
        return Prepared(
            call=self._call,
            key=key,
            context=context,
            args=args,
            request=request,
            config=config,
            recorders=recorders,
            purse=self._spending.purse(facts, recorders),
            view=self._view,
            models=self._models,
            goes_on=lambda error: self._spending.goes_on(error, facts.within),
        )

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
        elif declared is not None and not isinstance(self._call.target, Runnable | Performed):
            given = {name: context.read(name) for name in declared.keys}
        else:
            seen = keyed[0].digests.state(base.messages, base.outputs)
            given = [seen, dict(facts.inputs)]
        return call_digest(self._label, self._call.version, given)

    def _known(self, asked: Prepared) -> CallRecord | None:
        """Give the record that stands in for the call, written to those journals that lack it."""
        question = Asked(
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
                    other.journal.append(record)
            asked.tell("start")
            if record.kind == "left_out":
                error = exceeded(record)
                asked.tell("left_out", str(error))
                raise error
            asked.tell("end", record.response)
            return record
        return None

    def _run(self, asked: Prepared, execution: Execution, base: Messages) -> Any:
        target: Any = self._call.target
        if isinstance(target, Runnable):
            return target.invoke(self._input(asked, base), asked.config)
        with set_config_context(asked.config) as context:
            result = context.run(self._applied, target, asked, execution.context)
            if not inspect.isawaitable(result):
                return result
            return context.run(_awaited, result, execution.scope)

    async def _arun(self, asked: Prepared, execution: Execution, base: Messages) -> Any:
        target: Any = self._call.target
        if isinstance(target, Runnable):
            return await target.ainvoke(self._input(asked, base), asked.config)
        loop = asyncio.get_running_loop()
        with set_config_context(asked.config) as context:
            applied = partial(self._applied, target, asked, execution.context)
            if inspect.iscoroutinefunction(target):
                return await loop.create_task(applied(), context=context)
            result = await loop.run_in_executor(None, context.run, applied)
            if not inspect.isawaitable(result):
                return result
            return await loop.create_task(_waited(result), context=context)

    def _applied(self, target: Any, asked: Prepared, given: CallContext) -> Any:
        if isinstance(target, Performed):
            return target.perform(asked, given)
        if asked.args is None:
            return target(given)
        wants = inspect.signature(target).parameters
        extra = {"ctx": given} if "ctx" in wants and "ctx" not in asked.args else {}
        return target(**_copied(asked.args), **extra)

    def _input(self, asked: Prepared, base: Messages) -> Any:
        if asked.args is not None:
            return _copied(asked.args)
        copies = [message.model_copy(deep=True) for message in base.messages]
        return {"messages": copies} if isinstance(self._call.target, Pregel) else copies


def _copied(value: Any) -> Any:
    """Give lists and mappings again, so that nobody can change the tree or what is on record."""
    if type(value) is list:
        return [_copied(item) for item in value]
    if type(value) is dict:
        return {key: _copied(item) for key, item in value.items()}
    return value


def _awaited(work: Awaitable[Any], scope: Scope) -> Any:
    """Wait for an async function in sync work, also where an event loop runs already."""
    with ThreadPoolExecutor(1) as thread:
        return thread.submit(copy_context().run, asyncio.run, _ended(work, scope)).result()


async def _ended(work: Awaitable[Any], scope: Scope) -> Any:
    """Wait for work, and for calls it left in flight, which the end of their loop would cancel."""
    try:
        return await work
    finally:
        await scope.aend()


async def _waited(work: Awaitable[Any]) -> Any:
    return await work
