"""SVG drawings of trees: well-formed, complete, of bounded size, and nothing on top of another."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree as ET

import pytest
from tests.report.trees import ODD_NAMES, chat, kinds, nest, odd, pipeline, stage, wide

from mergepoint.core.text import cells, shown
from mergepoint.report.svg import to_svg
from mergepoint.testing.random_trees import seeded_case
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input, Node, children, walk

NS = "{http://www.w3.org/2000/svg}"

TREES = [
    pytest.param(chat(), id="chat"),
    pytest.param(stage(), id="stage"),
    pytest.param(pipeline(), id="pipeline"),
    pytest.param(nest(6), id="nest"),
    pytest.param(odd(), id="odd names"),
    pytest.param(wide(17), id="rows"),
    pytest.param(Step("x", merge="none", capture_key="k"), id="a lone step"),
    pytest.param(Block([Block([]), Block([], parallel=True, merge="none")]), id="empty blocks"),
    pytest.param(
        Block([Step("x", merge="last_response"), Step("x", merge="none")], parallel=True),
        id="modes of small steps",
    ),
    pytest.param(
        Block(
            [Block([Step("x")], name="a block of a name " + "a" * 14)], name="b" * 32, parallel=True
        ),
        id="long names of blocks",
    ),
    pytest.param(
        Block([stage(), nest(2), Step("x", name="numbers"), wide(9)], parallel=True),
        id="blocks in rows",
    ),
]


@dataclass(frozen=True)
class Area:
    """A drawn node in the picture's own coordinates."""

    path: str
    left: float
    top: float
    right: float
    bottom: float

    def holds(self, other: Area) -> bool:
        """Return whether another area lies inside."""
        return (
            self.left <= other.left
            and self.top <= other.top
            and self.right >= other.right
            and self.bottom >= other.bottom
        )

    @property
    def entry(self) -> Area:
        """Return the point at which a node is entered."""
        middle = (self.left + self.right) / 2
        return Area(self.path, middle, self.top, middle, self.top)

    @property
    def exit(self) -> Area:
        """Return the mark at the middle of the lower edge, at which a node is left."""
        middle = (self.left + self.right) / 2
        return Area(self.path, middle, self.bottom, middle, self.bottom + 11)

    def touches(self, other: Area) -> bool:
        """Return whether two areas, lines or points have a point in common."""
        return (
            self.left <= other.right
            and other.left <= self.right
            and self.top <= other.bottom
            and other.top <= self.bottom
        )

    def meets(self, other: Area, *, by: float = 0) -> bool:
        """Return whether two areas have more than an edge in common."""
        return (
            self.left + by < other.right
            and other.left < self.right - by
            and self.top + by < other.bottom
            and other.top < self.bottom - by
        )


def drawn(tree: Node) -> ET.Element:
    """Return the picture of a tree as XML, each of its blocks drawn."""
    return ET.fromstring(to_svg(tree, fold=False))  # noqa: S314  (our own output)


def words(picture: ET.Element, role: str) -> list[str]:
    """Return the texts of a role, in order."""
    return [str(found.text) for found in picture.iter(f"{NS}text") if found.get("class") == role]


def areas(element: ET.Element, x: float = 0, y: float = 0) -> Iterator[tuple[Area, list[Area]]]:
    """Yield each node's area with the ways that are drawn in it, as areas without width."""
    x, y = _moved(element, x, y)
    if "data-path" in element.attrib:
        box = next(child for child in element if child.tag == f"{NS}rect")
        width, height = float(box.attrib["width"]), float(box.attrib["height"])
        area = Area(element.attrib["data-path"], x, y, x + width, y + height)
        yield area, [way for line in element.findall(f"{NS}polyline") for way in _ways(line, x, y)]
    for child in element:
        yield from areas(child, x, y)


def _moved(element: ET.Element, x: float, y: float) -> tuple[float, float]:
    found = re.match(r"translate\((\S+) (\S+)\)", element.get("transform", ""))
    return (x + float(found[1]), y + float(found[2])) if found else (x, y)


def _ways(line: ET.Element, x: float, y: float) -> Iterator[Area]:
    points = [tuple(map(float, point.split(","))) for point in line.attrib["points"].split()]
    for (x1, y1), (x2, y2) in pairwise(points):
        yield Area("", x + min(x1, x2), y + min(y1, y2), x + max(x1, x2), y + max(y1, y2))


def spans(element: ET.Element) -> Iterator[tuple[str, Area]]:
    """Yield the texts of a node's own with the room that they take."""
    for found in element.findall(f"{NS}text"):
        # An em of the fonts that are named is 0.602 wide, the widest of them.
        width = cells(str(found.text)) * float(found.attrib["font-size"]) * 0.602
        left = float(found.attrib["x"]) - (width / 2 if found.get("text-anchor") else 0)
        bottom = float(found.attrib["y"])
        yield str(found.text), Area("", left, bottom - 8, left + width, bottom)


def check_places(tree: Node) -> None:
    """Hold a drawing to: children in their blocks, siblings apart, no line through a node."""
    picture = drawn(tree)
    found = dict(_by_path(picture))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    canvas = Area("", 0, 0, width, height)
    for path, (area, _) in found.items():
        parent = found.get(path.rpartition("/")[0])
        assert (parent[0] if parent else canvas).holds(area), path
        siblings = [
            other
            for at, (other, _) in found.items()
            if at != path and at.rpartition("/")[0] == path.rpartition("/")[0]
        ]
        assert not any(area.meets(other) for other in siblings), path
        ways = parent[1] if parent else []
        assert not any(area.meets(way, by=0.5) for way in ways), f"a line runs through {path}"


def joined(ways: list[Area], start: Area) -> list[Area]:
    """Return the lines that hang together with those that begin or end in an area."""
    found = [way for way in ways if way.touches(start)]
    for one in found:
        found += [way for way in ways if way not in found and way.touches(one)]
    return found


def check_ways(tree: Node) -> None:
    """Hold the lines of a drawing to the order in which nodes run."""
    found = dict(_by_path(drawn(tree)))
    for path, node in walk(tree):
        if not isinstance(node, Block):
            continue
        area, ways = found[path]
        middle = (area.left + area.right) / 2
        start = Area("", middle, area.top + 34, middle, area.top + 34)
        merge = Area("", middle, area.bottom - 11, middle, area.bottom - 11)
        inside = [found[at.replace("\ufffe", "\\ufffe")][0] for at, _ in children(node, path)]
        if node.parallel is True:
            hops = [hop for one in inside for hop in ((start, one.entry), (one.exit, merge))]
        else:
            ends = [start, *(end for one in inside for end in (one.entry, one.exit)), merge]
            hops = list(zip(ends[::2], ends[1::2], strict=True))
        for source, target in hops:
            assert any(way.touches(target) for way in joined(ways, source)), path
        if len(inside) > 1:
            assert not any(way.touches(merge) for way in joined(ways, start)), path


def _by_path(picture: ET.Element) -> Iterator[tuple[str, tuple[Area, list[Area]]]]:
    for area, ways in areas(picture):
        yield area.path, (area, ways)


@pytest.mark.parametrize("tree", TREES)
def test_every_node_is_there_once_with_what_it_is(tree: Node) -> None:
    """Names, merge points of blocks, modes and capture keys are those of the tree."""
    picture = drawn(tree)
    nodes = list(walk(tree))
    blocks = [node for _, node in nodes if isinstance(node, Block)]
    names = [shown(path.rpartition("/")[2]) for path, _ in nodes]
    assert words(picture, "name") == names
    points = [found for found in picture.iter(f"{NS}g") if found.get("class") == "merge-point"]
    assert len(points) == len(blocks)
    told = [
        node.merge for _, node in nodes if isinstance(node, Block) or node.merge != "all_messages"
    ]
    assert sorted(words(picture, "mode")) == sorted(told)
    keys = [shown(node.capture_key) for _, node in nodes if node.capture_key is not None]
    assert sorted(words(picture, "capture")) == sorted(keys)


@pytest.mark.parametrize("tree", TREES)
def test_words_have_room_in_their_nodes(tree: Node) -> None:
    """Names, keys and modes stand beside each other, between the sides of their node."""
    for node in drawn(tree).iter(f"{NS}g"):
        if "data-path" not in node.attrib:
            continue
        box = next(child for child in node if child.tag == f"{NS}rect")
        found = list(spans(node))
        for number, (text, room) in enumerate(found):
            assert room.left >= 0, text
            assert room.right <= float(box.attrib["width"]), text
            assert not any(room.meets(other) for _, other in found[:number]), text


@pytest.mark.parametrize("tree", TREES)
def test_nothing_lies_on_top_of_another(tree: Node) -> None:
    """Nodes stand inside their blocks and beside each other, and lines go around them."""
    check_places(tree)


@pytest.mark.parametrize("tree", TREES)
def test_lines_lead_from_the_entry_through_the_nodes_to_the_merge_point(tree: Node) -> None:
    """In order from node to node, side by side from the entry to each and from each to the exit."""
    check_ways(tree)


def test_nothing_lies_on_top_of_another_in_random_trees() -> None:
    """A hundred random trees are laid out without overlap, their lines as they run."""
    for seed in range(100):
        tree = seeded_case(seed, kinds=("step", "block")).tree
        check_places(tree)
        check_ways(tree)


@pytest.mark.parametrize("tree", TREES)
def test_a_drawing_stands_alone_and_can_be_read_aloud(tree: Node) -> None:
    """It has a role, a title and a description that tells every node; nothing is fetched or run."""
    text = to_svg(tree, fold=False)
    picture = drawn(tree)
    assert picture.get("role") == "img"
    title, desc = picture.find(f"{NS}title"), picture.find(f"{NS}desc")
    assert title is not None
    assert desc is not None
    assert picture.get("aria-labelledby") == f"{title.get('id')} {desc.get('id')}"
    for path, node in list(walk(tree))[:40]:
        assert f"{node.kind.capitalize()} {shown(path)}: " in str(desc.text)
    for word in ("<script", "<style", "href", "url(", "<image", "@import"):
        assert word not in text
    assert text.count("http") == 1


def test_two_drawings_can_stand_in_one_page() -> None:
    """Ids differ between drawings, and one drawing is the same every time."""
    ids = [set(re.findall(r' id="([^"]+)"', to_svg(tree))) for tree in (chat(), stage())]
    assert not ids[0] & ids[1]
    assert to_svg(stage()) == to_svg(stage())


def test_odd_names_are_escaped() -> None:
    """Names come back from the XML as they are, but for characters that XML cannot hold."""
    picture = drawn(odd())
    paths = {
        found.attrib["data-path"]
        for found in picture.iter(f"{NS}g")
        if found.attrib.get("data-path")
    }
    assert {f"o<d>&d/{name}" for name in ODD_NAMES} - paths == {"o<d>&d/\ufffe"}
    names = words(picture, "name")
    assert names == ["o<d>&d", *map(shown, ODD_NAMES)]
    assert words(drawn(odd()), "capture") == ['k\\x01"<&>']


def test_what_is_read_and_given_is_shown() -> None:
    """A step's keys stand on its card, the tree's inputs above it."""
    picture = drawn(Block([stage()], inputs=[Input("topic"), ("tone", "calm")]))
    assert words(picture, "reads") == ["reads view_1, view_2, view_3,", "view_4, view_5"]
    assert words(picture, "inputs") == ["inputs: topic, tone (optional)"]


def test_a_node_that_adds_no_message_is_left_by_a_dashed_line() -> None:
    """Only the ways out of merge mode none are dashed."""
    tree = Block([Step("x", merge="none"), Step("x", merge="last_response")])
    [block] = [
        found for found in drawn(tree).iter(f"{NS}g") if found.get("data-path") == "pipeline"
    ]
    dashed = [line.get("stroke-dasharray") is not None for line in block.findall(f"{NS}polyline")]
    assert dashed == [False, True, False]


@pytest.mark.parametrize(
    ("tree", "most"),
    [
        pytest.param(nest(60), 250_000, id="60 deep"),
        pytest.param(wide(3_000), 25_000, id="3,000 side by side"),
        pytest.param(wide(3_000, parallel=False), 25_000, id="3,000 in a row"),
        pytest.param(
            Block([wide(20, name=None)] * 150, parallel=True), 500_000, id="3,000 in 150 blocks"
        ),
        pytest.param(
            Block([Block([Step("x", name="n" * 100_000)], name="m" * 100_000)]),
            10_000,
            id="names without end",
        ),
    ],
)
def test_large_trees_give_drawings_of_bounded_size(tree: Node, most: int) -> None:
    """Depth, width and long names end in a smaller drawing, never in a failure or a huge file."""
    text = to_svg(tree)
    assert len(text) <= most
    ET.fromstring(text)  # noqa: S314  (our own output)


def test_what_is_left_out_is_said() -> None:
    """A wide block names the number of steps that are not drawn, and the picture says the same."""
    assert words(drawn(wide(3_000)), "omitted") == ["… 2,980 more"]
    assert "21 of 3,001 nodes are drawn" in to_svg(wide(3_000))


def test_a_part_is_drawn_alone() -> None:
    """The picture of a part holds it under its full path."""
    picture = ET.fromstring(to_svg(pipeline(), path="stage_3/draft"))  # noqa: S314
    paths = [
        found.get("data-path") for found in picture.iter(f"{NS}g") if "data-path" in found.attrib
    ]
    assert paths == ["pipeline/stage_3/draft"]


def folded_picture(tree: Node) -> ET.Element:
    """Return the picture of a tree as XML, equal blocks folded."""
    return ET.fromstring(to_svg(tree))  # noqa: S314  (our own output)


def test_equal_stages_are_drawn_once_with_their_number() -> None:
    """Six stages of the same structure are one block with `x6`, and the description lists them."""
    picture = folded_picture(pipeline())
    assert words(picture, "times") == ["x6"]
    assert words(picture, "name")[:2] == ["pipeline", "stage_1 … stage_6"]
    described = str(picture.findtext(f"{NS}desc"))
    assert "The same structure: stage_2, stage_3, stage_4, stage_5, stage_6." in described
    assert "nodes are drawn" not in to_svg(pipeline())
    paths = [found.get("data-path") for found in picture.iter(f"{NS}g")]
    assert "pipeline/stage_1/draft" in paths
    assert "pipeline/stage_2/draft" not in paths


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(pipeline(), id="in order"),
        pytest.param(Block([stage(n) for n in range(9)], parallel=True), id="in parallel"),
        pytest.param(Block([chat(), *(stage(n) for n in range(3)), nest(2)]), id="in the middle"),
    ],
)
def test_folded_blocks_keep_their_place(tree: Node) -> None:
    """Nothing lies on top of a folded block, and its words have room."""
    found = dict(_by_path(folded_picture(tree)))
    for path, (area, _) in found.items():
        parent = found.get(path.rpartition("/")[0])
        assert parent is None or parent[0].holds(area), path
    for node in folded_picture(tree).iter(f"{NS}g"):
        if "data-path" in node.attrib:
            rooms = list(spans(node))
            for number, (text, room) in enumerate(rooms):
                assert not any(room.meets(other) for _, other in rooms[:number]), text


def test_up_to_six_parallel_nodes_stand_in_one_row() -> None:
    """Six wide nodes share a row, seven do not."""
    for count in (6, 7):
        nodes = [Step("x", name="n" * 30 + str(number)) for number in range(count)]
        picture = drawn(Block(nodes, name="wide", parallel=True))
        tops = {area.top for area, _ in areas(picture) if "/" in area.path}
        assert (len(tops) == 1) == (count == 6)


def test_a_dark_drawing_differs_in_its_colors_alone() -> None:
    """Every color of a dark drawing is exchanged, and nothing else is."""
    light, dark = to_svg(kinds()), to_svg(kinds(), theme="dark")
    color = re.compile(r"#[0-9a-f]{6}")
    assert color.sub("", light) == color.sub("", dark)
    exchanged = dict(zip(color.findall(light), color.findall(dark), strict=True))
    assert {one for one, other in exchanged.items() if one == other} <= {"#d9a441"}


def test_a_drawing_ends_at_a_depth() -> None:
    """With a depth of 1 the children of the root are drawn closed."""
    assert words(ET.fromstring(to_svg(pipeline(), depth=1)), "omitted") == ["9 nodes inside"]  # noqa: S314


@pytest.mark.parametrize(
    ("options", "said"),
    [({"depth": 0}, "at least 1, not 0"), ({"theme": "pink"}, "light, dark, not 'pink'")],
)
def test_options_of_drawings_are_checked(options: dict[str, Any], said: str) -> None:
    """A depth below 1 and an unknown theme are errors."""
    with pytest.raises(ValueError, match=said):
        to_svg(chat(), **options)
