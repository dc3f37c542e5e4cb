"""`mergepoint show`: a workflow, the progress of a run, or everything about one call."""

from __future__ import annotations

import json as json_format
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from mergepoint.apps.cli.framework import argument, option
from mergepoint.apps.cli.inspect_commands import recipe_facts, tree_facts
from mergepoint.apps.cli.options import (
    Blocks,
    Json,
    Knobs,
    StoreOptions,
    complete_paths,
    complete_shown,
)
from mergepoint.apps.cli.output import (
    CommandError,
    brief,
    clock,
    count,
    put,
    put_json,
    put_row,
    put_shown,
)
from mergepoint.apps.cli.run_store import LAST, in_queue, read_run, show_queued, with_queue
from mergepoint.core.paths import is_file
from mergepoint.core.text import money
from mergepoint.report.run_state import ending, local_time, rejection, tokens_of, words_of
from mergepoint.tree.load import TargetError, about

if TYPE_CHECKING:
    from mergepoint.apps.cli.live import LiveTree
    from mergepoint.apps.cli.run_store import FoundRun, RunStore
    from mergepoint.journal.call_records import CallRecord
    from mergepoint.journal.transcript import Transcript
    from mergepoint.report.run_state import RunState
    from mergepoint.targets import FoundTarget
    from mergepoint.tree.nodes import Node

EXAMPLES = (
    "mergepoint show last",
    "mergepoint show last --calls",
    "mergepoint show last image_prompt_creation/tot_enclave/consensus",
    "mergepoint show last --json | jq -r .missing[]",
    "mergepoint show best_of_n --knob n=8",
)

_BRIEF = 300


def show(
    run: Annotated[
        str,
        argument(
            "RUN|TARGET",
            "Run (an ID, 'last', a folder, or a transcript file), or a workflow.",
            complete_shown,
        ),
    ],
    path: Annotated[
        str | None,
        argument("PATH", "Path of a call in the run, or a unique ending of it.", complete_paths),
    ] = None,
    *,
    calls: Annotated[
        bool, option("--calls", help="List the calls with time, tokens, words seen, and model.")
    ] = False,
    knob: Knobs = (),
    blocks: Blocks = (),
    stored: StoreOptions,
    json: Json = False,
) -> None:
    """Show the progress of a run, one of its calls, or the parts of a workflow.

    A run is shown with its state, every path, and the questions at open gates. A call is shown
    with the messages that it saw, their origin, its answer, and where the answer went.
    """
    from mergepoint.apps.cli.invocation import resume_command_of
    from mergepoint.journal.transcript import read_transcript

    runs = stored.open()
    # Runs come before workflows and files of the same name: their ids are unique.
    found = runs.lookup(run)
    if found is None and (queued := in_queue(runs.store, run).get(run)):
        show_queued(queued, runs, json=json)
        return
    if found is None and path is None and run != LAST and not is_file(Path(run)):
        _show_workflow(run, runs, knob, blocks, json=json)
        return
    if found is None and is_file(Path(run)):
        if path is None and Path(run).suffix != ".json":
            _show_workflow(run, runs, knob, blocks, json=json)
        else:
            _show_calls(read_transcript(Path(run)), path, None, json=json)
        return
    state = read_run(found or runs.find(run))
    state = with_queue(state, in_queue(state.run.store, state.run.run_id).get(state.run.run_id))
    if calls or path is not None:
        _show_calls(state.transcript, path, resume_command_of(state), json=json)
    else:
        _show_run(state, json=json)


# A workflow.


def _show_workflow(
    target: str,
    runs: RunStore,
    knob: tuple[str, ...],
    blocks: tuple[str, ...],
    *,
    json: bool,
) -> None:
    """Show the nodes of a tree, or the stages of a recipe."""
    from mergepoint.apps.cli.inputs import load_blocks

    load_blocks(blocks)
    found = _workflow_or_refuse(target, runs)
    if found.recipe is not None:
        facts, lines = _recipe_shown(found, knob)
    else:
        facts, lines = _tree_shown(target, found)
    if json:
        put_json(facts)
        return
    for line in lines:
        put(line)


def _workflow_or_refuse(target: str, runs: RunStore) -> FoundTarget:
    from mergepoint.targets import find_target

    try:
        return find_target(target)
    except TargetError as error:
        try:
            # The word can be a misspelled run, so the error lists runs too.
            runs.find(target)
        except CommandError as missing:
            raise CommandError(f"{missing} For names of workflows: mergepoint list") from error
        raise


def _tree_shown(target: str, found: FoundTarget) -> tuple[dict[str, Any], list[str]]:
    from mergepoint.tree.transform import outline

    assert found.tree is not None  # noqa: S101  (the caller has a recipe for it otherwise)
    line = "" if found.file is None else about(found.file)
    facts, (*text, calls) = tree_facts(target, found.tree, line)
    lines = [f"{'tree':<8}{target}", *(f"{'about':<8}{line}" for line in text)]
    lines += [f"{'calls':<8}{calls}", "", *_node_lines(found.tree)]
    return {**facts, "tree": outline(found.tree)}, lines


def _node_lines(tree: Node) -> Iterator[str]:
    """Yield a line per node: its name below its parent, its kind, and what it merges."""
    from mergepoint.tree.nodes import walk

    rows = [("  " * path.count("/") + path.rpartition("/")[2], node) for path, node in walk(tree)]
    wide = max(len(name) for name, _ in rows)
    for name, node in rows:
        captured = f", captures {node.capture_key}" if node.capture_key else ""
        yield f"{name:<{wide}}  {node.kind}, merge {node.merge}{captured}"


def _recipe_shown(found: FoundTarget, knob: tuple[str, ...]) -> tuple[dict[str, Any], list[str]]:
    from mergepoint.apps.cli.inputs import read_knobs
    from mergepoint.streams.recipe_drawing import stage_lines
    from mergepoint.streams.resolved_recipe import plan

    recipe, values = found.recipe, read_knobs(knob)
    assert recipe is not None  # noqa: S101  (the caller has a tree for it otherwise)
    planned = plan(recipe, values, library=found.library)
    facts = {
        "recipe": recipe.name,
        "about": recipe.about,
        "calls": recipe.calls,
        "paper": recipe.paper,
        "needs": ", ".join(recipe.needs),
    }
    lines = [f"{label:<8}{text}" for label, text in facts.items() if text]
    knobs = {**recipe.knobs, **values}
    wide = max(map(len, knobs), default=0)
    for number, (name, value) in enumerate(knobs.items()):
        first, *others = _knob_text(value).splitlines() or [""]
        lines.append(f"{'' if number else 'knobs':<8}{name:<{wide}}  {first}")
        lines += [f"{'':<{wide + 10}}{line}" for line in others]
    stages = list(stage_lines(planned))
    return {**recipe_facts(recipe.name, recipe)[0], "stages": stages}, [*lines, "", *stages]


def _knob_text(value: object) -> str:
    """Return the value of a parameter: a string as it is, without blank lines."""
    if not isinstance(value, str):
        return json_format.dumps(value, ensure_ascii=False)
    return "\n".join(line for line in value.splitlines() if line.strip())


# The calls of a run.


def _show_calls(
    transcript: Transcript, path: str | None, resume: str | None, *, json: bool
) -> None:
    """Show one call, or without a path the table of all calls."""
    if path is None:
        if json:
            put_json(_listing(transcript))
        else:
            for line, style in _table(transcript):
                put_row(line, style=style)
        return
    from mergepoint.report.call_text import call_view, to_json, to_text

    if several := _candidates(transcript, path):
        raise CommandError("\n  ".join([f"Run {transcript.run_id}: {several[0]}", *several[1:]]))
    try:
        view = call_view(transcript, path)
    except LookupError as error:
        raise CommandError(f"Run {transcript.run_id}: {error.args[0]}") from error
    if json:
        put_json(to_json(view))
        return
    put(to_text(view).rstrip("\n"))
    if resume and view.decided is not None and not view.decided.decision:
        put(f"\nTo answer:\n  {resume}")


def _candidates(transcript: Transcript, path: str) -> list[str]:
    """Return a message and the matching calls, if a path doesn't name one call."""
    known = list(dict.fromkeys(record.path for record in _records(transcript)))
    if path in known:
        return []
    ending = [call for call in known if call.endswith(f"/{path}")]
    # A loop's or block's path is no call, but the person may mean one in it.
    inside = [call for call in known if f"/{path}/" in f"/{call}"]
    if len(ending) > 1:
        return [f"{path!r} matches {len(ending)} calls. Use a longer path:", *ending]
    if inside and not ending:
        return [f"{path!r} isn't a call. Calls inside it:", *inside]
    return []


def _records(transcript: Transcript) -> tuple[CallRecord, ...]:
    aside = (*transcript.questions, *transcript.left_out, *transcript.failures)
    return (*transcript.records, *aside)


def _listing(transcript: Transcript) -> dict[str, Any]:
    return {
        "run_id": transcript.run_id,
        "created_at": transcript.created_at,
        "error": transcript.error,
        "calls": [
            {
                "path": record.path,
                "kind": record.kind,
                "model": record.model,
                "seconds": round(record.ended - record.started, 6),
                "tokens": tokens_of(record),
                "words": transcript.words_by_path.get(record.path),
                "error": record.error,
                "truncated": record.truncated,
            }
            for record in _records(transcript)
        ],
        "open_gates": [record.path for record in transcript.questions],
    }


def _table(transcript: Transcript) -> Iterator[tuple[str, str]]:
    """Yield the lines of the calls, each with its style on a terminal."""
    # A step with tools is recorded as a function; the tokens are those of its model's calls.
    asks = {record.path for record in transcript.steps_with_tools}
    used: Counter[str] = Counter()
    for record in transcript.inner:
        used[record.path] += tokens_of(record) if record.path in asks else 0
    rows = [
        (record, record.model if record.path in asks else _who(record))
        for record in _records(transcript)
    ]
    wide = max([len("model"), *(len(who) for _, who in rows)])
    yield f"{'time':>7}  {'tokens':>7}  {'words':>7}  {'model':<{wide}}  path", "bold"
    for record, who in rows:
        time = clock(record.ended - record.started)
        words = transcript.words_by_path.get(record.path)
        seen = "" if words is None else f"{words:,}"
        spent = used[record.path] or tokens_of(record)
        tokens = f"{spent:,}" if spent or record.kind in ("step", "inner") else ""
        failed = f"  failed: {record.error['type']}" if record.error and record.failed else ""
        failed += f"  truncated: {record.truncated}" if record.truncated else ""
        line = f"{time:>7}  {tokens:>7}  {seen:>7}  {who:<{wide}}  {record.path}{failed}"
        yield line, "red" if record.failed else "yellow" if record.asks or failed else ""
    if transcript.error:
        said = ending(transcript.error).removeprefix("unfinished: ")
        yield f"The run isn't finished: {said}", "bold"


def _who(record: CallRecord) -> str:
    """Return the model or function that answered, or the decision of a person."""
    from mergepoint.tree.leaves import short_label

    if record.kind == "gate":
        return "waits for a decision" if record.asks else f"decided: {record.value['decision']}"
    if record.kind == "left_out":
        return "skipped"
    return short_label(record.model) if record.kind == "call" else record.model


# The progress of a run.


@dataclass(frozen=True, slots=True)
class PathCalls:
    """A path and its calls, in the order of writing.

    Model calls of a function are `inside`: they can have answers when the function has none.
    """

    path: str
    calls: tuple[CallRecord, ...]
    inside: tuple[CallRecord, ...]
    called: bool  # whether the path is a call; a block isn't
    open: bool  # whether a gate waits here
    over: bool  # whether the run is done
    with_tools: bool  # whether it is a step with tools, recorded as a function call

    @property
    def state(self) -> str:
        """Return `answered`, `waiting`, `skipped`, `failed`, or nothing for a block.

        A call without a record is `missing`, or in a finished run `not made`.
        """
        if self.open:
            return "waiting"
        if any(call.answered for call in self.calls):
            return "answered"
        if any(call.kind == "left_out" for call in self.calls):
            return "skipped"
        if self.calls:
            return "failed"
        return ("not made" if self.over else "missing") if self.called else ""

    @property
    def last(self) -> CallRecord | None:
        """Return the latest answer or decision."""
        return next((call for call in reversed(self.calls) if call.answered), None)

    @property
    def failures(self) -> list[CallRecord]:
        """Return the attempts that failed."""
        return [call for call in self.calls if call.failed]

    @property
    def tokens(self) -> int:
        """Return the tokens of all calls."""
        return sum(map(tokens_of, (*self.calls, *self.inside)))

    @property
    def cost(self) -> float | None:
        """Return the cost in USD of the latest answer, or of the model calls inside."""
        known = [call.cost for call in self.inside if call.cost is not None]
        return sum(known) if known else None if self.last is None else self.last.cost


def _show_run(state: FoundRun, *, json: bool) -> None:
    """Show the inputs and the progress of a run: every path, with or without an answer."""
    from mergepoint.journal.recipe_records import is_recipe

    if json:
        put_json(_facts(state))
        return
    for label, text in _head(state):
        put(f"{label:<9} {text}".rstrip())
    put("")
    if sys.stdout.isatty() and not is_recipe(state.transcript.tree):
        put_shown(_live(state))
    else:
        for line in _tree(state):
            put(line)
    for line in _questions(state):
        put(line)


def _live(state: RunState) -> LiveTree:
    """Return the tree as the live view shows it, folded to the height of the terminal."""
    from rich.console import Console

    from mergepoint.apps.cli.live import LiveTree
    from mergepoint.apps.cli.progress import recorded_progress
    from mergepoint.tree.transform import from_outline

    tree = from_outline(state.transcript.tree)
    progress = recorded_progress(tree, state.records, open_gates=state.open_gates, over=state.over)
    shown = LiveTree(progress, Console(highlight=False))
    shown.over = True
    return shown


def _facts(state: FoundRun) -> dict[str, Any]:
    from mergepoint.apps.cli.gate_answers import recorded_question
    from mergepoint.apps.cli.invocation import resume_command_of

    transcript = state.transcript
    return {
        "run_id": state.run_id,
        "folder": None if state.folder is None else str(state.folder),
        "store": str(state.store),
        "state": state.status,
        "created_at": transcript.created_at,
        "seed": transcript.seed,
        "inputs": transcript.inputs,
        "messages": len(transcript.messages),
        "tokens": state.tokens,
        "cost": state.cost,
        "error": transcript.error if state.status not in ("queued", "running") else None,
        "calls": [_call(at) for at in _paths(state) if at.state],
        "missing": state.missing,
        "questions": [recorded_question(one).to_plain() for one in state.transcript.questions],
        "resume": resume_command_of(state),
    }


def _call(at: PathCalls) -> dict[str, Any]:
    last, failed = at.last, at.failures
    return {
        "path": at.path,
        "state": at.state,
        "kind": at.calls[-1].kind if at.calls else None,
        "failed_attempts": len(failed),
        "last_error": failed[-1].error if failed else None,
        "source": None if last is None else last.source,
        "model": at.calls[-1].model if at.calls else None,
        "seconds": None if last is None else round(max(0.0, last.ended - last.started), 6),
        "tokens": at.tokens,
        "cost": at.cost,
    }


def _head(state: FoundRun) -> Iterator[tuple[str, str]]:
    from mergepoint.apps.cli.invocation import resume_command_of

    transcript = state.transcript
    offline = " (offline)" if transcript.offline else ""
    yield "run", state.run_id
    yield "tree", f"{transcript.tree['path']}{offline}"
    yield "started", local_time(transcript.created_at)
    is_going = state.status in ("queued", "running")
    said = state.status if is_going else brief(ending(transcript.error), _BRIEF)
    if state.status == "rejected":
        said = rejection(transcript)
    yield "state", said
    tried = len(transcript.failures)
    of = "" if state.total is None else f" of {state.total:,}"
    decided = sum(record.kind == "gate" for record in transcript.records)
    facts = [f"{state.answered:,}{of} answered"]
    facts += [count(decided, "decision")] if decided else []
    facts += [f"{len(left_out):,} skipped"] if (left_out := transcript.left_out) else []
    facts += [count(tried, "failed attempt")] if tried else []
    facts += [f"{state.tokens:,} tokens"]
    facts += [] if state.cost is None else [money(state.cost)]
    yield "calls", ", ".join(facts)
    yield from _given(state)
    if transcript.messages:
        yield "messages", count(len(transcript.messages), "message")
    if state.folder is None:
        yield "stored in", str(state.store)
    else:
        files = sorted(file.name for file in state.folder.iterdir() if file.is_file())
        yield "files", f"{state.folder}: {', '.join(files)}"
    if resume := resume_command_of(state):
        yield "resume", resume


def _given(state: RunState) -> Iterator[tuple[str, str]]:
    """Yield the number of results of a recipe, and the inputs of any run."""
    from mergepoint.journal.recipe_records import recipe_end

    transcript = state.transcript
    if (end := recipe_end(transcript.tree, state.records)) is not None:
        stopped = f", stopped by the limit of {end.stopped}" if end.stopped else ""
        yield "results", f"{count(end.count, 'result')}{stopped}"
    # A recipe with default parameters has {} for them.
    given = {name: value for name, value in transcript.inputs.items() if value != {}}
    for number, (name, value) in enumerate(given.items()):
        yield "" if number else "inputs", brief(f"{name}: {words_of(value)}", _BRIEF)


def _paths(state: RunState) -> list[PathCalls]:
    """Return blocks and calls in the order of the tree; calls outside the tree are last."""
    leaves = dict.fromkeys(state.paths)
    calls: dict[str, list[CallRecord]] = {}
    for record in state.records:
        calls.setdefault(record.path, []).append(record)
    inner: dict[str, Any] = {}
    for path in [*leaves, *(path for path in calls if path not in leaves)]:
        level = inner
        for name in path.split("/"):
            level = level.setdefault(name, {})
    waiting, over = state.open_gates, state.over
    with_tools = {record.path for record in state.transcript.steps_with_tools}
    return [
        PathCalls(
            path,
            tuple(call for call in calls.get(path, ()) if call.kind != "inner"),
            tuple(call for call in calls.get(path, ()) if call.kind == "inner"),
            called=path in leaves or path in calls,
            open=path in waiting,
            over=over,
            with_tools=path in with_tools,
        )
        for path in _walk(inner, "")
    ]


def _walk(level: dict[str, Any], above: str) -> Iterator[str]:
    for name, inner in level.items():
        yield f"{above}{name}"
        yield from _walk(inner, f"{above}{name}/")


def _tree(state: RunState) -> Iterator[str]:
    from mergepoint.journal.recipe_records import end_path, is_recipe

    shape = state.transcript.tree
    # The end of a recipe is shown above, with the results.
    end = end_path(str(shape["path"])) if is_recipe(shape) else None
    paths = [at for at in _paths(state) if at.path != end]
    names = ["  " * at.path.count("/") + at.path.rpartition("/")[2] for at in paths]
    width = max(map(len, names))
    for at, name in zip(paths, names, strict=True):
        yield f"{name:<{width}}  {_said(at)}".rstrip()


def _said(at: PathCalls) -> str:
    from mergepoint.journal.call_records import SHOWN_SOURCES, TOOL, is_tool

    if at.state in ("", "waiting"):
        return "waits for a decision" if at.state else ""
    if at.state == "skipped":
        return _left_out(at.calls[-1].error or {})
    tries = count(len(at.failures), "failed attempt") if at.failures else ""
    if at.last is not None:
        tokens = at.tokens
        seconds = clock(max(0.0, at.last.ended - at.last.started))
        kind: str = at.last.kind if at.last.kind != "step" and not at.with_tools else ""
        if is_tool(at.last):
            status = (at.last.value or {}).get("status")
            note = ", error returned to the model" if status == "error" else ""
            kind = f"tool {at.last.model.removeprefix(TOOL)}{note}"
        if kind == "gate":
            return f"decided   {at.last.value['decision']}  {SHOWN_SOURCES[at.last.source]}"
        cut = f"truncated ({at.last.truncated})" if at.last.truncated else ""
        facts = [
            "answered",
            cut,
            kind,
            SHOWN_SOURCES[at.last.source],
            seconds,
            f"{tokens:,} tokens" if tokens else "",
        ]
        return "  ".join(fact for fact in (*facts, tries) if fact)
    if at.failures:
        error = at.failures[-1].error or {}
        said = brief(f"{error['type']}: {error['message']}", _BRIEF)
        return f"failed    {tries}, {said}"
    return "not made" if at.state == "not made" else "no answer"


def _left_out(error: Mapping[str, Any]) -> str:
    from mergepoint.models.budget_account import shown

    return f"skipped   by the budget of {error['path']}, {shown(error['kind'], error['limit'])}"


def _questions(state: RunState) -> Iterator[str]:
    """Yield the questions of the open gates, with the state that an approval would merge."""
    from mergepoint.apps.cli.gate_answers import question_lines, recorded_question

    for record in state.transcript.questions:
        yield from question_lines(recorded_question(record))
