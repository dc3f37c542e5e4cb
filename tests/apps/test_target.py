"""Targets: graphs that come along, files with objects, YAML trees, and clear words for the rest."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from mergepoint.core.errors import RecipeError, TreeError
from mergepoint.targets import find_target
from mergepoint.tree.load import TargetError, about, graph_file, graph_names
from mergepoint.tree.nodes import Node, root_path


def tree_of(target: str) -> Node:
    """Return the tree that a target names."""
    tree = find_target(target).tree
    assert tree is not None
    return tree


def refusal(target: str) -> str:
    """Return the message with which a target is refused."""
    with pytest.raises(TargetError) as caught:
        find_target(target)
    return str(caught.value)


def test_every_graph_that_comes_along_gives_a_tree_and_a_line() -> None:
    """Each name in the list resolves, and its file says in one line what it is."""
    assert {"flat_chat", "image_prompt", "tot_enclave"} <= set(graph_names())
    for name in graph_names():
        assert root_path(tree_of(name))
        assert about(graph_file(name))


@pytest.mark.parametrize("target", ["essay.py:tree", "essay.py", "essay.py:", "essay.py:build"])
def test_a_file_gives_its_object(target: str) -> None:
    """A tree, a function that gives one, and `tree` where no object is named, are the same."""
    found = find_target(target)
    assert found.tree is not None
    assert root_path(found.tree) == "essay"
    assert found.file == Path("essay.py")


def test_a_yaml_file_is_a_tree(here: Path) -> None:
    """A path that ends in .yaml is read as a tree."""
    (here / "two.yaml").write_text("name: two\nnodes:\n- prompt: Hello\n", encoding="utf-8")
    assert root_path(tree_of("two.yaml")) == "two"


def test_a_yaml_tree_with_a_fault_is_refused_with_its_line(here: Path) -> None:
    """The error of a YAML tree holds the file and the line."""
    (here / "two.yaml").write_text("nodes:\n- prompt: Hello\n  merg: none\n", encoding="utf-8")
    with pytest.raises(TreeError, match=r"two\.yaml:3"):
        find_target("two.yaml")


def test_an_unknown_name_is_answered_with_near_ones_and_the_three_forms() -> None:
    """A misspelt graph gets the nearest name, and the forms of a target."""
    said = refusal("image_promt")
    assert "did you mean 'image_prompt'" in said
    assert "file.py:object" in said
    assert "x.yaml" in said


@pytest.mark.parametrize("target", ["nowhere.py:tree", "nowhere.yaml"])
def test_a_file_that_is_not_there_is_named(target: str) -> None:
    """A missing file is said to be missing, whatever its kind."""
    assert "there is no file 'nowhere." in refusal(target)


def test_a_missing_object_is_answered_with_the_trees_in_the_file() -> None:
    """A misspelt object gets the nearest name, and what trees there are."""
    said = refusal("essay.py:tre")
    assert "no 'tre' (did you mean 'tree'?)" in said
    assert "trees in it: tree" in said


def test_an_object_of_another_kind_is_refused() -> None:
    """A number is no tree, and the error says what one is."""
    assert "essay.py:number is a int, not a tree" in refusal("essay.py:number")


def test_a_function_that_needs_arguments_is_refused() -> None:
    """A factory with arguments is named with them."""
    assert "essay.py:build_with takes arguments (count)" in refusal("essay.py:build_with")


def test_an_object_behind_a_yaml_file_is_refused() -> None:
    """A YAML file holds one tree, so there is nothing to choose."""
    assert "leave out ':tree'" in refusal("essay.yaml:tree")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("x = 1\nraise RuntimeError('no luck')\n", "broken.py:2: importing it raised RuntimeError"),
        ("x = (\n", "broken.py:1: importing it raised SyntaxError"),
        ("import not_there_at_all\n", "broken.py:1: importing it raised ModuleNotFoundError"),
        ("import sys\nsys.exit(3)\n", "broken.py:2: importing it raised SystemExit"),
        (
            "from mergepoint import Step\n\ntree = Step('')\n",
            "broken.py:3: importing it raised Tre",
        ),
        ("def tree():\n    return [][1]\n", "broken.py:2: calling tree() raised IndexError"),
        ("def tree():\n    return None\n", "broken.py:tree is None, not a tree"),
    ],
)
def test_a_file_that_fails_is_told_with_its_line(here: Path, text: str, problem: str) -> None:
    """What a user's file raises becomes one line with file, line and type."""
    (here / "broken.py").write_text(text, encoding="utf-8")
    assert refusal("broken.py").startswith(problem)


def test_a_file_that_failed_can_be_mended(here: Path) -> None:
    """A failed import leaves nothing behind that the next one would find."""
    file = here / "broken.py"
    file.write_text("raise RuntimeError\n", encoding="utf-8")
    refusal("broken.py")
    file.write_text("from mergepoint import Step\ntree = Step('x', name='ok')\n", encoding="utf-8")
    assert root_path(tree_of("broken.py")) == "ok"


def test_any_node_is_a_tree(here: Path) -> None:
    """A loop, a gate or a call may be the root as well as a block or step."""
    text = (
        "from mergepoint import Call, Gate, Loop, Step\n"
        "loop = Loop([Step('x')], until='x', name='loop')\n"
        "gate = Gate(Step('x'), name='gate')\n"
        "call = Call(print, args={}, name='call')\n"
    )
    (here / "kinds_of_mine.py").write_text(text, encoding="utf-8")
    for name in ("loop", "gate", "call"):
        assert root_path(tree_of(f"kinds_of_mine.py:{name}")) == name


def test_a_file_named_like_a_module_takes_nothing_from_it(here: Path) -> None:
    """What others imported under that name stays as it is."""
    import json

    (here / "json.py").write_text(
        "from mergepoint import Step\ntree = Step('x', name='mine')\n", encoding="utf-8"
    )
    assert root_path(tree_of("json.py")) == "mine"
    assert sys.modules["json"] is json


def test_modules_beside_a_file_can_be_imported(here: Path) -> None:
    """A tree file may be one of several."""
    (here / "prompts_of_mine.py").write_text("HELLO = 'Hello'\n", encoding="utf-8")
    text = "from prompts_of_mine import HELLO\nfrom mergepoint import Step\ntree = Step(HELLO)\n"
    (here / "split.py").write_text(text, encoding="utf-8")
    assert root_path(tree_of("split.py")) == "step_01"
    assert str(here) in sys.path


def test_what_a_file_prints_does_not_reach_stdout(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing but results goes to stdout, whatever a tree file prints when it is imported."""
    text = "print('loud')\nfrom mergepoint import Step\ntree = Step('x')\n"
    (here / "loud.py").write_text(text, encoding="utf-8")
    find_target("loud.py")
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "loud\n")


@pytest.mark.parametrize("text", ["name: x\nname: y\nstages: []\n", "knobs: {\n", "rails: {}\n"])
def test_a_broken_recipe_is_a_recipe_s_error(here: Path, text: str) -> None:
    """The keys tell a recipe from a tree, even where the file isn't YAML."""
    (here / "mine.yaml").write_text(text, encoding="utf-8")
    with pytest.raises(RecipeError, match=r"mine\.yaml:"):
        find_target("mine.yaml")
    (here / "recipe.yaml").write_text("name: [\n", encoding="utf-8")
    with pytest.raises(RecipeError, match=r"recipe\.yaml:"):
        find_target("recipe.yaml")


def test_a_broken_tree_is_a_tree_s_error(here: Path) -> None:
    """A file that isn't YAML and has no key of a recipe is read as a tree."""
    (here / "mine.yaml").write_text("prompt: x\nprompt: stages\n", encoding="utf-8")
    with pytest.raises(TreeError, match=r"mine\.yaml:2: key 'prompt' is on line 1"):
        find_target("mine.yaml")
