"""Mermaid flowcharts of trees."""

from __future__ import annotations

import re

import pytest
from tests.report.trees import ODD_NAMES, chat, nest, odd, pipeline, stage, wide

from mergepoint.report.svg import to_mermaid
from mergepoint.tree.leaves import Step
from mergepoint.tree.nodes import Block, Input, Node
from mergepoint.tree.prompts import Template

CHAT = """\
flowchart TB
  subgraph n0["chat"]
    direction TB
    n1["ask"]
    n2["answer"]
    m0{{"merge: all_messages"}}
  end
  n1 --> n2
  n2 --> m0
  classDef keeps_all_messages fill:#0f766e,stroke:#0f766e,color:#ffffff
  class m0 keeps_all_messages
"""

STAGE = """\
flowchart TB
  subgraph n0["stage"]
    direction TB
    n1["draft"]
    subgraph n2["tot_enclave"]
      subgraph n3["threads"]
        f3(["in parallel"])
        n4["artist_1<br/>merge: none<br/>captures view_1"]
        n5["artist_2<br/>merge: none<br/>captures view_2"]
        n6["artist_3<br/>merge: none<br/>captures view_3"]
        n7["artist_4<br/>merge: none<br/>captures view_4"]
        n8["artist_5<br/>merge: none<br/>captures view_5"]
        m3{{"merge: all_messages"}}
      end
      n9["consensus<br/>reads view_1, view_2, view_3, view_4, view_5<br/>merge: last_response\
<br/>captures consensus"]
      m2{{"merge: all_messages"}}
    end
    m0{{"merge: last_response"}}
  end
  f3 --> n4
  n4 -.-> m3
  f3 --> n5
  n5 -.-> m3
  f3 --> n6
  n6 -.-> m3
  f3 --> n7
  n7 -.-> m3
  f3 --> n8
  n8 -.-> m3
  m3 -.-> n9
  n9 --> m2
  n1 --> f3
  m2 --> m0
  classDef keeps_all_messages fill:#0f766e,stroke:#0f766e,color:#ffffff
  class m3,m2 keeps_all_messages
  classDef keeps_last_response fill:#4338ca,stroke:#4338ca,color:#ffffff
  class m0 keeps_last_response
"""

GIVEN = """\
flowchart TB
  inputs[/"inputs<br/>topic, tone"/]
  subgraph n0["pipeline"]
    direction TB
    subgraph n1["nothing"]
      m1{{"merge: none<br/>captures k"}}
    end
    m0{{"merge: all_messages"}}
  end
  inputs --> m1
  m1 -.-> m0
  classDef keeps_none fill:#be3455,stroke:#be3455,color:#ffffff
  class m1 keeps_none
  classDef keeps_all_messages fill:#0f766e,stroke:#0f766e,color:#ffffff
  class m0 keeps_all_messages
"""

# Every line that a drawing may hold. A label holds words, entity codes and line breaks, so
# nothing in it can end it or mean anything else.
LABEL = r'"(?:[\w ,:…\-\u00a1-\U0010ffff]|#\d+;|<br/>)*"'
LINES = (
    r"%% [\d,]+ of [\d,]+ nodes are drawn; draw a part by its path to see the rest\.",
    r"flowchart TB",
    rf" *subgraph n\d+\[{LABEL}\]",
    r"    direction TB",
    r" *end",
    rf" *n\d+\[{LABEL}\]",
    rf" *n\d+\(\[{LABEL}\]\)",
    rf" *f\d+\(\[{LABEL}\]\)",
    rf" *m\d+\{{\{{{LABEL}\}}\}}",
    r"  [nfm]\d+ (-->|-\.->) [nfm]\d+",
    r"  classDef keeps_\w+ fill:#\w{6},stroke:#\w{6},color:#\w{6}",
    r"  class [m\d,]+ keeps_\w+",
)


def marked(block: int, number: int) -> Step:
    """Return a step whose labels are written in codes, which are long."""
    keys = " ".join(f"{{{{ {'#' * 20}{key} }}}}" for key in range(6))
    return Step(
        Template(keys), name=f"{'#' * 28}{number}", capture_key=f"{'#' * 20}{block}{number}"
    )


@pytest.mark.parametrize(
    ("tree", "expected"),
    [
        pytest.param(chat(), CHAT, id="chat"),
        pytest.param(stage(), STAGE, id="stage"),
        pytest.param(
            Block(
                [Block([], name="nothing", merge="none", capture_key="k")],
                inputs=[Input("topic"), ("tone", "calm")],
            ),
            GIVEN,
            id="inputs and an empty block",
        ),
        pytest.param(
            Step("x", merge="none", capture_key="k"),
            'flowchart TB\n  n0["step_01<br/>merge: none<br/>captures k"]\n',
            id="a lone step",
        ),
    ],
)
def test_small_trees_have_these_drawings(tree: Node, expected: str) -> None:
    """The text of small drawings is what it is, to the letter."""
    assert to_mermaid(tree) == expected


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(pipeline(), id="same names in many places"),
        pytest.param(odd(), id="odd names"),
        pytest.param(nest(60), id="60 deep"),
        pytest.param(wide(3_000), id="3,000 in parallel"),
        pytest.param(wide(3_000, parallel=False), id="3,000 in a row"),
        pytest.param(Block([wide(20, name=None)] * 20), id="400 in 20 blocks"),
    ],
)
def test_every_line_is_one_that_mermaid_reads(tree: Node) -> None:
    """No name or key reaches the parser as anything but a label, and ids are never repeated."""
    lines = to_mermaid(tree).splitlines()
    for line in lines:
        assert any(re.fullmatch(form, line) for form in LINES), line
    shapes = [found for line in lines if (found := re.match(r" *(?:subgraph )?([nfm]\d+)\W", line))]
    defined = [found[1] for found in shapes if " -" not in found.string]
    assert len(defined) == len(set(defined))
    used = {end for line in lines for end in re.findall(r"[nfm]\d+(?= -)|(?<=> )[nfm]\d+", line)}
    assert used <= set(defined)


def test_every_block_has_its_merge_point() -> None:
    """Six stages of three blocks and the root make nineteen merge points, with arrows into each."""
    text = to_mermaid(pipeline(), fold=False)
    points = re.findall(r"(m\d+)\{\{", text)
    assert len(points) == 19
    assert all(re.search(rf"-> {point}$", text, re.MULTILINE) for point in points)


def test_equal_stages_are_drawn_once_with_their_number() -> None:
    """Six stages of the same structure are one subgraph, whose title tells their number."""
    text = to_mermaid(pipeline())
    assert "stage_1 #8230; stage_6 x6" in text or "stage_1 … stage_6 x6" in text
    assert len(re.findall(r"(m\d+)\{\{", text)) == 4
    assert "nodes inside" in to_mermaid(pipeline(), depth=1)


def test_odd_names_are_in_their_labels() -> None:
    """What Mermaid will show, after its entity codes, is the name."""
    shown = re.sub(r"#(\d+);", lambda code: chr(int(code[1])), to_mermaid(odd()))
    for name in ODD_NAMES:
        as_shown = {
            "turn\u202eback": "turn\\u202eback",
            "\ufffe": "\\ufffe",
            "C;\\no": "C;\\\u2060no",
        }
        assert f'["{as_shown.get(name, name)}"]' in shown


@pytest.mark.parametrize(
    "tree",
    [
        pytest.param(nest(60), id="60 deep"),
        pytest.param(wide(3_000), id="3,000 wide"),
        pytest.param(
            Block([Block([wide(20, name=None)] * 20, parallel=True)] * 20), id="8,000 steps"
        ),
        pytest.param(
            Block(
                [
                    Step(Template("{{ " + "#" * 99 + " }}"), name="#" * 500 + str(n))
                    for n in range(99)
                ]
            ),
            id="long names",
        ),
        pytest.param(
            Block([Block([marked(n, k) for k in range(18)]) for n in range(8)]), id="many marks"
        ),
        pytest.param(
            Block([Block([nest(30)]), Block([nest(30)])], parallel=True), id="two deep ones"
        ),
    ],
)
def test_drawings_stay_below_the_limits_of_mermaid(tree: Node) -> None:
    """Text and arrows are fewer than what Mermaid draws by default; what is cut is said first."""
    text = to_mermaid(tree, fold=False)
    assert len(text) <= 50_000
    assert len(re.findall(r"-\.?->", text)) <= 500
    assert text.startswith("%% ")


def test_a_part_is_drawn_alone() -> None:
    """The drawing of a part holds that part, with the numbers that it has in the tree."""
    text = to_mermaid(pipeline(), path="stage_2/tot_enclave/threads")
    assert 'subgraph n14["threads"]' in text
    assert "stage" not in text
