"""A notebook that is executed by nbclient: an event loop runs in it already."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.hosts

ALONE = """\
import sys


def refuse(event, args):
    if event == "socket.connect" and isinstance(args[1], tuple) and args[1][0] != "127.0.0.1":
        raise ConnectionRefusedError(args[1][0])


sys.addaudithook(refuse)
from IPython.display import SVG
from mergepoint import *
from mergepoint.report.svg import to_svg

tree = Block(
    [Step(Template("About {{ topic }}."), name="draft"), Step("Shorter.", name="final")],
    name="write",
    inputs=["topic"],
)
given = {"topic": "rain"}
graph = compile_graph(tree, model="offline")
"""


@pytest.fixture
def cells(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that executes cells and returns the outputs of each but the first."""
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))

    def execute(*codes: str) -> list[list[dict[str, Any]]]:
        notebook = nbformat.v4.new_notebook(
            cells=[nbformat.v4.new_code_cell(code) for code in (ALONE, *codes)]
        )
        client = NotebookClient(
            notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}
        )
        client.execute()
        return [cell["outputs"] for cell in notebook.cells[1:]]

    return execute


def text(outputs: list[dict[str, Any]]) -> str:
    """Return what a cell printed, which comes in one piece or several."""
    assert {(one["output_type"], one["name"]) for one in outputs} == {("stream", "stdout")}, outputs
    return "".join(one["text"] for one in outputs)


def test_runs_and_recipes_work_in_cells(cells: Any) -> None:
    """Sync calls, awaited ones and streams work beside the loop of the kernel, each twice."""
    sync, awaited, recipe, turn, graph = cells(
        *(
            f"for _ in range(2):\n    {line}"
            for line in (
                "print(run_generation(tree, model='offline', inputs=given).text)",
                "print((await arun(tree, model='offline', inputs=given)).text)",
                "print(len(run_recipe('best_of_n', ['A title.'], model='offline').things))",
                "print(ChatRunner('offline').run(RunContext(inputs=given), tree).text)",
                "print(graph.invoke({'messages': [], 'inputs': given})['messages'][-1].text)",
            )
        )
    )
    assert text(recipe) == "1\n1\n"
    first = text(sync).splitlines()
    assert len(first) == 2
    assert (
        text(awaited).splitlines() == text(turn).splitlines() == text(graph).splitlines() == first
    )


def test_trees_and_results_are_shown_without_a_network(cells: Any) -> None:
    """Trees, graphs, results and Things have a display that is short and rich."""
    graph, drawing, tree, run, things = cells(
        "graph",
        "SVG(to_svg(tree))",
        "tree",
        "run_generation(tree, model='offline', inputs=given)",
        "run_recipe('best_of_n', ['A title.'], model='offline').things[0]",
    )
    assert 'data-path="write/draft"' in graph[0]["data"]["image/svg+xml"]
    assert "<svg" in drawing[0]["data"]["image/svg+xml"]
    for outputs in (tree, run, things):
        assert [one["output_type"] for one in outputs] == ["execute_result"]
        assert len(outputs[0]["data"]["text/plain"]) < 10_000
        assert {"text/html", "image/svg+xml"} & outputs[0]["data"].keys()


def test_recipes_and_transcripts_are_shown_without_a_network(cells: Any) -> None:
    """Recipes, compiled recipes, transcripts, and results of recipes have rich displays too."""
    recipe, compiled, transcript, result = cells(
        "from mergepoint.targets import find_target\nfind_target('best_of_n').recipe",
        "compile_graph('best_of_n', model='offline')",
        "run_generation(tree, model='offline', inputs=given).transcript",
        "run_recipe('best_of_n', ['A title.'], model='offline')",
    )
    for outputs in (recipe, compiled, transcript, result):
        assert [one["output_type"] for one in outputs] == ["execute_result"]
        assert {"text/html", "image/svg+xml"} & outputs[0]["data"].keys()


def test_results_are_data_frames(cells: Any) -> None:
    """With pandas, results and transcripts are data frames, which a notebook shows as tables."""
    calls, things = cells(
        "run_generation(tree, model='offline', inputs=given).to_dataframe()[['path', 'answer']]",
        "run_recipe('best_of_n', ['A title.'], model='offline').to_dataframe()",
    )
    assert "write/draft" in calls[0]["data"]["text/html"]
    assert "winner" in things[0]["data"]["text/html"]
