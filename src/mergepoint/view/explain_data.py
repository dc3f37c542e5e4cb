"""An explanation as the data of a page: a run that is planned."""

from __future__ import annotations

from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from mergepoint.core.paths import prefixes
from mergepoint.journal.file_journal import FileStore
from mergepoint.report.answer_lengths import shortened
from mergepoint.report.dry_run import RUN
from mergepoint.report.explain_text import summary_line
from mergepoint.report.explanation import Explanation, PlannedStep
from mergepoint.report.run_state import RunState
from mergepoint.report.svg import to_svg
from mergepoint.view.page import FORMAT
from mergepoint.view.run_data import run_data
from mergepoint.view.texts import Texts

_PLANNED: Final = "planned"


def explain_page(explained: Explanation) -> dict[str, Any]:
    """Return an explanation as the data of a page, in the format `Page` of `assets/page.d.ts`."""
    texts = Texts()
    run = _of_tree(explained, texts) if explained.kind == "tree" else _of_recipe(explained)
    run |= {
        "graph": explained.workflow,
        "status": _PLANNED,
        "verdict": summary_line(explained),
        "seconds": None,
        "models": list(dict.fromkeys(one.model for one in explained.steps if one.kind != "call")),
        "result": None,
        "failure": None,
        "commands": {},
        "notes": [],
        "plan": _plan(explained),
    }
    return {
        "format": FORMAT,
        "screen": "explain",
        "title": f"{explained.workflow}, before it runs",
        "version": version("mergepoint"),
        "texts": [shortened(text) for text in texts.all],
        "runs": [run],
    }


def _of_tree(explained: Explanation, texts: Texts) -> dict[str, Any]:
    """Return the dry run of a tree as a run."""
    transcript = explained.transcript
    assert transcript is not None  # noqa: S101  (an explanation of a tree has one)
    state = RunState(
        # No file is read: the dry run is in memory only.
        store=FileStore(Path()),
        name=RUN,
        status="done",
        transcript=transcript,
        records=transcript.everything,
    )
    run = run_data(state, texts, commands={"show": ""})
    steps = {one.path: one for one in explained.steps}
    for call in run["calls"]:
        call |= {"status": _PLANNED, "planned": _planned(steps.get(call["path"]))}
        call["answer"] = None if call["kind"] == "gate" else call["answer"]
    for node in run["nodes"]:
        node |= {"status": _PLANNED, "start": None, "end": None}
    drawing = "" if explained.tree is None else to_svg(explained.tree)
    return {**run, "outputs": [], "drawing": drawing}


def _of_recipe(explained: Explanation) -> dict[str, Any]:
    """Return the stages of a recipe, and the steps of trees in them, as a run."""
    usage = {"calls": 0, "input_tokens": 0, "output_tokens": 0, "cost": None, "estimated": True}
    nodes: list[dict[str, Any]] = [_node(explained.workflow, "recipe", -1)]
    known = {explained.workflow: 0}
    calls = []
    for step in explained.steps:
        for path in prefixes(step.path):
            if path not in known:
                above = path.rpartition("/")[0]
                last = "stage" if step.kind == "stage" else step.kind
                kind = last if path == step.path else "block"
                known[path] = len(nodes)
                nodes.append(_node(path, kind, known.get(above, 0)))
        calls.append(_call(step, known[step.path], usage))
    return {
        "id": RUN,
        "kind": "recipe",
        "created_at": "",
        "start": 0,
        "seed": 0,
        "inputs": [],
        "outputs": [],
        "paid": usage,
        "reused": usage,
        "settings": [],
        "nodes": nodes,
        "messages": [],
        "states": [],
        "calls": calls,
        "drawing": "",
        "recipe": None,
    }


def _node(path: str, kind: str, parent: int) -> dict[str, Any]:
    numbers = dict.fromkeys(("calls", "reused", "failed", "input_tokens", "output_tokens"), 0)
    return {
        "path": path,
        "kind": kind,
        "parent": parent,
        "merge": "",
        "parallel": False,
        "capture": "",
        "status": _PLANNED,
        "start": None,
        "end": None,
        **numbers,
        "cost": None,
        "shape": 0,
    }


def _call(step: PlannedStep, node: int, usage: dict[str, Any]) -> dict[str, Any]:
    unknown = ("refused", "position", "error", "fate", "decision", "in_recipe", "answer", "start")
    return {
        **dict.fromkeys(unknown),
        "path": step.path,
        "node": node,
        "kind": "call" if step.kind == "call" else "step",
        "status": _PLANNED,
        "model": step.model,
        "source": "live",
        "seconds": 0,
        "waited": 0,
        "attempts": 1,
        "view": "as_is",
        "params": {},
        "lead": [],
        "state": -1,
        "prompt": -1,
        "reads": [],
        "message": -1,
        "earlier_errors": [],
        "usage": usage,
        "rounds": [],
        "inside": [],
        "planned": _planned(step),
    }


def _planned(step: PlannedStep | None) -> dict[str, Any] | None:
    if step is None:
        return None
    most = None if step.problem else step.input_tokens[1]
    return {
        "input_tokens": [step.input_tokens[0], most],
        "output_tokens": list(step.output_tokens),
        "times": list(step.calls),
        "cost": step.cost,
    }


def _plan(explained: Explanation) -> dict[str, Any]:
    plain = explained.to_json()
    names = ("calls", "input_tokens", "output_tokens", "cost", "basis", "warnings", "captures")
    return {name: plain[name] for name in names}
