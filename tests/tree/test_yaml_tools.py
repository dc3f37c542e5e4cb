"""Tools in trees of YAML: by the name under which they can be imported."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from langchain_core.tools import tool

from mergepoint.core.errors import TreeError
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block
from mergepoint.tree.tree_yaml import from_yaml, load_yaml, to_yaml

TOOLS = '''\
from langchain_core.tools import tool


def population(city: str) -> int:
    """Look up how many people live in a city."""
    return len(city)


@tool
def today() -> str:
    """Say which day it is."""
    return "Monday"


@tool("clock", return_direct=False)
async def time_of_day() -> str:
    """Say which hour it is."""
    return "noon"


def bare(city):
    return city


not_a_tool = 3
'''


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yield a folder with a module of tools of its own; what is imported from it is forgotten."""
    before, path = set(sys.modules), list(sys.path)
    (tmp_path / "my_tools.py").write_text(TOOLS)
    package = tmp_path / "my_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "broken.py").write_text("print('noise')\nraise RuntimeError('no key')\n")
    yield tmp_path
    sys.path[:] = path
    for name in set(sys.modules) - before:
        if name.startswith(("my_", "other_")):
            del sys.modules[name]


def tree_in(folder: Path, tools: str) -> Path:
    """Write a tree of one step with tools and return its file."""
    file = folder / "tree.yaml"
    file.write_text(f"name: t\nnodes:\n  - name: ask\n    prompt: How many?\n    tools:\n{tools}")
    return file


def listed(*names: str) -> str:
    """Return names as the items of a list in YAML."""
    return "".join(f"      - {name}\n" for name in names)


def test_tools_are_imported_from_beside_the_file(project: Path) -> None:
    """Functions and tools are those of the module, and the text is given back."""
    names = ("my_tools:population", "my_tools:today", "my_tools:time_of_day")
    file = tree_in(project, listed(*names) + "    max_tool_rounds: 3\n")
    tree = load_yaml(file)
    module: Any = sys.modules["my_tools"]
    assert isinstance(tree, Block)
    step = tree.nodes[0]
    assert isinstance(step, Step)
    assert step.tools == (module.population, module.today, module.time_of_day)
    assert step.max_tool_rounds == 3
    assert from_yaml(to_yaml(tree)) == tree
    assert all(name in to_yaml(tree) for name in names)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("my_tools.population", "'my_tools.population' is not of the form 'package.module:name'"),
        ("my_tools:popluation", r"the module my_tools has no 'popluation' \(did you mean 'popula"),
        ("my_tool:today", "importing my_tool raised ModuleNotFoundError: No module named 'my_tool"),
        ("my_package.broken:x", "importing my_package.broken raised RuntimeError: no key"),
        ("my_tools:not_a_tool", "a tool is a LangChain tool or a function, not 3"),
        ("my_tools:bare", "the function 'bare' has no docstring; the model reads it"),
        ("7", r"tools\.1 is the name of a tool, package\.module:name, not 7"),
    ],
)
def test_faults_name_file_and_line(
    project: Path, capsys: pytest.CaptureFixture[str], name: str, problem: str
) -> None:
    """Each tool that cannot be one is told at its line, and stdout stays free."""
    file = tree_in(project, listed("my_tools:today", name))
    with pytest.raises(TreeError, match=problem) as caught:
        load_yaml(file)
    assert f"{file}:7: " in str(caught.value)
    assert len(caught.value.faults) == 1
    assert capsys.readouterr().out == ""


def test_all_faults_come_at_once(project: Path) -> None:
    """Two unknown tools and a wrong limit are three faults; a tool that is given twice is one."""
    file = tree_in(project, listed("my_tools:a", "my_tools:b") + "    max_tool_rounds: 0\n")
    with pytest.raises(TreeError) as caught:
        load_yaml(file)
    lines = [fault.problem.removeprefix(f"{file}:")[0] for fault in caught.value.faults]
    assert lines == ["6", "7", "8"]
    twice = tree_in(project, listed("my_tools:today", "my_tools:today"))
    with pytest.raises(TreeError, match=r":5: two tools are called 'today'"):
        load_yaml(twice)
    with pytest.raises(TreeError, match="tools is a list of names"):
        from_yaml("prompt: How many?\ntools: my_tools:today\n")


def test_a_module_of_the_same_name_elsewhere_is_told(project: Path, tmp_path: Path) -> None:
    """A tree never calls the tools of another folder by mistake."""
    load_yaml(tree_in(project, listed("my_tools:today")))
    other = tmp_path / "other"
    other.mkdir()
    (other / "my_tools.py").write_text(TOOLS)
    with pytest.raises(TreeError, match="but the module my_tools was imported from"):
        load_yaml(tree_in(other, listed("my_tools:today")))


def test_without_imports_nothing_is_imported(project: Path) -> None:
    """A tree in a recipe of somebody else has no tools, whatever they are called."""
    file = tree_in(project, listed("my_tools:today", "os:system"))
    with pytest.raises(TreeError, match="a recipe loads no Python"):
        load_yaml(file, imports=False)
    assert "my_tools" not in sys.modules


def test_tools_without_a_name_stay_in_python() -> None:
    """What stands in no module under its name has no text."""

    @tool
    def local() -> str:
        """Say something."""
        return ""

    with pytest.raises(TreeError, match="use tools that a module defines under their own name"):
        to_yaml(Step("A.", tools=[local]))
