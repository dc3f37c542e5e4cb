"""A run as the data of a page, in the format `Run` of `assets/page.d.ts`."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mergepoint.core.text import clock, count, money
from mergepoint.journal.recipe_records import end_path, is_recipe, recipe_end
from mergepoint.report.drawing import unrolled
from mergepoint.report.run_state import COMMAND, RunState, ending, rejection
from mergepoint.report.svg import to_svg
from mergepoint.report.transcript_index import TranscriptIndex
from mergepoint.streams.model_calls import path_of
from mergepoint.tree.nodes import Gate
from mergepoint.tree.transform import from_outline
from mergepoint.view.call_data import CallData, in_order, is_note
from mergepoint.view.node_data import PageNode, PageNodes, combined, outline_of, recipe_outline
from mergepoint.view.recipe_data import RecipeThings, recipe_drawing
from mergepoint.view.run_usage import RunUsage
from mergepoint.view.texts import Texts

Data = dict[str, Any]

_NO_SETTINGS: Final = ("format", "target", "hidden", "form")
_ENDS: Final = ("failed", "interrupted", "unfinished", "damaged")


def run_data(
    state: RunState, texts: Texts, *, commands: Mapping[str, str] | None = None
) -> dict[str, Any]:
    """Return a run as the data of a page.

    Args:
        state: The run.
        texts: The texts of the page, to which those of the run are added.
        commands: Shell commands about the run, by purpose: "show", "resume", "view", "run again".

    Raises:
        MergepointError: The transcript lacks records of earlier calls.
    """
    return _RunData(state, texts).to_page(commands_of(state) if commands is None else commands)


def commands_of(state: RunState) -> dict[str, str]:
    """Return the commands that show a run, for a page that no command makes."""
    folder = state.folder
    words = f"{shlex.quote(state.name)} --store {shlex.quote(str(state.store))}"
    if folder is not None:
        # A path without a separator would be looked up as an id.
        words = shlex.quote(str(folder if folder.parent != Path() else Path.cwd() / folder))
    return {"show": f"mergepoint show {words}", "view": f"mergepoint view {words}"}


class _RunData:
    def __init__(self, state: RunState, texts: Texts) -> None:
        self._state = state
        self._texts = texts
        self._transcript = state.transcript
        self._index = TranscriptIndex(state.transcript, chained=True)
        self._is_recipe = is_recipe(self._transcript.tree)
        self._root = str(self._transcript.tree["path"])
        self._end = recipe_end(self._transcript.tree, state.records)
        self._usage = RunUsage.of(self._transcript.everything)
        self._start = min((one.started for one in state.records), default=0.0)
        left_out = {end_path(self._root)} if self._is_recipe else set()
        paths = [
            path
            for path in self._index.paths
            if path not in left_out and not is_note(self._index.record(path))
        ]
        self._nodes = PageNodes(self._outlined(paths))
        self._paths = list(self._in_order(paths))

    def to_page(self, commands: Mapping[str, str]) -> Data:
        """Return the whole run."""
        state, transcript = self._state, self._transcript
        calls = self._calls()
        self._fill(calls)
        return {
            "id": state.run_id,
            "graph": state.graph,
            "kind": "recipe" if self._is_recipe else "tree",
            "status": state.status,
            "verdict": verdict(state),
            "created_at": transcript.created_at,
            "start": self._start,
            "seconds": None if state.seconds is None else round(state.seconds, 6),
            "seed": transcript.seed,
            "models": list(state.models),
            "inputs": self._texts.values(transcript.inputs),
            "outputs": self._texts.values(transcript.outputs),
            "result": self._texts.add(transcript.text) if transcript.text else None,
            "failure": self._failure(),
            "paid": self._usage.paid.to_page(),
            "reused": self._usage.reused.to_page(),
            "settings": settings_of(state.meta, self._texts),
            "commands": dict(commands),
            "notes": list(notes_of(state)),
            "nodes": self._nodes.to_page(self._start),
            "messages": self._call_data.messages,
            "states": self._call_data.states,
            "calls": calls,
            "drawing": self._drawing(),
            "recipe": self._recipe(),
            "plan": None,
        }

    def _outlined(self, paths: Sequence[str]) -> Iterator[PageNode]:
        if self._is_recipe:
            return recipe_outline(self._transcript.tree, paths, end_path(self._root))
        error = self._transcript.error or {}
        known = {*(one.path for one in self._state.records), str(error.get("path") or "")}
        return outline_of(unrolled(self._transcript.tree, known | {*self._index.unanswered}))

    def _in_order(self, paths: Sequence[str]) -> Iterator[str]:
        """Yield the paths of calls in tree order, with those that are running."""
        running = self._index.unanswered if self._state.status == "running" else ()
        shapes = self._index.results.shapes
        own = {path for path in paths if path in shapes}
        known = [path for path in running if path not in own and path in self._nodes.number]
        yield from in_order({*own, *known}, [one for one in paths if one not in own], self._nodes)

    def _calls(self) -> list[Data]:
        index = self._index
        self._call_data = CallData(
            index, self._texts, self._nodes.number, usage=self._usage.at, start=self._start
        )
        known = set(index.paths)
        return [
            self._call_data.of(path)
            if path in known
            else self._call_data.running(path, self._nodes.at(path).kind)
            for path in self._paths
        ]

    def _fill(self, calls: Sequence[Data]) -> None:
        """Set time, usage and status of the nodes."""
        counted: set[str] = set()
        for record in self._state.records:
            around = self._nodes.around(record.path)
            if around is None or is_note(record):
                continue
            around.ran(record.started, max(record.started, record.ended))
            if record.kind in ("step", "inner"):
                around.failed += record.failed
                around.answered += record.answered
                around.reused += record.answered and record.source != "live"
            if record.path not in counted:
                counted.add(record.path)
                around.used.include(self._usage.paid_at(record.path))
        self._set_statuses(calls)
        self._nodes.add_up()

    def _set_statuses(self, calls: Sequence[Data]) -> None:
        told: dict[int, list[str]] = {}
        for call in calls:
            told.setdefault(call["node"], []).append(call["status"])
        self._last = max(told, default=-1)
        failed_at = "" if self._state.over else str((self._transcript.error or {}).get("path", ""))
        for number in range(len(self._nodes.all) - 1, -1, -1):
            node = self._nodes.all[number]
            inner = [self._nodes.all[child].status for child in node.children]
            own = ["done" if one == "answered" else one for one in told.get(number, ())]
            node.status = self._status(node, own, inner, failed_at)

    def _status(
        self, node: PageNode, own: Sequence[str], inner: Sequence[str], failed_at: str
    ) -> str:
        """Return the status of a node from those of its calls and its children."""
        if not node.children and own and not self._is_recipe and node.kind != Gate.kind:
            return own[0]
        if self._is_recipe:
            return self._of_stage(node, [*own, *inner])
        if node.kind == Gate.kind and own and own[0] != "done":
            return own[0]
        if node.path in self._index.results.kept:
            # A loop that may be skipped has merged nothing, also before the run gets there.
            is_passed = (
                node.children or self._state.over or self._last > self._nodes.number[node.path]
            )
            return "done" if is_passed else "not_reached"
        if node.path == failed_at and self._state.status == "failed":
            return "failed"
        if self._state.status == "running" and "done" in inner and "failed" not in inner:
            return "waiting" if "waiting" in inner else "running"
        return combined(inner, node.kind)

    def _of_stage(self, node: PageNode, below: Sequence[str]) -> str:
        counts = {} if self._end is None else {path_of(one.stage): one for one in self._end.stages}
        count_of = counts.get(node.path)
        if "failed" in below or (count_of is not None and count_of.failed):
            return "failed"
        if "done" not in below and count_of is None:
            return "not_reached"
        if self._end is None and node.kind != "thing":
            return "running" if self._state.status == "running" else "not_reached"
        return "done" if count_of is None or count_of.came or count_of.left else "not_reached"

    def _failure(self) -> Data | None:
        error = self._transcript.error
        if error is None or self._state.status not in _ENDS:
            return None
        path, message = str(error.get("path") or ""), str(error["message"])
        return {"path": path, "type": str(error["type"]), "message": message}

    def _drawing(self) -> str:
        shape = self._transcript.tree
        return recipe_drawing(shape) if self._is_recipe else to_svg(from_outline(shape))

    def _recipe(self) -> Data | None:
        if not self._is_recipe:
            return None
        transcript = self._transcript
        answers = {one.key.full_path: one for one in transcript.records if one.answered}
        things = RecipeThings(transcript.inputs, self._end, answers, self._texts)
        leaves = [node.path for node in self._nodes.all if node.kind == "stage"]
        stages = {path.replace("/", "."): path for path in leaves}
        if self._end is not None:
            stages = {one.stage: path_of(one.stage) for one in self._end.stages}
        return things.to_page(list(stages.items()))


def verdict(state: RunState) -> str:
    """Return one sentence about a run: how it ended, its calls, time, tokens and cost."""
    said = {
        "running": "Running",
        "done": "Done",
        "rejected": rejection(state.transcript) or "rejected",
        "damaged": "The record of this run is damaged",
    }.get(state.status) or ending(_in_one_line(state.transcript.error))
    of = "" if state.total is None else f" of {state.total:,}"
    facts = [
        count(state.answered, "call") + " answered"
        if not of
        else f"{state.answered:,}{of} calls answered"
    ]
    reused = sum(one.source != "live" and one.answered for one in state.transcript.records)
    facts += [f"{reused:,} of them reused"] if reused else []
    facts += [f"in {clock(state.seconds)}"] if state.seconds is not None else []
    facts += [count(state.tokens, "token")] if state.tokens else []
    facts += [money(state.cost)] if state.cost is not None else []
    failed = f" ({state.failures})" if state.failures else ""
    return f"{said[:1].upper()}{said[1:].rstrip('.')}{failed}: {', '.join(facts)}."


def _in_one_line(error: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return an error with the first line of its message; the page shows the rest below."""
    if error is None:
        return None
    first = str(error["message"]).strip().partition("\n")[0].rstrip(": ")
    return {**error, "message": first}


def settings_of(meta: Mapping[str, Any], texts: Texts) -> list[Data]:
    """Return the options that a run was started with, except those that have their default."""
    command = meta.get(COMMAND)
    if not isinstance(command, Mapping):
        return []
    return [
        {
            "key": str(name),
            "text": texts.add("\n".join(map(str, value)))
            if isinstance(value, (list, tuple))
            else texts.value(value),
        }
        for name, value in command.items()
        if name not in _NO_SETTINGS and value not in (None, [], "", ())
    ]


def notes_of(state: RunState) -> Iterator[str]:
    """Yield notes about the record of a run: damaged, cut, repaired, masked, changed."""
    yield from state.problems
    folder, header = state.folder, state.header
    if header is None and state.store is not None:
        yield "There is no journal: this is the stored transcript, which can't be resumed."
    if folder is not None:
        for copy in sorted(folder.glob("*.damaged-*")):
            yield f"The journal was damaged and repaired; the damaged file is {copy.name}."
        if state.status not in ("running", "damaged") and _is_cut(folder / "journal.jsonl"):
            yield (
                "The last line of the journal is incomplete, and left out: the run was killed "
                "while it was written."
            )
    masked = {*(() if header is None else header.masked)}
    masked |= {name for record in state.records for name in record.masked}
    if masked:
        yield f"Secrets are masked in: {', '.join(sorted(masked))}."
    cleaned = {*(() if header is None else header.cleaned)}
    cleaned |= {name for record in state.records for name in record.cleaned}
    if cleaned:
        yield f"Text that could not be encoded was replaced in: {', '.join(sorted(cleaned))}."
    if state.transcript.offline:
        yield "The offline model answered. It isn't a language model."


def _is_cut(journal: Path) -> bool:
    try:
        with journal.open("rb") as file:
            file.seek(-1, 2)
            return file.read(1) != b"\n"
    except OSError:
        return False


def page_of(run: Data, texts: Texts, *, version: str) -> Data:
    """Return the page about one run."""
    return {
        "format": "mergepoint.view/1",
        "screen": "run",
        "title": f"{run['graph']} {run['id']}",
        "version": version,
        "texts": texts.all,
        "runs": [run],
    }
