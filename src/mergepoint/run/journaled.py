"""Journaled runs: what a run's journal starts with, and how another run goes on from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

from langchain_core.messages import BaseMessage

from mergepoint.core.errors import Fault, TreeError
from mergepoint.record.answers import Replayed, Resumed, Reused
from mergepoint.record.header import RunHeader
from mergepoint.record.journal import MemoryJournal
from mergepoint.record.lines import JournalError
from mergepoint.record.request import call_digest
from mergepoint.record.store import RunJournal, Store
from mergepoint.run.calls import Calls
from mergepoint.run.context import RunContext
from mergepoint.run.facts import whole_messages
from mergepoint.tree.call import Call
from mergepoint.tree.node import Node, root_path, walk
from mergepoint.tree.outline import outline
from mergepoint.tree.step import Step
from mergepoint.tree.template import Template


def start_journal(ctx: RunContext, tree: Node, calls: Calls, store: Store) -> RunJournal:
    """Begin the journal of a new run, and let the context's recorder write to it."""
    header = RunHeader(
        run_id=ctx.run_id_for(tree),
        created_at=ctx.created_at,
        seed=ctx.seed,
        inputs=dict(ctx.inputs),
        messages=tuple(whole_messages(ctx.messages)),
        tree=outline(tree),
        requests=statics(tree, calls),
    )
    journal = store.create(header)
    ctx.earlier = ctx.recorder.journal.records
    ctx.recorder.journal = journal
    return journal


def resume_journal(
    ctx: RunContext, tree: Node, calls: Calls, store: Store, run_id: str
) -> RunJournal:
    """Go on with a run: the context gets its id, seed, time, inputs and messages back.

    Calls that are on record are not made again. Raises TreeError, with the paths that differ,
    for a tree that is not the one that the run began with; JournalError where what the run was
    given is not on record as it was.
    """
    journal = store.open(run_id)
    header = journal.header
    try:
        if header.masked:
            raise JournalError(
                f"run {run_id!r} in {store} cannot be resumed: its {' and '.join(header.masked)} "
                "held what was hidden before it was written; begin a new run that is given them "
                "again and reuses what is on record (--reuse)"
            )
        if faults := changes(header, tree, calls):
            raise TreeError(faults)
    except BaseException:
        journal.close()
        raise
    ctx.run_id = header.run_id
    ctx.created_at = header.created_at
    ctx.seed = header.seed
    ctx.inputs = dict(header.inputs)
    ctx.messages = list(header.messages)
    ctx.recorder.journal = journal
    ctx.recorder.answers = Resumed(journal.records, again=journal.append)
    return journal


def end_journal(ctx: RunContext, journal: RunJournal) -> None:
    """Close it; the context keeps the records, and begins its next turn without answers."""
    journal.close()
    ctx.recorder.journal = MemoryJournal([*ctx.earlier, *journal.records])
    ctx.earlier = ()
    ctx.recorder.answers = None


def reuse_journal(ctx: RunContext, store: Store, run_id: str) -> None:
    """Take the answers of another run for what is asked again, by path or by request alone."""
    ctx.recorder.answers = Reused(store.read(run_id)[1])


def replay_journal(ctx: RunContext, store: Store, run_id: str) -> None:
    """Take every answer from another run; what is not on record raises ReplayMiss."""
    ctx.recorder.answers = Replayed(store.read(run_id)[1])


def changes(header: RunHeader, tree: Node, calls: Calls) -> list[Fault]:
    """Give what differs between a tree and the one that a run began with, by path."""
    now, before = statics(tree, calls), header.requests
    way_out = "; begin a new run that reuses what still fits (--reuse)"
    faults = [
        Fault(path, f"is another step than the run began with{way_out}")
        for path in now
        if path in before and now[path] != before[path]
    ]
    faults += [Fault(path, f"is new since the run began{way_out}") for path in now.keys() - before]
    faults += [Fault(path, f"is gone since the run began{way_out}") for path in before - now.keys()]
    if not faults and outline(tree) != header.tree:
        faults.append(Fault(root_path(tree), f"merges or captures differ{way_out}"))
    return faults


def statics(tree: Node, calls: Calls) -> dict[str, str]:
    """Give a digest of what is static in each step: its texts, and how its model is called.

    A prompt function counts by its qualified name: what it says is seen only when it is called.
    """
    return {
        path: _digest(node, calls.setting(node, path))
        if isinstance(node, Step)
        else call_digest(node.label, node.version, _args(node))
        for path, node in walk(tree)
        if isinstance(node, Step | Call)
    }


def _args(call: Call) -> Any:
    return None if call.args is None else {name: _value(arg) for name, arg in call.args.items()}


def _value(arg: Any) -> Any:
    return _source(arg) if isinstance(arg, Template) else arg


def _digest(step: Step, setting: bytes) -> str:
    examples = [
        [example.type, example.content] if isinstance(example, BaseMessage) else list(example)
        for example in step.examples
    ]
    said: list[Any] = [setting.hex(), _source(step.prompt), _source(step.system), examples]
    return hashlib.blake2b(json.dumps(said).encode(), digest_size=16).hexdigest()


def _source(text: str | Template | Callable[..., Any] | None) -> Any:
    if isinstance(text, Template):
        return {"template": text.text, "defaults": dict(text.defaults)}
    if text is None or isinstance(text, str):
        return text
    kind: Any = text if hasattr(text, "__qualname__") else type(text)
    return {"function": f"{kind.__module__}.{kind.__qualname__}"}
