"""Trees to be killed in. What a node is answered depends on all that it saw."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mergepoint import Block, Call, CallContext, Gate, Loop, Node, PromptContext, Step, Template

Said = Sequence[dict[str, str]]
Ask = Callable[[Said], str]
"""Gives the answer to messages with `role` and `content`."""

ROUNDS = 3


@dataclass(frozen=True)
class Weigh:
    """A function that asks somebody else about the conversation, and costs as a model does."""

    ask: Ask

    def __call__(self, ctx: CallContext) -> str:
        """Return what was answered."""
        seen = " / ".join(str(message.text) for message in ctx.messages)
        return self.ask([{"role": "user", "content": f"Weigh at {ctx.path}: {seen}"}])


def verdict(text: str) -> bool:
    """Return whether a judge was content."""
    return text.endswith(" good")


def content(said: str) -> bool:
    """Return whether a judge who sees this is content: there were enough rounds."""
    return said.count("Revise.") >= ROUNDS


def cut_twice(ctx: PromptContext) -> bool:
    """Return whether two cuts are in the conversation."""
    return sum(str(message.text) == "Cut." for message in ctx.messages) == 2


def shorter(ctx: PromptContext) -> str:
    """Return a prompt that is another one in each round."""
    return f"Shorter, at {ctx.path}."


def turning(ask: Ask) -> Node:
    """Return a tree that is nested, parallel and looping, with functions in it."""
    return Block([_opening(ask), _polish(), _ending(), Step("Close.", name="close")], name="work")


def _opening(ask: Ask) -> Node:
    twice = Block(
        [Step("Voice b.", name="one"), Step("Voice b again.", name="two")],
        name="b",
        merge="none",
        capture_key="b",
    )
    voices = Block(
        [
            Step("Voice a.", name="a", merge="none", capture_key="a"),
            twice,
            Call(Weigh(ask), name="weigh", capture_key="weight"),
        ],
        name="voices",
        merge="none",
        parallel=True,
    )
    join = Step(Template("Join: {{ a }} {{ b }} {{ weight }}"), name="join", merge="last_response")
    return Block(
        [Step("Draft.", name="draft"), voices, join], name="opening", merge="last_response"
    )


def _polish() -> Node:
    contra = Block(
        [Step("Against?", name="one"), Step("Really?", name="two")],
        name="contra",
        merge="none",
        capture_key="contra",
    )
    pro = Step("For?", name="pro", merge="none", capture_key="pro")
    judge = Template("Judge: {{ pro }} {{ contra }}")
    return Loop(
        [
            Step("Revise.", name="revise"),
            Block([pro, contra], name="debate", merge="none", parallel=True),
            Step(judge, name="judge", merge="none", capture_key="judged"),
            Call(verdict, args={"text": Template("{{ judged }}")}, capture_key="good"),
        ],
        name="polish",
        until="good",
        max_iterations=ROUNDS + 2,
        merge="last_response",
    )


def _ending() -> Node:
    cuts = Loop([Step("Cut.", name="cut")], name="cuts", until=cut_twice, max_iterations=3)
    return Block([cuts, Step("Title.", name="title")], name="ending", parallel=True)


def gated(ask: Ask) -> Node:
    """Give a tree with five gates: two side by side, one of them in a block, and one in a loop."""
    left = _gate(Step("Left.", name="text", merge="last_response", capture_key="left"), "left")
    right = _gate(Step("Right.", name="text", merge="last_response", capture_key="right"), "right")
    deep = Block([Step("Go right.", name="first", merge="none"), right], name="deep")
    sides: list[Node] = [left, deep, Call(Weigh(ask), name="weigh", capture_key="weight")]
    short = _gate(Step(shorter, name="text", merge="last_response"), "short")
    end = Block([Step("End.", name="end"), Step("Sign.", name="sign")], name="last", parallel=True)
    join = Template(
        "Join {{ plan }}, {{ left }}, {{ right }}, {{ weight }}.",
        defaults={key: f"no {key}" for key in ("plan", "left", "right")},
    )
    return Block(
        [
            Step("Begin.", name="begin"),
            _gate(Step("Plan.", name="text", capture_key="plan"), "plan"),
            Block(sides, name="both", parallel=True),
            Step(join, name="join"),
            Loop([short], name="again", until="short.review", max_iterations=3),
            _gate(end, "end"),
            Step("Close.", name="close"),
        ],
        name="work",
    )


def _gate(node: Node, name: str) -> Gate:
    return Gate(node, name=name, capture_key=f"{name}.review", question=f"Is {name} good?")
