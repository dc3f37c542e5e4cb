"""What is drawn of a tree: all of a small one, the ends of a wide one, the top of a large one."""

from __future__ import annotations

import pytest
from tests.report.trees import nest, pipeline, stage, wide

from mergepoint.report.drawing import DrawingLimits, Omitted, Sketch, abridged, limits_of, sketch
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, walk
from mergepoint.tree.prompts import Template


def test_a_small_tree_is_drawn_whole() -> None:
    """Every node of a tree is there, in tree order, with its place in that order."""
    tree = pipeline()
    drawn = list(sketch(tree, limits=DrawingLimits(fold=False)).walk())
    assert [(part.path, part.number) for part in drawn] == [
        (path, number) for number, (path, _) in enumerate(walk(tree))
    ]
    assert abridged(sketch(tree)) is None


def test_a_wide_block_shows_its_ends_and_says_how_many_are_left_out() -> None:
    """Of 3,000 children 16 and 4 are drawn; 2,980 more are named in between."""
    drawn = sketch(wide(3_000))
    names = [part.name if isinstance(part, Sketch) else part.text for part in drawn.parts]
    assert names[15:18] == ["step_16", "… 2,980 more", "step_2997"]
    assert len(names) == 21
    assert abridged(drawn) == (
        "21 of 3,001 nodes are drawn; draw a part by its path to see the rest."
    )


def test_one_child_is_never_replaced_by_a_word_about_it() -> None:
    """A block with one child more than is drawn of wide ones is drawn whole."""
    assert len(sketch(wide(21)).parts) == 21
    assert not any(isinstance(part, Omitted) for part in sketch(wide(21)).parts)
    assert any(isinstance(part, Omitted) for part in sketch(wide(22)).parts)


def test_a_large_tree_is_closed_below_the_levels_that_fit() -> None:
    """Levels are drawn as a whole, and a closed block says how many nodes are in it."""
    tree = Block([Block([Block([Step("x")] * 3)] * 3)] * 3)
    drawn = sketch(tree, limits=DrawingLimits(nodes=20, fold=False))
    inner = [part for part in drawn.walk() if part.path.count("/") == 2]
    assert len(inner) == 9
    closed = {part for block in inner for part in block.parts if isinstance(part, Omitted)}
    assert {part.text for part in closed} == {"3 nodes inside"}


def test_a_deep_tree_is_closed_at_a_depth() -> None:
    """Deeper levels than the limit are not drawn, and their number is said."""
    drawn = list(sketch(nest(60), limits=limits_of(depth=54, fold=False)).walk())
    assert max(part.path.count("/") for part in drawn) == 54
    closed = [part for one in drawn for part in one.parts if isinstance(part, Omitted)]
    assert [part.text for part in closed] == ["18 nodes inside"]


@pytest.mark.parametrize("path", ["pipeline/stage_2/tot_enclave", "stage_2/tot_enclave"])
def test_a_part_is_drawn_by_its_path(path: str) -> None:
    """An exact path and a unique suffix name the part, which keeps its full path."""
    drawn = sketch(pipeline(), path=path)
    assert drawn.path == "pipeline/stage_2/tot_enclave"
    assert drawn.number == 13


@pytest.mark.parametrize(
    ("path", "said"),
    [("tot_enclave", "matches 6 paths"), ("**/stage_?", "choose one"), ("no", "no path matches")],
)
def test_a_path_that_names_no_single_part_is_refused(path: str, said: str) -> None:
    """Several parts or none are an error that lists paths."""
    with pytest.raises(LookupError, match=said):
        sketch(pipeline(), path=path)


def test_a_step_says_what_it_reads() -> None:
    """Declared keys are listed and cut; a function that declares nothing is said to."""
    keys = Template(" ".join(f"{{{{ k{number} }}}}" for number in range(9)))
    tree = Block([Step(keys), Step(lambda ctx: "x"), Step("x")])
    reads = [part.reads for part in sketch(tree).walk()]
    assert reads == [None, "reads k0, k1, k2, k3, k4, k5, 3 more", "reads undeclared", None]


def test_what_adds_no_message_is_known() -> None:
    """A merge mode none adds nothing, and neither does a block whose children add nothing."""
    adds = {part.name: part.adds for part in sketch(stage()).walk()}
    assert not adds["artist_1"]
    assert not adds["threads"]
    assert adds["tot_enclave"]


def test_blocks_of_another_structure_are_not_folded() -> None:
    """A child more, another mode, name or reader ends a run; two alike are drawn both."""
    alike = [Block([Step("a", name="draft")], name=f"s{number}") for number in range(3)]
    others = [
        Block([Step("a", name="draft")], name="modes", merge="none"),
        Block([Step("a", name="other")], name="names"),
        Block([Step(Template("{{ x }}"), name="draft")], name="reads"),
        Block([Step("a", name="draft", capture_key="k")], name="captures"),
    ]
    for other in others:
        drawn = sketch(Block([*alike, other]))
        assert [part.folded for part in drawn.parts if isinstance(part, Sketch)] == [
            ("s1", "s2"),
            (),
        ]
    assert len(sketch(Block(alike[:2])).parts) == 2
    assert len(sketch(Block([Step("x")] * 5)).parts) == 5
