"""Trees to draw and to run."""

from __future__ import annotations

from mergepoint.core.merge import MergeMode
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node
from mergepoint.tree.prompts import CallContext, PromptContext, Template

ODD_NAMES = (
    'a "quoted" <b>name<br> & more',
    "1. list",
    "`code` **bold** _em_",
    "end",
    "größe 日本語のステップ",
    "x#35;y",
    "C;\\no",
    "turn\u202eback",
    "subgraph",
    "]})",
    "--> n1",
    "%% c {x}",
    "\ufffe",
    "graph TB; a",
    "👩‍👩‍👧 family",
    "]]>",
)


def chat() -> Block:
    """Return a chat of two steps."""
    return Block([Step("Hello.", name="ask"), Step("And then?", name="answer")], name="chat")


def enclave(scope: str = "") -> Block:
    """Return artists side by side, of whom only a consensus is kept."""
    keys = [f"view_{number}{scope}" for number in range(1, 6)]
    artists = [
        Step("Look.", name=f"artist_{number}", merge="none", capture_key=key)
        for number, key in enumerate(keys, start=1)
    ]
    weigh = Template(" ".join(f"{{{{ {key} }}}}" for key in keys))
    consensus = Step(
        weigh, name="consensus", merge="last_response", capture_key=f"consensus{scope}"
    )
    return Block([Block(artists, name="threads", parallel=True), consensus], name="tot_enclave")


def stage(number: int | None = None) -> Block:
    """Return a draft and an enclave, of which the last response is kept."""
    name = "stage" if number is None else f"stage_{number}"
    scope = "" if number is None else f"_{number}"
    return Block([Step("Write.", name="draft"), enclave(scope)], name=name, merge="last_response")


def pipeline() -> Block:
    """Return six stages with blocks of the same names in all of them."""
    return Block([stage(number) for number in range(1, 7)])


def nest(depth: int) -> Node:
    """Return blocks inside of each other, with a step before and after each."""
    modes: tuple[MergeMode, ...] = ("all_messages", "last_response", "all_messages")
    node: Node = Step("Go.", name="core")
    for level in range(depth, 0, -1):
        around = [Step("Before."), node, Step("After.", name="after", merge="none")]
        node = Block(around, name=f"level_{level}", merge=modes[level % 3])
    return node


def wide(count: int, *, parallel: bool = True, name: str | None = "wide") -> Block:
    """Give one block of many steps."""
    return Block([Step("Go.") for _ in range(count)], name=name, parallel=parallel)


def odd() -> Block:
    """Return names and keys that mean something to parsers."""
    steps = [Step("Go.", name=name) for name in ODD_NAMES]
    return Block(steps, name="o<d>&d", parallel=True, capture_key='k\x01"<&>')


def enough(ctx: PromptContext) -> bool:
    """Say that one round is enough."""
    return True


def count_words(ctx: CallContext) -> int:
    """Count the words of the last message."""
    return len(str(ctx.messages[-1].text).split())


def planned() -> Block:
    """Return a plan that is made again until a person approves of it, and what follows from it."""
    text = Template("Plan {{ topic }}. {{ review }}", defaults={"review": ""})
    draft = Step(text, name="draft", merge="last_response", capture_key="plan")
    gate = Gate(draft, name="approval", question="Is this the plan?", capture_key="review")
    return Block(
        [
            Loop([gate], until="review", max_iterations=3, name="planning"),
            Call(count_words, name="count", capture_key="words"),
            Step(Template("Write {{ plan }} in {{ words }} words."), name="write"),
        ],
        name="work",
        inputs=["topic"],
    )


def kinds() -> Block:
    """Return loops, gates and calls in all places."""
    gates = [Gate(Step("x"), name=name) for name in ("a", "b")]
    return Block(
        [
            Loop([Loop([stage()], until=enough, name="inner")], until=enough, name="outer"),
            Block([*gates, Loop([Step("x")], until=lambda ctx: True)], parallel=True, name="wide"),
            Gate(Gate(Call(len, args={}), question="?" * 90), name="twice", merge="none"),
            Call(count_words, merge="all_messages", capture_key="k"),
        ],
        name="kinds",
    )
