"""Changes: settings, nodes left out, blocks side by side or one by one."""

from __future__ import annotations

import pytest

from mergepoint.apps.cli.inputs import change_tree
from mergepoint.apps.cli.output import CommandError
from mergepoint.core.errors import TreeError
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Node, find, walk
from mergepoint.tree.prompts import PromptContext, Template, reads


def critics(*, parallel: bool = False) -> Block:
    """Return a block of two steps that keep nothing."""
    steps = [Step("Look.", name=name, merge="none", capture_key=name) for name in ("a", "b")]
    return Block(steps, name="threads", parallel=parallel)


def tree_of(*nodes: Node) -> Block:
    """Return a tree named t."""
    return Block(nodes, name="t", inputs=("topic",))


def setting(text: str) -> Node:
    """Return the tree after one --set."""
    draft, other = Step("Draft.", name="draft"), Step("x", name="a=b")
    tree = tree_of(draft, other, critics())
    return change_tree(tree, settings=[text], gone=[], parallel=None)[0]


@pytest.mark.parametrize(
    ("text", "path", "field", "value"),
    [
        ("draft:temperature=0.2", "t/draft", "temperature", 0.2),
        ("t/draft:merge=none", "t/draft", "merge", "none"),
        ('draft:params={"top_p": 1}', "t/draft", "params", {"top_p": 1}),
        ("draft:temperature=null", "t/draft", "temperature", None),
        ("draft:prompt=Say a:b=c", "t/draft", "prompt", "Say a:b=c"),
        ("draft:model=openai:x", "t/draft", "model", "openai:x"),
        ("draft:capture_key=NaN", "t/draft", "capture_key", "NaN"),
        ("draft:prompt=On {{ topic }}", "t/draft", "prompt", Template("On {{ topic }}")),
        ("a=b:prompt=y", "t/a=b", "prompt", "y"),
        ("threads:parallel=true", "t/threads", "parallel", True),
        ("**/threads/*:merge=last_response", "t/threads/b", "merge", "last_response"),
    ],
)
def test_a_setting_changes_a_field(text: str, path: str, field: str, value: object) -> None:
    """The path ends at the first field name behind a colon; JSON is read, all else is text."""
    assert getattr(find(setting(text), path), field) == value


@pytest.mark.parametrize("text", ["draft", "draft:temperature", "temperature=1", ":x=1", "a:=1"])
def test_a_setting_of_another_form_is_refused(text: str) -> None:
    """The error shows the form."""
    with pytest.raises(CommandError, match="Use path:field=value"):
        setting(text)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("drafd:temperature=1", "no path matches 'drafd'"),
        ("draft:temperatur=1", "did you mean 'temperature'"),
        ("draft:merge=nothing", "allowed are"),
        ("draft:prompt=", "the prompt is blank; to send it, set allow_empty_prompt=True"),
    ],
)
def test_a_setting_that_fits_nothing_is_refused(text: str, problem: str) -> None:
    """Unknown paths, fields and values are refused as the tree refuses them."""
    with pytest.raises(TreeError, match=problem):
        setting(text)


def test_nodes_are_left_out_and_the_others_keep_their_paths() -> None:
    """--without takes exact paths and globs; --set sees what is left."""
    tree = tree_of(Step("x"), Step("y"), critics())
    less, _ = change_tree(
        tree, settings=["step_02:merge=none"], gone=["step_01", "**/b"], parallel=None
    )
    assert [path for path, _ in walk(less)] == ["t", "t/step_02", "t/threads", "t/threads/a"]
    assert find(less, "t/step_02").merge == "none"


def test_sequential_takes_every_block_out_of_parallel() -> None:
    """No block is side by side afterwards."""
    less, _ = change_tree(tree_of(critics(parallel=True)), settings=[], gone=[], parallel=False)
    assert not any(node.parallel for _, node in walk(less) if isinstance(node, Block))


def test_parallel_takes_blocks_whose_children_keep_nothing() -> None:
    """Only blocks whose children cannot tell the difference run side by side; it is said."""
    tree = tree_of(Step("Draft.", name="draft"), critics(), Step("End.", name="end"))
    wide, said = change_tree(tree, settings=[], gone=[], parallel=True)
    found = {path for path, node in walk(wide) if isinstance(node, Block) and node.parallel}
    assert found == {"t/threads"}
    assert said == "--parallel: 1 block now parallel"


def chained(prompt: object) -> Block:
    """Return a block whose second child may read what the first captures."""
    first = Step("Look.", name="a", merge="none", capture_key="c")
    return Block([first, Step(prompt, name="b", merge="none")], name="chain")  # type: ignore[arg-type]


def declared(context: PromptContext) -> str:
    """Read a key."""
    return str(context.read("c"))


@pytest.mark.parametrize(
    ("prompt", "reason"),
    [
        (Template("On {{ c }}"), "written only later or in parallel"),
        (reads("c")(declared), "written only later or in parallel"),
        (lambda context: "x", "without declared inputs"),
    ],
)
def test_parallel_leaves_blocks_whose_children_read_each_other(prompt: object, reason: str) -> None:
    """A block with a reader inside stays as it is, with the reason; alone it is an error."""
    wide, said = change_tree(
        tree_of(critics(), chained(prompt)), settings=[], gone=[], parallel=True
    )
    chain = find(wide, "t/chain")
    assert isinstance(chain, Block)
    assert not chain.parallel
    assert "stays sequential: t/chain" in said
    assert reason in said
    with pytest.raises(CommandError, match="no block can run in parallel"):
        change_tree(tree_of(chained(prompt)), settings=[], gone=[], parallel=True)


def test_parallel_is_refused_where_every_child_keeps_something() -> None:
    """A conversation is not torn apart: its steps see each other."""
    with pytest.raises(CommandError, match="merge='none'"):
        change_tree(tree_of(Step("x"), Step("y")), settings=[], gone=[], parallel=True)
