"""The meaning of a tree, seen with an engine that answers from what it sees."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from langchain_core.messages import AIMessage, BaseMessage, HumanMessage
from pydantic import BaseModel

from mergepoint.core.errors import MergeError
from mergepoint.core.merge import MERGE_MODES, NO_RESPONSE, State
from mergepoint.tree.decision import Decision, Question
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Loop, Node, root_path
from mergepoint.tree.semantics import Branch, Messages, captured, drive, evaluate, locate_node

# How long an example takes says nothing about the law that it is an example of.
UNHURRIED = settings(
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)

BASE: Messages = State.of([HumanMessage("before")], {"old": 1})


class Echo:
    """An engine whose answers tell the prompt and how much was seen.

    It keeps each path with the texts that the step saw, and runs the branches of a parallel
    block last to first, so that order of running and declared order differ.
    """

    def __init__(self, broken: str = "") -> None:
        self.seen: dict[str, list[str]] = {}
        self.outputs: dict[str, dict[str, Any]] = {}
        self._broken = broken

    async def ask(self, step: Step, path: str, view: Messages) -> Messages:
        """Return the prompt and an answer to it."""
        if path == self._broken:
            raise KeyError(path)
        self.seen[path] = texts(view)
        self.outputs[path] = dict(view.outputs)
        text = str(step.prompt)
        return State.of([HumanMessage(text), AIMessage(f"{text}!{len(view.messages)}")])

    async def call(self, call: Call, path: str, view: Messages) -> Messages:
        """Return the number of messages seen, as the call's result."""
        return State.of((), {call.capture_key: len(view.messages)} if call.capture_key else {})

    async def decide(self, gate: Gate, question: Question) -> Decision:
        """Answer as the gate says in its question."""
        return Decision.of(gate.question)

    async def holds(self, loop: Loop, path: str, view: Messages, number: int) -> bool:
        """End every loop after its second iteration."""
        return number == 2

    async def fork(self, branches: Sequence[Branch]) -> Sequence[Messages]:
        """Run the branches from the last to the first, give what they kept in order."""
        return [await branch() for branch in reversed(branches)][::-1]


def texts(state: Messages) -> list[str]:
    """Return the texts of a state's messages."""
    return [str(message.text) for message in state.messages]


def run(tree: Node, engine: Echo | None = None, *, base: Messages = BASE) -> Messages:
    """Fold a whole tree onto the base."""
    return drive(evaluate(tree, root_path(tree), base, onto=base, engine=engine or Echo()))


def test_a_loop_means_the_blocks_of_its_iterations() -> None:
    """A loop of two iterations gives what a block of two such blocks gives."""
    nodes = [Step("A."), Step("B.", merge="none")]
    loop = Loop(nodes, until=lambda ctx: True, name="loop", merge="last_response")
    rounds = [Block(nodes, name=f"iteration_0{number}") for number in (1, 2)]
    meant, engine, other = Block(rounds, name="loop", merge="last_response"), Echo(), Echo()
    assert run(loop, engine) == run(meant, other)
    assert engine.seen == other.seen


def test_a_gate_with_a_yes_is_not_there_and_with_a_no_drops_the_node() -> None:
    """An approved node leaves what it would alone; of a rejected one nothing is left."""
    step = Step("A.", capture_key="a")
    assert texts(run(Gate(step, question="approve"))) == texts(run(step))
    assert run(Gate(step, question="reject")) == BASE


def test_a_call_captures_its_result_in_every_merge_mode() -> None:
    """What a call gives is in the outputs, and changes no message."""
    tree = Block([Step("A."), Call(print, capture_key="n")])
    assert dict(run(tree).outputs)["n"] == len(BASE.messages) + 2


def test_a_step_appends_prompt_and_answer() -> None:
    """The parent grows by the pair, at its end."""
    assert texts(run(Step("a"))) == ["before", "a", "a!1"]


def test_each_child_sees_what_earlier_ones_merged() -> None:
    """A block hands down its base and what was merged so far, no more."""
    engine = Echo()
    tree = Block([Step("a", merge="last_response"), Step("b", merge="none"), Step("c")])
    assert texts(run(tree, engine)) == ["before", "a!1", "c", "c!2"]
    assert engine.seen == {
        "pipeline/step_01": ["before"],
        "pipeline/step_02": ["before", "a!1"],
        "pipeline/step_03": ["before", "a!1"],
    }


def test_a_blocks_mode_acts_once_at_its_exit() -> None:
    """Inside a block its children see each other, outside only what it lets out is seen."""
    engine = Echo()
    tree = Block([Block([Step("a"), Step("b")], merge="last_response"), Step("c")])
    assert texts(run(tree, engine)) == ["before", "b!3", "c", "c!2"]
    assert engine.seen["pipeline/block_01/step_02"] == ["before", "a", "a!1"]
    assert engine.seen["pipeline/step_02"] == ["before", "b!3"]


def test_the_roots_mode_acts_too() -> None:
    """What the whole tree lets out is governed by its own mode."""
    assert texts(run(Block([Step("a"), Step("b")], merge="last_response"))) == ["before", "b!3"]
    assert texts(run(Block([Step("a")], merge="none"))) == ["before"]
    assert texts(run(Step("a", merge="last_response"))) == ["before", "a!1"]


def test_an_empty_block_changes_nothing() -> None:
    """A block without children makes nothing."""
    assert run(Block([])) == BASE


def test_captures_survive_every_mode() -> None:
    """What succeeded keeps its outputs, whatever becomes of its messages."""
    tree = Block(
        [Step("a", merge="none", capture_key="one"), Step("b", capture_key="two")],
        merge="none",
        capture_key="both",
    )
    done = run(tree)
    assert texts(done) == ["before"]
    assert done.outputs == {"old": 1, "one": "a!1", "two": "b!1", "both": "b!1"}


def test_captures_are_seen_by_later_children() -> None:
    """An output is there for what comes after, next to those of the base."""
    engine = Echo()
    run(Block([Step("a", capture_key="one"), Step("b")]), engine)
    assert engine.outputs["pipeline/step_02"] == {"old": 1, "one": "a!1"}


def test_a_block_captures_its_last_response_after_inner_merges() -> None:
    """What an inner node did not let out is not captured outside."""
    tree = Block([Step("a"), Step("b", merge="none")], capture_key="last")
    assert run(tree).outputs["last"] == "a!1"


class Verdict(BaseModel):
    """A structured answer."""

    score: int


def test_a_structured_step_captures_plain_json() -> None:
    """With a schema the output is the JSON of the answer; a block around it captures text."""
    made: Messages = State.of([AIMessage('{"score":1}')])
    step = Step("a", schema=Verdict, capture_key="v")
    assert captured(step, made).outputs == {"v": {"score": 1}}
    assert captured(Block([step], capture_key="v"), made).outputs == {"v": '{"score":1}'}


def test_without_a_capture_key_nothing_is_captured() -> None:
    """What was made is given back as it is."""
    made: Messages = State.of([AIMessage("a")])
    assert captured(Step("a"), made) is made


def test_parallel_children_see_the_state_at_entry() -> None:
    """No child of a parallel block sees another, in messages or outputs."""
    engine = Echo()
    tree = Block(
        [Step("a"), Block([Step("b", capture_key="k"), Step("c"), Step("d")], parallel=True)]
    )
    run(tree, engine)
    for name in ("step_01", "step_02", "step_03"):
        assert engine.seen[f"pipeline/block_02/{name}"] == ["before", "a", "a!1"]
        assert engine.outputs[f"pipeline/block_02/{name}"] == {"old": 1}


def test_parallel_children_merge_in_declared_order() -> None:
    """Merges and captures apply in the order of the children, not of the running."""
    tree = Block(
        [
            Step("a", merge="last_response", capture_key="one"),
            Block([Step("b"), Step("c")], merge="last_response"),
            Step("d", merge="none", capture_key="two"),
        ],
        parallel=True,
        capture_key="all",
    )
    done = run(tree)
    assert texts(done) == ["before", "a!1", "c!3"]
    assert list(done.outputs.items()) == [
        ("old", 1),
        ("one", "a!1"),
        ("two", "d!1"),
        ("all", "c!3"),
    ]


def test_last_response_of_nothing_names_the_node_that_asked() -> None:
    """Where no response was kept, the error comes from the block whose mode wants one."""
    tree = Block([Block([Step("a", merge="none")], merge="last_response", name="asks")])
    with pytest.raises(MergeError, match=NO_RESPONSE) as caught:
        run(tree)
    assert vars(caught.value)["pipeline_path"] == "pipeline/asks"
    assert vars(caught.value)["pipeline_node_type"] == "block"
    assert vars(caught.value)["pipeline_node_name"] == "asks"


def test_a_capture_of_nothing_names_the_node_that_asked() -> None:
    """Where no response was kept, a capture is an error, whatever the mode."""
    tree = Block([Block([], capture_key="k", merge="none")])
    with pytest.raises(MergeError, match="capture_key='k', but no assistant output") as caught:
        run(tree)
    assert vars(caught.value)["pipeline_path"] == "pipeline/block_01"


@pytest.mark.parametrize("parallel", [False, True])
def test_an_error_names_the_innermost_node(parallel: bool) -> None:  # noqa: FBT001
    """An error keeps its type and carries path, kind, name and a note of the step it came from."""
    tree = Block([Step("a"), Block([Step("b", name="deep")], parallel=parallel)], name="run")
    with pytest.raises(KeyError) as caught:
        run(tree, Echo(broken="run/block_02/deep"))
    assert vars(caught.value)["pipeline_path"] == "run/block_02/deep"
    assert vars(caught.value)["pipeline_node_type"] == "step"
    assert vars(caught.value)["pipeline_node_name"] == "deep"
    [note] = caught.value.__notes__
    assert note.startswith(f"at run/block_02/deep (step), {__file__}:")


def test_locate_node_takes_the_name_from_the_path() -> None:
    """A node without a name of its own is named by position."""
    error = ValueError("x")
    locate_node(error, Step("a"), "run/step_01")
    assert vars(error)["pipeline_node_name"] == "step_01"


def test_a_part_keeps_its_path() -> None:
    """A part that is folded alone tells the engine the paths of the whole."""
    engine = Echo()
    part = Block([Step("a")])
    drive(evaluate(part, "run/stage", State(), onto=State(), engine=engine))
    assert list(engine.seen) == ["run/stage/step_01"]


# The laws, on random trees


def steps(modes: Sequence[str] = MERGE_MODES) -> st.SearchStrategy[Node]:
    """Return steps of any merge mode."""
    make: Callable[..., Node] = Step
    return st.builds(make, st.sampled_from("abc"), merge=st.sampled_from(modes))


def _blocks(nodes: st.SearchStrategy[Node]) -> st.SearchStrategy[Node]:
    make: Callable[..., Node] = Block
    modes = st.sampled_from(["all_messages", "none"])
    return st.builds(make, st.lists(nodes, max_size=3), merge=modes, parallel=st.booleans())


forests = st.lists(st.recursive(steps(), _blocks, max_leaves=6), max_size=4)


@UNHURRIED
@given(forests, st.sampled_from(["a", "b"]))
def test_a_block_that_keeps_everything_can_be_dissolved(nodes: list[Node], last: str) -> None:
    """`Block(all, [Block(all, xs), y])` gives what `Block(all, [*xs, y])` gives."""
    nested = Block([Block(nodes), Step(last)])
    assert run(nested) == run(Block([*nodes, Step(last)]))


@UNHURRIED
@given(forests)
def test_the_old_parent_is_a_prefix_of_the_new(nodes: list[Node]) -> None:
    """No tree takes out or changes what was there before it ran."""
    done = run(Block(nodes))
    assert done.messages[:1] == BASE.messages
    assert done.outputs.items() >= BASE.outputs.items()


@UNHURRIED
@given(forests, forests)
def test_a_node_that_keeps_nothing_changes_no_other_call(
    before: list[Node], after: list[Node]
) -> None:
    """Taking out an uncaptured node with mode none leaves every other view as it was."""
    named = [Block([node], name=f"n{number}") for number, node in enumerate([*before, *after])]
    extra = Step("x", merge="none", name="extra")
    cut = len(before)
    engine, less = Echo(), Echo()
    assert run(Block([*named[:cut], extra, *named[cut:]]), engine) == run(Block(named), less)
    del engine.seen["pipeline/extra"]
    assert engine.seen == less.seen


@UNHURRIED
@given(forests)
def test_base_and_what_was_made_are_apart(nodes: list[Node]) -> None:
    """Folding onto nothing gives what the tree adds to the base."""
    tree = Block(nodes)
    alone = drive(evaluate(tree, "pipeline", BASE, onto=State(), engine=Echo()))
    assert run(tree) == BASE + alone


# Driving without a loop


async def _three() -> int:
    return 3


def test_drive_gives_the_result() -> None:
    """A coroutine that never waits is run to its end without an event loop."""
    assert drive(_three()) == 3


def test_drive_lets_errors_through() -> None:
    """An error is raised as it is."""

    async def fail() -> None:
        raise KeyError("k")

    with pytest.raises(KeyError, match="k"):
        drive(fail())


def test_drive_refuses_work_that_waits() -> None:
    """Work that needs an event loop is closed and refused, with the way out."""
    closed: list[bool] = []

    async def wait() -> None:
        try:
            await asyncio.sleep(0)
        finally:
            closed.append(True)

    with pytest.raises(RuntimeError, match="waits for an event loop; await it"):
        drive(wait())
    assert closed == [True]


def test_messages_are_the_engines_own() -> None:
    """The fold hands messages through; it copies and rebuilds none."""
    made = AIMessage("a")

    class Same(Echo):
        async def ask(self, step: Step, path: str, view: Messages) -> Messages:
            messages: list[BaseMessage] = [made]
            return State.of(messages)

    done = run(Block([Block([Step("x")], merge="last_response")]), Same())
    assert done.messages[-1] is made
