"""`--enqueue`: give a run to the queue of its database, and carry out such a run on a worker."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from mergepoint.apps.cli.gate_answers import (
    Decider,
    check_edits,
    check_new_answers,
    pending_answers,
    read_answers,
    with_files_read,
)
from mergepoint.apps.cli.inputs import (
    change_tree,
    check_inputs,
    check_resumed,
    example_items,
    load_blocks,
    read_budget,
    read_inputs,
    read_items,
    read_knobs,
    read_prices,
    typed,
)
from mergepoint.apps.cli.invocation import Invocation, invocation_of, model_settings
from mergepoint.apps.cli.options import InputOptions, NewRunOptions, OutputOptions
from mergepoint.apps.cli.output import CommandError, put, put_json, tell
from mergepoint.apps.cli.run_store import RunStore, StoredRun, check_run_id
from mergepoint.apps.cli.tree_run import resolve_model_or_refuse
from mergepoint.core.errors import GateOpen, describe_error
from mergepoint.engine.run_constants import new_run_id
from mergepoint.journal.redact import mask
from mergepoint.journal.sql_journal import SqlStore
from mergepoint.journal.stores import Store, masked_inputs
from mergepoint.journal.writer import run_off_loop
from mergepoint.report.run_state import COMMAND
from mergepoint.running import arun
from mergepoint.streams.recipe_runs import arun_recipe
from mergepoint.streams.thing import Thing
from mergepoint.targets import FoundTarget, find_target
from mergepoint.tree.nodes import Node
from mergepoint.tree.validate import checked, inputs_of

if TYPE_CHECKING:
    from mergepoint.scale.job_queue import JobQueue


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOrder:
    """A run that a worker begins or resumes; all of it is JSON data.

    `command` is the invocation as a journal records it, with absolute paths. `items` are those of a
    recipe, None for a tree. A run that exists when the order is carried out is resumed.
    """

    run_id: str
    command: Mapping[str, Any]
    inputs: Mapping[str, Any] = field(default_factory=dict)
    messages: Sequence[str] = ()
    answers: Sequence[str] = ()
    items: Sequence[Any] | None = None
    knobs: Mapping[str, Any] = field(default_factory=dict)
    seed: int = 0

    def to_text(self) -> str:
        """Return the order as JSON text. Raises CommandError for inputs that aren't JSON data."""
        names = self.__dataclass_fields__
        try:
            return json.dumps({name: getattr(self, name) for name in names}, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise CommandError(
                f"The inputs can't wait in a queue, because they aren't JSON data: {error}."
            ) from error


def order_of(
    found: FoundTarget,
    invocation: Invocation,
    item: Sequence[str],
    inputs: InputOptions,
    new: NewRunOptions,
) -> RunOrder:
    """Return the order of a new run. Raises CommandError and TreeError for an invalid one."""
    if new.reuse or new.replay or new.why:
        raise CommandError("--reuse, --replay and --why can't be used with --enqueue.")
    run_id = new.run_id or new_run_id()
    check_run_id(run_id)
    command = _command(invocation)
    if found.recipe is not None:
        files = list(new.items)
        if not item and not files:
            files = example_items(found.recipe)
        items = [_plain_item(one) for one in read_items(item, files)]
        knobs = read_knobs(new.knob)
        _refuse_keys({"items": items, **knobs})
        return RunOrder(run_id=run_id, command=command, items=items, knobs=knobs, seed=new.seed)
    tree = _changed(found, invocation)
    values = typed(inputs_of(tree), read_inputs(inputs.input, inputs.input_file))
    check_inputs(inputs_of(tree), values, example=found.example)
    answers = with_files_read(inputs.answer)
    read_answers(answers, tree)
    _refuse_keys({**values, "message": list(inputs.message)})
    return RunOrder(
        run_id=run_id,
        command=command,
        inputs=values,
        messages=inputs.message,
        answers=answers,
        seed=new.seed,
    )


def resume_order(
    found: FoundTarget, invocation: Invocation, run: StoredRun, inputs: InputOptions
) -> RunOrder:
    """Return the order that resumes a run. Raises CommandError for an invalid one."""
    header, records = run.read()
    if masked := header.hidden.get("names", ()):
        raise CommandError(
            f"The inputs {', '.join(masked)} of {run.place} are masked, and a queue would store "
            "them. Resume it without --enqueue."
        )
    values = read_inputs(inputs.input, inputs.input_file)
    answers = with_files_read(inputs.answer)
    if found.tree is not None:
        check_resumed(run, values, inputs.message)
        tree = _changed(found, invocation)
        given = read_answers(answers, tree)
        check_new_answers(given, records, tree)
        check_edits(given, header, records, tree)
    elif values:
        raise CommandError("A resumed run uses its recorded input. Remove --input.")
    return RunOrder(run_id=run.run_id, command=_command(invocation), answers=answers)


def put_order(order: RunOrder, runs: RunStore, url: str | None, output: OutputOptions) -> None:
    """Add a run to the queue, and print its id and how to follow it."""
    store = _database(runs)
    database = url or str(store)

    async def put_it() -> None:
        from mergepoint.scale.queued_runs import RUN_TASK

        async with _queue(database) as queue:
            waiting = await queue.known(RUN_TASK, [order.run_id])
            if any(one["status"] == "todo" for one in waiting):
                raise CommandError(f"Run {order.run_id} waits in the queue already.")
            await queue.delete([one["id"] for one in waiting if one["status"] != "doing"])
            await queue.put(RUN_TASK, [(order.run_id, {"order": order.to_text()})])

    asyncio.run(put_it())
    name = runs.get(order.run_id).name
    follow = f"mergepoint runs tail --follow {name}"
    if output.json:
        put_json({"run_id": order.run_id, "store": str(runs), "follow": follow})
        return
    put(order.run_id)
    if not output.quiet:
        tell(f"The run waits in the queue of {runs}. A worker takes it: mergepoint work")
        tell(f"follow: {follow}")


def check_queue(runs: RunStore, url: str | None) -> None:
    """Raise MergepointError if runs can't be enqueued."""
    database = url or str(_database(runs))

    async def check() -> None:
        async with _queue(database):
            pass

    asyncio.run(check())


@asynccontextmanager
async def _queue(url: str) -> Any:
    from mergepoint.scale.job_queue import open_queue

    async with open_queue(url) as queue:
        opened: JobQueue = queue
        yield opened


def _database(runs: RunStore) -> SqlStore:
    if not isinstance(runs.store, SqlStore) or not str(runs).startswith("postgresql"):
        raise CommandError(
            f"A queue needs a PostgreSQL database, and the runs are in {runs}. Pass --store "
            "postgresql://user@host/database."
        )
    return runs.store


def _command(invocation: Invocation) -> Mapping[str, Any]:
    command: Mapping[str, Any] = invocation.to_meta(None)[COMMAND]
    if hidden := command["hidden"]:
        raise CommandError(
            f"{', '.join(hidden)}: the value looks like a key, and a queue would store it. Set it "
            "in the environment of the workers."
        )
    return command


def _refuse_keys(values: Mapping[str, Any]) -> None:
    texts = [one for one in values.get("message", ()) if isinstance(one, str)]
    names = masked_inputs({name: one for name, one in values.items() if name != "message"})
    if any(mask(text) != text for text in texts):
        names.append("message")
    if names:
        raise CommandError(
            f"{', '.join(names)}: the value contains something that looks like a key, and a queue "
            "would store it. Run it without --enqueue."
        )


def _plain_item(item: Any) -> Any:
    return {"content": item.content, "props": dict(item.props)} if isinstance(item, Thing) else item


def _changed(found: FoundTarget, invocation: Invocation) -> Node:
    assert found.tree is not None  # noqa: S101  (recipes have orders of another kind)
    tree, _ = change_tree(
        found.tree,
        settings=invocation.set,
        gone=invocation.without,
        parallel=invocation.parallel,
    )
    checked(tree)
    return tree


# On a worker.


async def carry_out(store: Store, order: Mapping[str, Any]) -> dict[str, Any]:
    """Begin or resume the run of an order; return its `status` and its error or open gates.

    The status is "done", "failed", or "waiting" for a run at a gate.
    """
    return await outcome_of(lambda: _carried_out(store, RunOrder(**order)))


async def outcome_of(work: Callable[[], Awaitable[dict[str, Any]]]) -> dict[str, Any]:
    """Return the result of carrying out an order, or its `status` with the error or open gates."""
    try:
        return await work()
    except GateOpen as error:
        return {"status": "waiting", "gates": [str(one.path) for one in error.questions]}
    except Exception as error:  # noqa: BLE001  (whatever it is, the worker goes on)
        return failure_of(error)


def failure_of(error: Exception) -> dict[str, Any]:
    """Return the result of an order that ended with an error."""
    path = getattr(error, "pipeline_path", "") or ""
    plain = {"type": type(error).__name__, "message": describe_error(error), "path": path}
    return {"status": "failed", "error": plain}


async def _carried_out(store: Store, order: RunOrder) -> dict[str, Any]:
    invocation = invocation_of(order.command)
    found = await run_off_loop(_found, invocation)
    settings = model_settings(invocation)
    resumes = await run_off_loop(store.has, order.run_id)
    options: dict[str, Any] = {
        "model": await run_off_loop(resolve_model_or_refuse, invocation.model, settings),
        "budget": read_budget(invocation.budget),
        "prices": read_prices(invocation.price),
        "temperature": settings.temperature,
        "max_tokens": settings.max_tokens,
        "timeout": settings.timeout,
        "base_url": settings.base_url,
        "runs": store,
    }
    if resumes:
        options["resume"] = order.run_id
    else:
        options |= {"run_id": order.run_id, "seed": order.seed, "meta": {COMMAND: order.command}}
    if found.recipe is not None:
        options |= {"library": found.library, "method": settings.method}
        options["wanted"] = invocation.wanted
        if not resumes:
            options["knobs"] = order.knobs
        items = None if resumes else [_item(one) for one in order.items or ()]
        result = await arun_recipe(found.recipe, items, **options)
        failed = {"type": "ItemsFailed", "message": f"{len(result.failed)} items failed"}
        if result.failed:
            return {"status": "failed", "error": {**failed, "path": ""}}
        return {"status": "done", "calls": result.usage.calls}
    tree = _changed(found, invocation)
    options |= {"form": invocation.form, "view": invocation.view}
    if invocation.max_concurrency is not None:
        options["config"] = {"max_concurrency": invocation.max_concurrency}
    answers = list(order.answers)
    if resumes:
        # A worker that died may have recorded some of them.
        _, records = await run_off_loop(store.read, order.run_id)
        decided = {one.path for one in records if one.kind == "gate" and not one.asks}
        answers = pending_answers(answers, decided, tree)
    else:
        options |= {"inputs": order.inputs, "messages": list(order.messages)}
    decider = Decider(read_answers(answers, tree), tree=tree, asks=False, aside=nullcontext)
    tree_result = await arun(tree, answerer=decider, **options)
    return {"status": "done", "calls": tree_result.usage.calls}


def _found(invocation: Invocation) -> FoundTarget:
    load_blocks(invocation.blocks)
    return find_target(invocation.target)


def _item(plain: Any) -> Any:
    return Thing(plain["content"], plain["props"]) if isinstance(plain, Mapping) else plain
