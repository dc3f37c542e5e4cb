"""Golden cases: what a run of an example gives, as data that people can read."""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from langchain_core.messages import AIMessage, BaseMessage

from mergepoint.core.strict_yaml import dump, load_file
from mergepoint.engine.callbacks import Recorder
from mergepoint.engine.compiler import Form
from mergepoint.engine.context import RunContext
from mergepoint.engine.gates import by_path
from mergepoint.engine.runner import ChatRunner
from mergepoint.offline.model import OfflineModel
from mergepoint.testing.scripted_model import ScriptedModel, Seen
from mergepoint.tree.nodes import Block

GRAPHS = Path(__file__).parents[2] / "graphs"
EXAMPLES = tuple(sorted(folder.parent.name for folder in GRAPHS.glob("*/graph.py")))

OPENING = "```mermaid\n"

_WIDE = 90
_ROLES = {"human": "user", "ai": "assistant", "system": "system"}
_VOICE = re.compile(r'<(?:voice name|answer number)="([^"]+)">')


@dataclass(frozen=True)
class Ran:
    """One run: what the model was given at each path, what it answered, and the end."""

    calls: Mapping[str, Seen]
    answers: Mapping[str, str]
    messages: Sequence[BaseMessage]
    outputs: Mapping[str, Any]
    text: str

    def request(self, path: str) -> str:
        """Return all that a call was sent, as one text."""
        return "\n".join(str(message.text) for message in self.calls[path].messages)


def module_of(name: str) -> Any:
    """Import the module of an example from its file."""
    spec = importlib.util.spec_from_file_location(f"graph_{name}", GRAPHS / name / "graph.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def tree_of(name: str) -> Block:
    """Return the tree of an example."""
    tree = module_of(name).tree
    assert isinstance(tree, Block)
    return tree


def offline_answer(messages: tuple[BaseMessage, ...]) -> AIMessage:
    """Answer as the offline model does."""
    return OfflineModel().invoke(list(messages), config={"callbacks": []})


def ran(tree: Block, case: Mapping[str, Any], *, form: Form = "subgraphs") -> Ran:
    """Run a tree on the offline model, behind a model that keeps what it is given.

    At gates what the case decided is decided, by path.
    """
    model = ScriptedModel(default=offline_answer)
    recorder = Recorder(answerer=by_path(case.get("decisions", {})))
    ctx = RunContext(inputs=dict(case["inputs"]), recorder=recorder)
    ChatRunner(model, form=form).run(ctx, tree)
    return Ran(
        calls={seen.path: seen for seen in model.calls},
        answers={record.path: record.response for record in ctx.steps if record.kind != "gate"},
        messages=ctx.messages,
        outputs=ctx.outputs,
        text=ctx.text,
    )


def golden(run: Ran, case: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the case of an example should say after this run, in the case's own form."""
    hidden = case.get("hidden", ())
    kept = {
        key: value for key, value in run.outputs.items() if "." not in key and key not in hidden
    }
    return {
        "about": case["about"],
        "inputs": case["inputs"],
        **{name: case[name] for name in ("decisions", "hidden") if name in case},
        "calls": [{path: _clipped(answer)} for path, answer in run.answers.items()],
        "saw": {
            path: [_line(message) for message in run.calls[path].messages] for path in case["saw"]
        },
        "conversation": [_line(message) for message in run.messages],
        "outputs": kept,
        "text": run.text,
    }


def case_of(name: str) -> dict[str, Any]:
    """Read the golden case of an example."""
    value = load_file(GRAPHS / name / "expected.yaml").value
    assert isinstance(value, dict)
    return value


def write_case(name: str, case: Mapping[str, Any]) -> None:
    """Write the golden case of an example, under the comment that stands at its top."""
    file = GRAPHS / name / "expected.yaml"
    lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
    head = "".join(line for line in lines if line.startswith("#"))
    file.write_text(head + dump(dict(case)), encoding="utf-8")


def around_drawing(text: str) -> tuple[str, str, str]:
    """Return what is before the drawing of a page, the drawing, and what is after it."""
    start = text.index(OPENING) + len(OPENING)
    end = text.index("```", start)
    return text[:start], text[start:end], text[end:]


def _line(message: BaseMessage) -> dict[str, str]:
    text = str(message.text)
    voices = ", ".join(_VOICE.findall(text))
    said = f"{_short(text)}\nand what these said: {voices}" if voices else _short(text)
    return {_ROLES[message.type]: said}


def _clipped(text: str) -> str:
    """Return a text with its lines, each cut to a width that fits a screen."""
    return "\n".join(_cut(line) for line in text.splitlines())


def _short(text: str) -> str:
    return _cut(" / ".join(line.strip() for line in text.splitlines() if line.strip()))


def _cut(line: str) -> str:
    return line if len(line) <= _WIDE else f"{line[: _WIDE - 3].rstrip()}..."
