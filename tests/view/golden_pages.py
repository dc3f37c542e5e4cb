"""Runs of all examples and recipes with the offline model, and the text of their pages.

`python -m tests.view.golden_pages` writes the golden files again.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from pathlib import Path

from tests.apps.command import command
from tests.view.rendering import rendered

from mergepoint.streams.recipe_yaml import LIBRARY
from mergepoint.tree.load import graph_names
from mergepoint.view.page import ISLAND

GOLDEN = Path(__file__).parent / "golden"
GRAPHS = Path(__file__).parents[2] / "graphs"
EXAMPLES = sorted(one.parent.name for one in GRAPHS.glob("*/*") if one.name == "README.md")
ITEM = {
    "content": "Write a title for a poster of a night market.",
    "question": "Which title is best?",
    "persona": "a printer",
}


def page_text(kind: str, name: str) -> str:
    """Return the text of the page of a run, which is run in the current directory."""
    Path("items.jsonl").write_text(json.dumps(ITEM), encoding="utf-8")
    arguments = ["--items", "items.jsonl"]
    if kind == "example":
        inputs = GRAPHS / name / "inputs.yaml"
        items = GRAPHS / name / "items.txt"
        arguments = ["--input-file" if inputs.exists() else "--items"]
        arguments.append(str(inputs if inputs.exists() else items))
    target = name if kind == "recipe" or name in graph_names() else str(GRAPHS / name)
    done = command("run", target, *arguments, "--run-id", "one", "--quiet")
    seen = command("view", "one", "--no-open")
    assert seen.code == 0, f"{done.err}\n{seen.err}"
    html = Path(seen.out.strip()).read_text(encoding="utf-8")
    page = json.loads(html.partition(f'id="{ISLAND}">')[2].partition("</script>")[0])
    (run,) = page["runs"]
    return rendered(page, run).replace(str(GRAPHS), "graphs")


def golden_file(kind: str, name: str) -> Path:
    """Return the golden file of a run."""
    return GOLDEN / f"{kind}_{name}.txt"


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    runs = [("example", name) for name in EXAMPLES]
    runs += [("recipe", name) for name in LIBRARY.names()]
    for each in runs:
        with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
            golden_file(*each).write_text(page_text(*each), encoding="utf-8")
            print(*each)
