"""The pages are true: blocks run and print what is shown, links lead somewhere, lists are whole."""

from __future__ import annotations

import ast
import doctest
import importlib
import pkgutil
import re
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
import yaml
from tests.docs.pages import PAGES, ROOT, Page, broken_links
from tests.docs.play import play, reason_not_to_run
from tests.docs.reference import PYTHON
from tests.docs.refresh import refreshed, stale

import mergepoint
from mergepoint.apps.cli.app import app
from mergepoint.streams.registry import REGISTRY

SOURCE = ROOT / "src" / "mergepoint"
NOT_RUN = 0
LONG = ("docs/how-to/test/record-and-replay.md", "docs/how-to/test/scripted-models.md")
"""Pages of dozens of commands, each a process of its own: `tests/acceptance` plays them."""
MOST_LINES_OF_A_MODULE = 600
MOST_LINES_OF_A_FUNCTION = 40


SLOW = (
    "docs/get-started/approve-and-resume.md",
    "docs/get-started/chat-agent.md",
    "docs/get-started/first-recipe.md",
    "docs/get-started/first-workflow.md",
    "docs/how-to/agent/chat-from-the-terminal.md",
    "docs/how-to/recipes/run-a-recipe.md",
    "docs/how-to/recipes/write-a-block.md",
    "docs/how-to/recipes/write-a-recipe.md",
    "docs/how-to/run/compare-runs.md",
    "docs/how-to/run/databases.md",
    "docs/how-to/run/explain-a-run.md",
    "docs/how-to/run/inspect-a-run.md",
    "docs/how-to/run/resume-reuse-replay.md",
    "docs/how-to/run/see-a-run.md",
    "docs/how-to/run/troubleshoot.md",
    "docs/how-to/scale/run-a-batch.md",
    "docs/how-to/workflows/yaml-trees.md",
)
"""Pages whose commands take more than a second: played in the campaigns."""


def played() -> list[Any]:
    """Return the pages whose blocks are run, the slow ones marked."""
    return [
        pytest.param(name, marks=[pytest.mark.campaign] if name in SLOW else [])
        for name in PAGES
        if name not in LONG
    ]


@pytest.mark.parametrize("name", played())
def test_blocks_run_and_print_what_is_shown(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every block of a page runs, in order, and each shown output is what was printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(REGISTRY, "_found", dict(REGISTRY._found))
    for shown in play(Page.read(name)):
        assert shown.fits, (
            f"{name}:{shown.fence.line} shows\n{shown.fence.text}\nand it printed\n{shown.printed}"
        )


@pytest.mark.parametrize("name", PAGES)
def test_links_lead_somewhere(name: str) -> None:
    """Every link to a file or heading of the project has its target."""
    assert broken_links(Page.read(name)) == []


@pytest.mark.parametrize("name", [name for name in PAGES if Page.read(name).commands()])
def test_commands_in_sentences_exist(name: str) -> None:
    """Every command that a sentence names is there, with its options."""
    assert [
        f"{name}:{number}: {text}: {wrong}"
        for number, text in Page.read(name).commands()
        if text.startswith("mergepoint ")
        for wrong in _unknown(text.split()[1:])
    ] == []


def _unknown(words: list[str]) -> list[str]:
    """Return the command or the options among the words that there are not."""
    at: Any = typer.main.get_command(app)
    while words and hasattr(at, "commands") and re.match("[a-z]", words[0]):
        names = words[0].split("|")
        if wrong := [one for one in names if one not in at.commands]:
            return wrong
        at, words = at.commands[names[0]], words[1:]
    known = {name for param in at.params for name in (*param.opts, *param.secondary_opts)}
    return [word for word in words if word.startswith("-") and word not in {*known, "--help"}]


def test_a_command_that_is_not_there_is_found() -> None:
    """A misspelled command or option in a sentence is named."""
    assert _unknown(["runs", "lst"]) == ["lst"]
    assert _unknown(["run", "TARGET", "--budgets", "calls=1"]) == ["--budgets"]
    assert _unknown(["runs", "..."]) == []


def test_blocks_that_are_not_run_are_counted() -> None:
    """As many Python blocks are left out as this file says, and each says why."""
    left_out = [
        f"{name}:{fence.line}"
        for name in PAGES
        for fence in Page.read(name).fences()
        if reason_not_to_run(fence, f"{name}:{fence.line}") is not None
    ]
    assert len(left_out) == NOT_RUN, left_out


def test_the_readme_shows_twenty_lines() -> None:
    """The first Python block of the README has at most twenty lines that are not blank."""
    first = next(fence for fence in Page.read("README.md").fences() if fence.language == "python")
    assert sum(bool(line.strip()) for line in first.text.splitlines()) <= 20


@pytest.mark.parametrize("name", ["run", "test"])
def test_the_two_commands_are_one_line_each(name: str) -> None:
    """Each command of the README is a block of one line that starts from nothing."""
    found = [
        fence.text
        for fence in Page.read("README.md").fences()
        if fence.marks.get("command") == name
    ]
    assert [text.count("\n") for text in found] == [1]
    assert found[0].startswith("python3 -m venv .venv && . .venv/bin/activate && ")


def test_generated_files_are_those_of_today() -> None:
    """Drawings and reference pages are what the code gives now."""
    assert stale() == [], "run: python -m tests.docs.refresh"


@pytest.mark.parametrize("package", PYTHON)
def test_the_python_reference_has_every_public_name(package: str) -> None:
    """Each public name of a package has its entry."""
    page = Page.read(f"docs/reference/python/{package.rpartition('.')[2]}.md").text
    assert [
        name for name in import_module(package).__all__ if f"::: {package}.{name}\n" not in page
    ] == []


def test_the_site_lists_every_page_once() -> None:
    """The navigation of the site names each page for users, and no page that is not there."""
    listed = list(_listed(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"]))
    there = {
        name.removeprefix("docs/")
        for name in PAGES
        if name.startswith("docs/") and not name.startswith("docs/internals/")
    }
    assert sorted(listed) == sorted(there)


def test_every_page_is_reached_by_links() -> None:
    """From the README, links of Markdown pages lead to each page for users, as on GitHub."""
    found, todo = set[str](), ["README.md"]
    while todo:
        name = todo.pop()
        if name in PAGES and name not in found:
            found.add(name)
            folder = (ROOT / name).parent
            todo += [
                (folder / target.partition("#")[0]).resolve().relative_to(ROOT).as_posix()
                for _, target in Page.read(name).links()
                if not re.match(r"[a-z]+:|#", target)
            ]
    users = {name for name in PAGES if not name.startswith("docs/internals/")}
    assert sorted(users - found) == []


def test_the_index_lists_every_how_to_guide() -> None:
    """The index of the documentation links each how-to guide."""
    links = [f"docs/{target}" for _, target in Page.read("docs/index.md").links()]
    guides = [name for name in PAGES if name.startswith("docs/how-to/")]
    assert [name for name in guides if name not in links] == []


def _listed(nav: Any) -> Iterator[str]:
    """Yield the pages of a navigation tree."""
    if isinstance(nav, str):
        yield nav
    else:
        for one in nav.values() if isinstance(nav, dict) else nav:
            yield from _listed(one)


@pytest.mark.parametrize("name", [name for name in PAGES if name.startswith("docs/")])
def test_pages_link_inside_of_the_site(name: str) -> None:
    """A page of the site has no relative link to a file that the site does not have."""
    outside = [
        f"{name}:{number}: {target}"
        for number, target in Page.read(name).links()
        if not re.match(r"[a-z]+:", target)
        and not (ROOT / name).parent.joinpath(target).resolve().is_relative_to(ROOT / "docs")
    ]
    assert outside == []


def test_every_design_note_is_listed() -> None:
    """The index of the design notes links each of them, in order."""
    folder = ROOT / "docs" / "internals" / "decisions"
    listed = [target for _, target in Page.read("docs/internals/decisions/README.md").links()]
    assert listed == sorted(path.name for path in folder.glob("[0-9]*.md"))


def test_long_modules_and_functions_give_their_reason() -> None:
    """The page on code style names every module and function that is longer than ours should be."""
    modules, functions = _long()
    named = re.findall(
        r"^\| `([^`]+)` \| .{10,} \|$", Page.read("docs/internals/code-style.md").text, re.MULTILINE
    )
    assert sorted(named) == sorted([*modules, *functions])


def _long() -> tuple[list[str], list[str]]:
    modules: list[str] = []
    functions: list[str] = []
    for path in sorted(SOURCE.rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        name = path.relative_to(SOURCE).as_posix()
        if text.count("\n") > MOST_LINES_OF_A_MODULE:
            modules.append(name)
        functions += [
            f"{name}: {node.name}"
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            and (node.end_lineno or 0) - node.lineno >= MOST_LINES_OF_A_FUNCTION
        ]
    return modules, functions


def test_examples_in_docstrings_run() -> None:
    """Every `>>>` example in a docstring of the library gives what it shows."""
    names = [
        found.name
        for found in pkgutil.walk_packages(mergepoint.__path__, "mergepoint.")
        if not found.name.endswith("__main__")
        and not found.name.startswith("mergepoint.apps.chainlit.")  # it writes when it is imported
    ]
    assert "mergepoint.core.merge" in names
    assert [fault for name in names for fault in _doctested(importlib.import_module(name))] == []


def _doctested(module: ModuleType) -> list[str]:
    """Return the examples of a module's docstrings that give something else than they show."""
    runner = doctest.DocTestRunner(verbose=False)
    return [
        test.name
        for test in doctest.DocTestFinder(exclude_empty=True).find(module)
        if runner.run(test, out=lambda _: None).failed
    ]


def test_a_docstring_that_is_wrong_is_found() -> None:
    """The check of docstrings sees an example that gives something else."""
    module = ModuleType("wrong")
    module.__doc__ = "Add.\n\n>>> 1 + 1\n3\n"
    assert _doctested(module) == ["wrong"]


def page(*lines: str) -> Page:
    """Return a page of these lines."""
    return Page("docs/x.md", "".join(f"{line}\n" for line in lines))


def test_an_output_that_differs_is_found_and_refreshed() -> None:
    """A shown output that is not what was printed does not fit, and refreshing makes it so."""
    wrong = page("```python", "print(1 + 1)", "```", "", "<!-- output -->", "```text", "3", "```")
    shown = list(play(wrong))
    assert [one.fits for one in shown] == [False]
    right = Page(wrong.name, refreshed(wrong, shown))
    assert [one.fits for one in play(right)] == [True]
    assert right.text == wrong.text.replace("3\n", "2\n")


def test_dots_stand_for_anything() -> None:
    """An output may leave out what differs from run to run."""
    block = ["```python", "print('took', 7, 's')", "```", "<!-- output -->", "```text"]
    assert [one.fits for one in play(page(*block, "took ... s", "```"))] == [True]
    assert [one.fits for one in play(page(*block, "took ... m", "```"))] == [False]


def test_an_output_of_nothing_is_refused() -> None:
    """An output that follows no block that was run proves nothing, and is an error."""
    with pytest.raises(ValueError, match=r"docs/x\.md:3: this output follows no block"):
        list(play(page("<!-- output -->", "```text", "3", "```")))


def test_a_block_that_raises_shows_its_line_of_the_page() -> None:
    """The traceback of a failing block points into the page."""
    with pytest.raises(ZeroDivisionError) as raised:
        list(play(page("Text.", "", "```python", "1 / 0", "```")))
    assert raised.traceback[-1].frame.code.path == "docs/x.md:4"
    assert raised.traceback[-1].lineno + 1 == 4


def test_a_block_that_is_not_run_needs_a_reason() -> None:
    """A mark without a reason of some words is an error; with one the block is left out."""
    block = ["```python", "1 / 0", "```"]
    with pytest.raises(ValueError, match="a block that is not run says why"):
        list(play(page("<!-- not run: no -->", *block)))
    assert list(play(page("<!-- not run: it divides by zero -->", *block))) == []


def test_a_tree_with_a_fault_is_found() -> None:
    """A YAML block that is marked as a tree is loaded as one."""
    with pytest.raises(mergepoint.TreeError, match=r"docs/x\.md:3:2: no key 'promp' here"):
        list(play(page("<!-- tree -->", "```yaml", "nodes:", "  - {promp: Hi.}", "```")))


def test_a_command_that_fails_is_found() -> None:
    """A shell block that is marked to run must succeed."""
    with pytest.raises(AssertionError, match="exit code 3"):
        list(play(page("<!-- runs -->", "```sh", "exit 3", "```")))


def test_broken_links_are_found() -> None:
    """Links to a file, a heading or an image that is not there are named with their lines."""
    text = page(
        "# A title", "[a](#a-title) [b](#b)", "", '![c](c.svg) <img src="d.svg">', "`[e](f)`"
    )
    assert broken_links(text) == [
        "docs/x.md:2: there is no heading for #b",
        "docs/x.md:4: there is no c.svg",
        "docs/x.md:4: there is no d.svg",
    ]


def test_the_page_of_the_browser_shows_the_example_that_is_tested() -> None:
    """The app on the page is the file that `tests/ui/test_own_chat.py` runs."""
    example = (ROOT / "docs" / "examples" / "own_chat.py").read_text(encoding="utf-8")
    assert f"```text\n{example}```" in Page.read("docs/how-to/agent/browser-ui.md").text
