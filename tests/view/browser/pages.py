"""Pages to open: of real runs, and of one with very many calls."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.report.runs import RUN, ran

from mergepoint.journal.file_journal import FileStore
from mergepoint.report.run_state import read_state
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input, Node
from mergepoint.tree.prompts import Template
from mergepoint.view.run_data import run_data
from mergepoint.view.texts import Texts

Data = dict[str, Any]
CRITICS = ("ada", "ben", "cleo")

POEM = Block(
    [
        Block(
            [
                Step(Template("Write on {{ topic }}."), name="draft", system="Be brief."),
                Block(
                    [
                        *(
                            Step(
                                "What is weak?",
                                name=critic,
                                merge="none",
                                capture_key=f"notes.{critic}",
                            )
                            for critic in CRITICS
                        ),
                        Step(
                            Template(
                                "Revise by {{ notes.ada }}, {{ notes.ben }}, {{ notes.cleo }}."
                            ),
                            name="consensus",
                        ),
                    ],
                    name="panel",
                    merge="last_response",
                ),
            ],
            name="verse",
            merge="last_response",
            capture_key="verse",
        ),
        Step(Template("A title for {{ verse }}"), name="title"),
    ],
    name="poem",
    inputs=[Input("topic")],
)
DRAFT = "The rain falls on the old grey town and nobody looks up at it any more."
REVISED = "The rain falls on the old blue town and somebody looks up at it once more."
SAYS = {
    "poem/verse/draft": DRAFT,
    "poem/verse/panel/ada": "# Weak\n\n- **grey** is worn\n- `nobody` is sad",
    "poem/verse/panel/consensus": REVISED,
    "poem/title": "Rain, once more",
}


def page_of(folder: Path, run: str = RUN) -> Data:
    """Return the page of a run in a folder."""
    texts = Texts()
    commands = {"run again": f"mergepoint run poem --reuse {run}", "show": f"mergepoint show {run}"}
    data = run_data(read_state(FileStore(folder), run), texts, commands=commands)
    return {
        "format": "mergepoint.view/1",
        "screen": "run",
        "title": f"poem {run}",
        "version": "1",
        "texts": texts.all,
        "runs": [data],
    }


def poem_page(
    folder: Path,
    *,
    says: Mapping[str, str] | None = None,
    topic: str = "rain",
    tree: Node = POEM,
) -> Data:
    """Run the poem, and return its page; `says` changes answers, and blank ones fail."""
    ran(tree, folder, inputs={"topic": topic}, says={**SAYS, **(says or {})})
    return page_of(folder)


def large_page(sections: int) -> Data:
    """Return a page of a run with seven calls per section, of which one stays in the conversation.

    The first calls of the poem are repeated under other paths, with texts of their own.
    """
    texts: list[str] = []
    nodes: list[Data] = [_node("big", -1, "block", sections * 7)]
    messages: list[Data] = []
    states: list[list[int]] = []
    calls: list[Data] = []
    state = -1
    for number in range(sections):
        block = len(nodes)
        path = f"big/section_{number:05}"
        nodes.append({**_node(path, 0, "block", 7), "merge": "last_response", "start": number})
        for step in range(7):
            node = len(nodes)
            at = f"{path}/step_{step}"
            nodes.append({**_node(at, block, "step", 1), "start": number + step / 7})
            words = f"Answer {number}.{step}: " + f"quiet harbour light {number * 7 + step} " * 30
            texts += [f"Please write part {step} of section {number}.", words]
            ids = len(texts)
            messages += [
                {"role": "user", "text": ids - 2, "by": node},
                {"role": "assistant", "text": ids - 1, "by": node},
            ]
            calls.append(_call(at, node, state, len(messages), ids))
        states.append([state, len(messages) - 1])
        state = len(states) - 1
    run = {
        "id": "big",
        "graph": "big",
        "kind": "tree",
        "status": "done",
        "verdict": f"Done: {len(calls)} calls.",
        "created_at": "2026-01-01T00:00:00+00:00",
        "start": 1_767_225_600.0,
        "seconds": float(sections),
        "seed": 0,
        "models": ["offline"],
        "inputs": [],
        "outputs": [],
        "result": len(texts) - 1,
        "failure": None,
        "paid": _usage(len(calls)),
        "reused": _usage(0),
        "settings": [],
        "commands": {},
        "notes": [],
        "nodes": nodes,
        "messages": messages,
        "states": states,
        "calls": calls,
        "drawing": "",
        "recipe": None,
        "plan": None,
    }
    page = {"format": "mergepoint.view/1", "screen": "run", "title": "big", "version": "1"}
    return {**page, "texts": texts, "runs": [run]}


def _usage(calls: int) -> Data:
    return {
        "calls": calls,
        "input_tokens": 100 * calls,
        "output_tokens": 50 * calls,
        "cost": 0.001 * calls,
        "estimated": False,
    }


def _node(path: str, parent: int, kind: str, calls: int) -> Data:
    return {
        "path": path,
        "kind": kind,
        "parent": parent,
        "merge": "all_messages",
        "parallel": False,
        "capture": "",
        "status": "done",
        "start": 0.0,
        "end": 1.0,
        "reused": 0,
        "failed": 0,
        "shape": calls,
        **{key: value for key, value in _usage(calls).items() if key != "estimated"},
    }


def _call(path: str, node: int, state: int, messages: int, texts: int) -> Data:
    return {
        "path": path,
        "node": node,
        "kind": "step",
        "status": "answered",
        "model": "offline",
        "source": "live",
        "start": float(node),
        "seconds": 0.9,
        "waited": 0.0,
        "attempts": 1,
        "view": "as_is",
        "params": {},
        "lead": [],
        "state": state,
        "prompt": messages - 2,
        "reads": [],
        "answer": texts - 1,
        "message": messages - 1,
        "refused": None,
        "position": None,
        "error": None,
        "earlier_errors": [],
        "fate": None,
        "usage": _usage(1),
        "rounds": [],
        "inside": [],
        "decision": None,
        "in_recipe": None,
        "planned": None,
    }
