"""The public names: what `from mergepoint import ...` gives, and what importing it costs."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from types import FunctionType, ModuleType
from typing import get_type_hints

import pytest

import mergepoint
from mergepoint import Block, Step, run_generation
from mergepoint.journal.file_journal import FileStore
from tests.docs.pages import PAGES, ROOT

PACKAGES = (
    "agent",
    "journal",
    "otel",
    "report",
    "sandbox",
    "scale",
    "session",
    "streams",
    "testing",
    "view",
)
PUBLIC = (*PACKAGES, "patterns", r"apps\.chainlit")


def declared(package: ModuleType = mergepoint) -> dict[str, str]:
    """Return name and home of each import that type checkers see."""
    tree = ast.parse(Path(str(package.__file__)).read_text(encoding="utf-8"))
    block, _ = (node for node in tree.body if isinstance(node, ast.If))  # seen, and not seen
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


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_gives_the_names_that_type_checkers_see(name: str) -> None:
    """A package's names are loaded from their homes, and none is hidden by a module."""
    package = import_module(f"mergepoint.{name}")
    homes = declared(package)
    assert sorted(homes) == sorted(package.__all__) == dir(package)
    for public, home in homes.items():
        found = getattr(package, public)
        assert found is getattr(import_module(home), public)
        assert not isinstance(found, ModuleType)
    with pytest.raises(AttributeError, match=f"module 'mergepoint.{name}' has no attribute 'Blok'"):
        package.Blok  # noqa: B018


@pytest.mark.parametrize("name", ["", *(f".{one}" for one in PACKAGES), ".patterns"])
def test_types_of_public_names_can_be_resolved(name: str) -> None:
    """Hosts that read annotations at run time find every type: none is for checkers only."""
    package = import_module(f"mergepoint{name}")
    for public in getattr(package, "__all__", dir(package)):
        found = getattr(package, public)
        members = [*vars(found).values(), found] if isinstance(found, type) else [found]
        for one in members:
            if not isinstance(one, type | FunctionType):
                continue
            # `trees` is a function that hypothesis made, in a module of its own.
            if one.__module__.startswith("mergepoint") and "<locals>" not in one.__qualname__:
                get_type_hints(one)


def test_pages_import_from_packages() -> None:
    """What the documentation imports is public: from the package, or a package of it."""
    deep = {
        f"{page}: {line.strip()}"
        for page in PAGES
        for line in (ROOT / page).read_text(encoding="utf-8").splitlines()
        if re.match(r"\s*(from|import) mergepoint\.", line)
        and not re.match(rf"\s*from mergepoint\.({'|'.join(PUBLIC)}) import ", line)
    }
    assert deep == set()


def test_an_unknown_name_is_an_attribute_error() -> None:
    """A name that does not exist is named with the package, and a type checker knows it too."""
    with pytest.raises(AttributeError, match="module 'mergepoint' has no attribute 'Blok'"):
        mergepoint.Blok  # type: ignore[attr-defined]  # noqa: B018


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
        "import sys, mergepoint.core.merge, mergepoint.core.paths, mergepoint.core.errors;"
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


# Runs a program in which no package of an extra can be imported: as in a plain installation.
WITHOUT_EXTRAS = """
import importlib.abc, sys
extras = set({extras!r})
class NotInstalled(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in extras:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)
sys.meta_path.insert(0, NotInstalled())
{program}
"""
EXTRAS = {
    "alembic", "anthropic", "blockbuster", "chainlit", "fastapi", "hypothesis", "langchain",
    "langchain_anthropic", "langchain_openai", "langgraph.checkpoint.postgres", "openai", "psycopg",
    "opentelemetry", "pydantic_monty", "pytest", "sqlalchemy", "sse_starlette", "starlette",
    "tiktoken", "uvicorn",
}  # fmt: skip
NEED_EXTRAS = {
    "mergepoint.journal.SqlStore": "sql",
    "mergepoint.otel.ExportError": "otel",
    "mergepoint.otel.SpanRecorder": "otel",
    "mergepoint.otel.export_run": "otel",
    "mergepoint.scale.QueueEngine": "queue",
    "mergepoint.testing.trees": "testing",
}


def without_extras(program: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a program in a folder, without the packages of any extra."""
    text = WITHOUT_EXTRAS.format(extras=sorted(EXTRAS), program=program)
    command = [sys.executable, "-c", text]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)  # noqa: S603


def test_public_names_need_no_extra(tmp_path: Path) -> None:
    """After a plain installation every public name is there, or its error says what to install."""
    program = """
from importlib import import_module
for package in ("mergepoint", *(f"mergepoint.{name}" for name in NAMES)):
    for name in import_module(package).__all__:
        try:
            getattr(import_module(package), name)
        except Exception as error:
            print(f"{package}.{name}", error)
""".replace("NAMES", repr((*PACKAGES, "patterns")))
    ended = without_extras(program, tmp_path)
    assert (ended.returncode, ended.stderr) == (0, "")
    missing = dict(line.split(" ", 1) for line in ended.stdout.splitlines())
    assert missing.keys() == NEED_EXTRAS.keys()
    for name, extra in NEED_EXTRAS.items():
        assert f"[{extra}]" in missing[name]


# One process for all commands of a test: to start Python and mergepoint takes longer than most of
# them. A command ends by SystemExit.
EACH = """
import sys
from mergepoint.apps.cli.app import main
for words in {commands!r}:
    sys.argv[1:] = words
    try:
        main()
        code = 0
    except SystemExit as ended:
        code = ended.code or 0
    print("ended", words, code, "langgraph" in sys.modules, file=sys.stderr)
"""
WORKING = [
    ["--help"],
    ["list"],
    ["check", "best_of_n"],
    ["graph", "best_of_n"],
    ["demo"],
    ["run", "best_of_n", "A title for a poster."],
    ["runs", "list"],
    ["chat", "-m", "Hello."],
    ["sessions", "list"],
]


def ends(commands: list[list[str]], folder: Path) -> list[str]:
    """Return how commands ended: words, exit code, and whether LangGraph was loaded by then."""
    ended = without_extras(EACH.format(commands=commands), folder)
    assert ended.returncode == 0, ended.stderr
    lines = [line for line in ended.stderr.splitlines() if line.startswith("ended ")]
    assert len(lines) == len(commands), ended.stderr
    return lines


@pytest.mark.campaign
def test_commands_need_no_extra(tmp_path: Path) -> None:
    """After a plain installation the commands of the documentation work."""
    found = [line.rpartition(" ")[0] for line in ends(WORKING, tmp_path)]
    assert found == [f"ended {words} 0" for words in WORKING]


LOOKING = [
    "check best_of_n",
    "graph best_of_n",
    "explain tree.yaml",
    "explain best_of_n",
    "explain best_of_n -o plan.html",
    "runs --help",
    "runs list",
    "runs export one",
    "diff one two",
    "sessions list",
    "view --no-open",
    "view one --no-open",
    "view one two --no-open",
]
TREE_YAML = """
name: talk
nodes:
  - name: draft
    prompt: Write a line.
  - name: revise
    prompt: Make it shorter.
"""


@pytest.fixture(scope="module")
def looked_at(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with two runs and the definition of a tree."""
    folder = tmp_path_factory.mktemp("looked")
    (folder / "tree.yaml").write_text(TREE_YAML, encoding="utf-8")
    tree = Block([Step("Write a line.", name="draft")], name="talk")
    for name in ("one", "two"):
        run_generation(tree, model="offline", runs=FileStore(folder / "runs"), run_id=name)
    return folder


@pytest.mark.campaign
def test_commands_that_run_nothing_load_no_engine(looked_at: Path) -> None:
    """LangGraph takes a quarter of a second, which a command that only looks does without."""
    commands = [words.split() for words in LOOKING]
    assert ends(commands, looked_at) == [f"ended {words} 0 False" for words in commands]
