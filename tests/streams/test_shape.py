"""The shape of the streams: one stamp, one way to ask, blocks that keep to their contract."""

from __future__ import annotations

import ast
from pathlib import Path

import mergepoint.streams
from mergepoint.streams.provenance import misspelt, vocabulary
from mergepoint.streams.registry import PACKAGE, Registry

HERE = Path(str(mergepoint.streams.__file__)).parent
STAMPING = {"block_context.py": 1, "executor.py": 1, "recipe_setup.py": 1, "stage_run.py": 2}
MAKING = {"thing.py"}
BUILT_IN = Registry(package=PACKAGE)


def parsed() -> list[tuple[str, ast.Module]]:
    """Return name and syntax tree of each module."""
    return [
        (path.relative_to(HERE).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(HERE.rglob("*.py"))
    ]


def test_history_is_stamped_in_one_place() -> None:
    """History is written where items enter, at the exits of stages and rounds, and for a run."""
    found: dict[str, int] = {}
    for name, tree in parsed():
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if count := sum(isinstance(one, ast.Name) and one.id == "stamp" for one in calls):
            found[name] = count
    assert found == STAMPING


def test_blocks_know_of_nothing_that_is_made() -> None:
    """Only the Thing itself and its entry into a stream name what is made of it."""
    making = {
        name
        for name, tree in parsed()
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "Made"
    }
    assert making == MAKING


def test_blocks_reach_nothing_but_their_stage() -> None:
    """A block imports neither the engine nor the models, so that any executor can run it."""
    for name, tree in parsed():
        if not name.startswith("blocks/"):
            continue
        for node in ast.walk(tree):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            forbidden = ("langgraph", "mergepoint.engine", "mergepoint.models")
            assert not module.startswith(forbidden), name


def test_docstrings_name_the_words_that_blocks_write() -> None:
    """What a block adds with its defaults is named in its docstring and is in the vocabulary."""
    known = vocabulary().props
    for kind in BUILT_IN.all():
        added = kind.adds if isinstance(kind.adds, tuple) else ()
        assert all(name in known for name in added), kind.name
        assert all(f"`{name}`" in kind.doc for name in added), kind.name
        assert misspelt(dict.fromkeys(added)) == ()


def test_each_block_is_a_file_of_its_name() -> None:
    """One verb a file: the module of a block defines that block alone."""
    for kind in BUILT_IN.all():
        tree = ast.parse((HERE / "blocks" / f"{kind.name}.py").read_text(encoding="utf-8"))
        decorated = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.AsyncFunctionDef)
            for one in node.decorator_list
            if isinstance(one, ast.Call)
            and isinstance(one.func, ast.Name)
            and one.func.id == "block"
        ]
        assert len(decorated) == 1, kind.name
