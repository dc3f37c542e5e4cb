"""The shape of the code: layers, callers of the merge, sizes, and how tests are written."""

from __future__ import annotations

import ast
import re
import socket
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import grimp
import pytest
from importlinter.cli import EXIT_STATUS_SUCCESS

HERE = Path(__file__).parent
ROOT = HERE.parent
SOURCE = ROOT / "src" / "mergepoint"
TASTE = ROOT / "docs" / "internals" / "code-style.md"

LONG = 600
MERGING = {
    "tree/semantics.py": 1,
    "engine/graph_nodes.py": 3,
    "session/history.py": 1,
}
KEEPING = {"report/views.py"}  # it shows what is kept, and gives no state


@cache
def parsed(folder: Path) -> list[tuple[str, ast.Module]]:
    """Return name and syntax tree of each Python file below a folder."""
    return [
        (path.relative_to(folder).as_posix(), ast.parse(path.read_text(encoding="utf-8")))
        for path in sorted(folder.rglob("*.py"))
    ]


def imported(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Yield module and name of everything that a file imports."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, ""
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                yield node.module or "", alias.name


def test_imports_go_one_way() -> None:
    """The contracts of import-linter hold."""
    # In a process of its own: import-linter configures logging, which disables the loggers that
    # exist, and tests of what is logged then found nothing in the same process.
    command = "import importlinter.cli as cli; raise SystemExit(cli.lint_imports(no_cache=True))"
    ended = subprocess.run(  # noqa: S603  (our own command)
        [sys.executable, "-c", command], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == EXIT_STATUS_SUCCESS, ended.stdout + ended.stderr


def test_no_module_imports_itself_by_way_of_others() -> None:
    """There is no cycle among the modules."""
    graph = grimp.build_graph("mergepoint", exclude_type_checking_imports=True, cache_dir=None)
    done: set[str] = set()

    def visit(module: str, above: tuple[str, ...]) -> None:
        assert module not in above, " -> ".join([*above[above.index(module) :], module])
        if module not in done:
            for other in graph.find_modules_directly_imported_by(module):
                visit(other, (*above, module))
            done.add(module)

    for module in sorted(graph.modules):
        visit(module, ())


OF_EXTRAS = {
    "models/responses.py": "openai",
    "journal/sql_engines.py": "sql",
    "otel/": "otel",
    "scale/job_queue.py": "queue",
    "scale/job_queue": "sql",
    "scale/queue_worker.py": "queue",
    "scale/queued_runs.py": "sql",
    "scale/ray_engine.py": "ray",
    "scale/budget_rows.py": "sql",
    "scale/rate_buckets": "sql",
    "scale/rate_buckets.py": "limits",
    "testing/": "testing",
    "view/server.py": "view",
    "view/web_app.py": "view",
    "apps/chainlit/": "chainlit",
}
LOADED_LATE = {"langchain", "pandas"}  # behind a message that names what to install


def declared() -> dict[str, set[str]]:
    """Return the distributions that pyproject.toml names: by extra, those of the core under ''."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    lists = {"": project["dependencies"], **project["optional-dependencies"]}
    return {
        extra: {re.split(r"[\[<>=]", one)[0].replace("_", "-").lower() for one in names}
        for extra, names in lists.items()
    }


def test_what_is_imported_is_declared() -> None:
    """An installed mergepoint finds every module that its files import."""
    distributions, names = packages_distributions(), declared()
    undeclared = set()
    for file, tree in parsed(SOURCE):
        extras = {extra for start, extra in OF_EXTRAS.items() if file.startswith(start)}
        allowed = set().union(names[""], *(names[extra] for extra in extras))
        for module, _ in imported(tree):
            top = module.partition(".")[0]
            if top in sys.stdlib_module_names | LOADED_LATE | {"mergepoint", "__future__"}:
                continue
            if (
                not {one.replace("_", "-").lower() for one in distributions.get(top, (top,))}
                & allowed
            ):
                undeclared.add(f"{file}: {module}")
    assert undeclared == set()


# First words that tell a reader little: a docstring says "Return", "Yield", "Raise" or "Record".
UNCLEAR = {"Give", "Say", "Tell", "Know", "Hear", "Go", "Let", "Put", "Stand", "Do", "What", "Who"}


def test_docstrings_open_with_a_plain_word() -> None:
    """No docstring opens with a word that readers of Python do not expect there."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    unclear = [
        f"{name}:{getattr(node, 'lineno', 1)}"
        for name, tree in parsed(SOURCE)
        if "bundled_skills" not in name  # these docstrings are shown to a model
        for node in ast.walk(tree)
        if isinstance(node, kinds) and re.split(r"\W", ast.get_docstring(node) or "")[0] in UNCLEAR
    ]
    assert unclear == []


def test_a_class_name_has_one_meaning() -> None:
    """No two modules define a class of the same name."""
    homes: dict[str, set[str]] = {}
    for name, tree in parsed(SOURCE):
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                homes.setdefault(node.name, set()).add(name)
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_callers_of_the_merge_are_few_and_named() -> None:
    """State changes in the fold, in the exits of compiled graphs and where a session commits."""
    found: dict[str, int] = {}
    for name, tree in parsed(SOURCE):
        if name == "core/merge.py" or ("mergepoint.core.merge", "merge") not in imported(tree):
            continue
        calls = [node.func for node in ast.walk(tree) if isinstance(node, ast.Call)]
        found[name] = sum(isinstance(one, ast.Name) and one.id == "merge" for one in calls)
    assert found == MERGING


def test_nobody_goes_around_the_merge() -> None:
    """What a mode keeps is asked for by the merge, and by reports that give no state."""
    asking = set()
    for name, tree in parsed(SOURCE):
        names = set(imported(tree))
        assert not {("mergepoint.core.merge", ""), ("mergepoint.core", "state")} & names, name
        if ("mergepoint.core.merge", "keep") in names:
            asking.add(name)
    assert asking == KEEPING


def test_long_modules_are_answered_for() -> None:
    """A module of more than 600 lines is named in docs/internals/code-style.md, with its reason."""
    if not TASTE.exists():
        pytest.skip("docs/internals/code-style.md is not written yet")
    told = TASTE.read_text(encoding="utf-8")
    silent = [
        path.relative_to(SOURCE).as_posix()
        for path in sorted(SOURCE.rglob("*.py"))
        if len(path.read_text(encoding="utf-8").splitlines()) > LONG
        and path.relative_to(SOURCE).as_posix() not in told
    ]
    assert silent == []


def written() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield file and definition of each test function."""
    for name, tree in parsed(HERE):
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and _is_test(node.name):
                yield name, node


def _is_test(name: str) -> bool:
    return name.startswith("test_")


def test_every_test_says_in_one_sentence_what_it_proves() -> None:
    """A test function has a docstring of one sentence."""
    wordy = [
        f"{name}: {node.name}"
        for name, node in written()
        if not re.fullmatch(r"(?s)\S.*[.?]", text := ast.get_docstring(node) or "")
        or "\n\n" in text
        or re.search(r"(?<!e\.g|i\.e|\.\.\.)[.?!]\s+[A-Z]", text)
    ]
    assert wordy == []


@pytest.mark.parametrize("folder", [SOURCE, HERE, ROOT / "graphs"], ids=lambda one: one.name)
def test_docstrings_can_be_encoded(folder: Path) -> None:
    """No docstring holds half of a surrogate pair, on which Python 3.13 fails at import."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    broken = [
        f"{name}:{getattr(node, 'lineno', 1)}"
        for name, tree in parsed(folder)
        for node in ast.walk(tree)
        if isinstance(node, kinds)
        and re.search("[\ud800-\udfff]", ast.get_docstring(node, clean=False) or "")
    ]
    assert broken == []


def test_no_test_uses_mocks() -> None:
    """The shipped fakes are used instead."""
    found = {
        name
        for name, tree in parsed(HERE)
        for module, imported_name in imported(tree)
        if f"{module}.{imported_name}".startswith(("unittest.mock", "mock.", "pytest_mock"))
    }
    takers = {name for name, node in written() if "mocker" in {one.arg for one in node.args.args}}
    assert found | takers == set()


@pytest.mark.parametrize("address", [("192.0.2.1", 9), ("example.org", 80)])
def test_tests_reach_no_other_machine(address: tuple[str, int]) -> None:
    """A connection to anything but this machine is refused before it is tried."""
    with pytest.raises(ConnectionRefusedError, match="this machine only"):
        socket.create_connection(address, timeout=1)
