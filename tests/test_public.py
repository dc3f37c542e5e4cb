"""The public names: what `from mergepoint import ...` gives, and what importing it costs."""

from __future__ import annotations

import ast
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import mergepoint


def declared() -> dict[str, str]:
    """Give name and home of each import that type checkers see."""
    tree = ast.parse(Path(str(mergepoint.__file__)).read_text(encoding="utf-8"))
    (block,) = [node for node in tree.body if isinstance(node, ast.If)]
    return {
        str(alias.asname): str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_public_names_are_those_that_type_checkers_see() -> None:
    """`__all__`, `dir` and the imports for type checkers list the same names."""
    assert sorted(declared()) == mergepoint.__all__ == dir(mergepoint)


@pytest.mark.parametrize("name", sorted(declared()))
def test_a_name_is_loaded_from_where_type_checkers_look(name: str) -> None:
    """What a name gives at run time is what its import for type checkers names."""
    assert getattr(mergepoint, name) is getattr(import_module(declared()[name]), name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is named with the package."""
    with pytest.raises(AttributeError, match="module 'mergepoint' has no attribute 'Blok'"):
        mergepoint.Blok  # noqa: B018


def test_importing_the_package_loads_no_engine() -> None:
    """`import mergepoint` alone loads neither LangGraph nor LangChain, nor pydantic."""
    program = "import mergepoint, sys; print([m for m in sys.modules if m.startswith(NAMES)])"
    names = "('langgraph', 'langchain', 'langsmith', 'pydantic', 'yaml', 'rich', 'typer')"
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [sys.executable, "-c", program.replace("NAMES", names)],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"


def test_the_law_knows_only_the_standard_library() -> None:
    """Loading every module of core loads no other package."""
    program = (
        "import sys, mergepoint.core.merge, mergepoint.core.path, mergepoint.core.errors;"
        "known = sys.stdlib_module_names | {'mergepoint', '__main__'};"
        "print([m for m in sys.modules if m.partition('.')[0] not in known])"
    )
    done = subprocess.run(  # noqa: S603  (our own interpreter)
        [
            sys.executable,
            "-I",
            "-S",
            "-c",
            f"import sys; sys.path.insert(0, {_source()!r}); {program}",
        ],
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.strip() == "[]"


def _source() -> str:
    return str(Path(str(mergepoint.__file__)).parent.parent)
