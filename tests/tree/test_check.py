"""The static checks: every fault of a whole tree, before a call is paid."""

from __future__ import annotations

from typing import Any

import pytest
from langchain_core.messages import AIMessage, HumanMessage

from mergepoint.core.errors import Fault, TreeError
from mergepoint.engine.compiler import compile_graph
from mergepoint.engine.interpreter import interpret
from mergepoint.testing.scripted_model import ScriptedModel
from mergepoint.tree.leaves import Call, Step
from mergepoint.tree.nodes import Block, Gate, Input, Loop, Node
from mergepoint.tree.prompts import CallContext, PromptContext, Template, reads
from mergepoint.tree.validate import as_tree, can_respond, check, checked, inputs_of, needs_of


def anything(ctx: PromptContext) -> str:
    """Return a prompt that declares nothing."""
    return "x"


def problems(tree: Node) -> list[str]:
    """Return the faults of a tree as text."""
    return [str(fault) for fault in check(tree)]


def test_a_sound_tree_has_no_faults() -> None:
    """A tree that reads inputs, earlier captures and optional keys can run."""
    tree = Block(
        [
            Step(Template("{{ topic }} {{ tone }}"), capture_key="draft"),
            Block(
                [Step(Template("{{ draft }}"), merge="none"), Step(anything, capture_key="inner")],
                merge="last_response",
                capture_key="part",
            ),
            Step(
                Template("{{ inner }} {{ part }} {{ later }}", defaults={"later": "-"}),
                system=Template("{{ draft }}"),
            ),
            Step("x", capture_key="later"),
        ],
        inputs=["topic", ("tone", "dry")],
        merge="last_response",
    )
    assert check(tree) == []
    assert checked(tree) is tree


def test_a_lone_step_is_a_tree() -> None:
    """A step can be checked without a block around it."""
    assert check(Step("x")) == []
    assert inputs_of(Step("x")) == ()


def test_the_inputs_of_a_lone_step_are_the_keys_that_it_reads() -> None:
    """A step or call without a block around it can declare none; a gate or loop declares none."""
    step = Step(Template("{{ a }} {{ b }}", defaults={"b": "c"}), system=Template("{{ d }}"))
    found = (Input("a"), Input("b", default="c"), Input("d"))
    assert (check(step), inputs_of(step)) == ([], found)
    call = Call(lambda x: x, args={"x": Template("{{ a }}")})
    assert (check(call), inputs_of(call)) == ([], (Input("a"),))
    assert problems(Gate(step))[0].startswith("gate_01/step_01: reads 'a', which no input")


def test_inputs_below_the_root() -> None:
    """Inputs belong to the root alone."""
    assert problems(Block([Block([], inputs=["a"])])) == [
        "pipeline/block_01: inputs belong on the root; move them there"
    ]


def test_inputs_below_the_root_are_not_known() -> None:
    """A read of such an input is a fault of its own."""
    tree = Block([Block([Step(Template("{{ a }}"))], inputs=["a"])])
    assert [fault.path for fault in check(tree)] == [
        "pipeline/block_01",
        "pipeline/block_01/step_01",
    ]


def test_an_input_given_twice() -> None:
    """Two inputs of one name are a fault, wherever they stand."""
    assert problems(Block([], inputs=["a", "b", ("a", "x")])) == [
        "pipeline: input 'a' is declared twice"
    ]


def test_a_capture_under_an_inputs_name() -> None:
    """A key is an input or an output, never both."""
    assert problems(Block([Step("x", capture_key="a")], inputs=["a"])) == [
        "pipeline/step_01: capture_key 'a' is an input's name; rename one"
    ]


def test_a_key_with_two_writers() -> None:
    """One key has one writer; the fault names both paths and the way out."""
    tree = Block([Step("x", capture_key="a"), Block([Step("y", capture_key="a", name="again")])])
    (fault,) = check(tree)
    assert fault.path == "pipeline/block_02/again"
    assert "'a' is written by pipeline/step_01 too" in fault.problem
    assert "build the part with a factory that scopes its keys" in fault.problem


def test_a_third_writer_is_held_against_the_first() -> None:
    """Each further writer of a key is a fault."""
    tree = Block([Step(text, capture_key="a") for text in "xyz"])
    assert [fault.path for fault in check(tree)] == ["pipeline/step_02", "pipeline/step_03"]
    assert all("pipeline/step_01" in fault.problem for fault in check(tree))


def test_a_blocks_capture_counts_as_a_writer() -> None:
    """A block and a step inside it cannot write the same key."""
    tree = Block([Block([Step("x", capture_key="a")], capture_key="a")])
    assert [fault.path for fault in check(tree)] == ["pipeline/block_01/step_01"]


@pytest.mark.parametrize(
    "nodes",
    [[], [Step("x", merge="none")], [Block([Step("x")], merge="none"), Block([])]],
)
def test_last_response_that_can_never_be(nodes: list[Node]) -> None:
    """A block whose children keep no response cannot give its last one."""
    assert problems(Block(nodes, merge="last_response")) == [
        (
            "pipeline: last_response requested but no assistant output exists: no child keeps one; "
            "let one merge, or use merge='none'"
        )
    ]


def test_a_capture_that_can_never_be() -> None:
    """A block without a response has nothing to capture, whatever its merge mode."""
    tree = Block([Block([Step("x", merge="none")], capture_key="a", merge="none")])
    assert problems(tree) == [
        (
            "pipeline/block_01: capture_key='a' asks for a last response, but no assistant output "
            "exists: no child keeps one"
        )
    ]


def test_a_step_that_merges_nothing_can_still_capture() -> None:
    """A step has a response, whatever it lets out."""
    assert check(Block([Step("x", merge="none", capture_key="a")])) == []


@pytest.mark.parametrize(
    ("node", "expected"),
    [
        (Step("x"), True),
        (Step("x", merge="last_response"), True),
        (Step("x", merge="none"), False),
        (Block([]), False),
        (Block([Step("x")]), True),
        (Block([Step("x")], merge="none"), False),
        (Block([Step("x", merge="none")]), False),
        (Block([Block([Step("x", merge="none")]), Block([Step("x")])]), True),
    ],
)
def test_can_respond(node: Node, expected: bool) -> None:  # noqa: FBT001
    """A node lets a response out if it makes one and its mode keeps messages."""
    assert can_respond(node) is expected


def test_an_unknown_key() -> None:
    """A read of what nobody writes names near keys and all known ones."""
    tree = Block(
        [Step("x", capture_key="draft"), Step(Template("{{ drfat }}"))], inputs=["topic", "by"]
    )
    assert problems(tree) == [
        (
            "pipeline/step_02: reads 'drfat', which no input and no capture_key provides "
            "(did you mean 'draft'?); known are: by, topic, draft"
        )
    ]


def test_a_key_that_is_written_only_later() -> None:
    """A reader before its writer is told where the writer is."""
    tree = Block([Step(Template("{{ a }}")), Step("x", capture_key="a")])
    assert problems(tree) == [
        (
            "pipeline/step_01: reads 'a', which is written only later or in parallel, at "
            "pipeline/step_02; move the reader after it, or give a default"
        )
    ]


def test_a_step_does_not_read_its_own_capture() -> None:
    """A step's response is not there when its prompt is made."""
    step = Step(Template("{{ a }}"), capture_key="a")
    assert "written only later" in problems(Block([step]))[0]
    assert problems(step) == ["step_01: capture_key 'a' is an input's name; rename one"]


def test_a_block_captures_at_its_exit() -> None:
    """What a block captures is not there inside it."""
    tree = Block([Block([Step("x"), Step(Template("{{ a }}"))], capture_key="a")])
    assert [fault.path for fault in check(tree)] == ["pipeline/block_01/step_02"]


def test_parallel_children_do_not_see_each_other() -> None:
    """Every child of a parallel block reads the state at entry."""
    tree = Block(
        [
            Step("x", capture_key="a"),
            Block(
                [
                    Step(Template("{{ a }}"), capture_key="b"),
                    Block([Step(Template("{{ a }}")), Step(Template("{{ b }}"))]),
                ],
                parallel=True,
            ),
            Step(Template("{{ b }}")),
        ]
    )
    assert [fault.path for fault in check(tree)] == ["pipeline/block_02/block_02/step_02"]


def test_a_system_template_is_checked() -> None:
    """What a system message reads is held to the same rule."""
    tree = Block([Step("x", system=Template("{{ a }}"))])
    assert [fault.path for fault in check(tree)] == ["pipeline/step_01"]


def test_declared_reads_of_a_function_are_checked() -> None:
    """What `@reads` declares is held to the same rule; its optional keys are not."""

    @reads("a", defaults={"b": ""})
    def prompt(ctx: PromptContext) -> str:
        return "x"

    (fault,) = check(Block([Step(prompt)]))
    assert "reads 'a'" in fault.problem


def test_no_claim_is_made_about_an_undeclared_function() -> None:
    """A function may read anything, but its step's system message is checked all the same."""
    assert check(Block([Step(anything)])) == []
    (fault,) = check(Block([Step(anything, system=Template("{{ a }}"))]))
    assert "reads 'a'" in fault.problem


def test_an_unread_capture_is_no_fault() -> None:
    """Captures that nobody reads are the run's results."""
    assert check(Block([Step("x", capture_key="a")])) == []


def test_checked_lists_all_faults_in_tree_order() -> None:
    """One error holds every fault, parents first, and has the path of the first."""
    tree = Block(
        [
            Block([Step(Template("{{ z }}"), name="one")], inputs=["q"]),
            Step("x", capture_key="a", name="two"),
            Block([Step("y", merge="none")], capture_key="a", merge="last_response"),
            Step(Template("{{ y }}"), system=Template("{{ x }}"), name="four"),
        ],
        inputs=["a", "a"],
    )
    with pytest.raises(TreeError) as caught:
        checked(tree)
    error = caught.value
    assert [fault.path for fault in error.faults] == [
        "pipeline",
        "pipeline/block_01",
        "pipeline/block_01/one",
        "pipeline/two",
        "pipeline/block_03",
        "pipeline/block_03",
        "pipeline/block_03",
        "pipeline/block_03",
        "pipeline/four",
        "pipeline/four",
    ]
    assert error.pipeline_path == "pipeline"
    assert all(str(fault) in str(error) for fault in error.faults)


def test_inputs_of_a_tree() -> None:
    """Inputs are the root block's; a lone step has none."""
    assert inputs_of(Block([], inputs=["a", ("b", "x")])) == (Input("a"), Input("b", default="x"))
    assert inputs_of(Step("x")) == ()


PARTED = Block(
    [
        Step("x", capture_key="before"),
        Block(
            [
                Step(Template("{{ topic }} {{ before }}"), capture_key="own"),
                Block([Step(Template("{{ own }} {{ before }} {{ opt }}", defaults={"opt": ""}))]),
                Step(anything, system=Template("{{ other }}")),
            ],
            name="part",
        ),
        Step("x", capture_key="other"),
    ],
    inputs=["topic", ("tone", "dry")],
)


def test_needs_of_the_root_are_its_inputs() -> None:
    """The whole tree needs what it declares."""
    assert needs_of(PARTED, "pipeline") == (Input("topic"), Input("tone", default="dry"))


def test_needs_of_a_part() -> None:
    """A part also needs each key that it reads, does not write, and must have, once."""
    assert needs_of(PARTED, "pipeline/part") == (
        Input("topic"),
        Input("tone", default="dry"),
        Input("before"),
        Input("other"),
    )


def test_needs_of_a_part_that_is_none() -> None:
    """A path that is none is an error."""
    with pytest.raises(LookupError, match="no node at 'part'"):
        needs_of(PARTED, "part")


@pytest.mark.parametrize("swapped", [False, True])
def test_a_required_read_is_found_beside_an_optional_one(swapped: bool) -> None:  # noqa: FBT001
    """A default in the system message does not excuse the prompt, nor the other way round."""
    texts: list[Any] = [Template("{{ a }}"), Template("{{ a }}", defaults={"a": "x"})]
    prompt, system = reversed(texts) if swapped else texts
    assert check(Block([Step(prompt, system=system)])) != []


def test_a_fault_says_where_and_what() -> None:
    """A fault is a value with path and problem."""
    tree = Block([Block([], inputs=["a"], name="b")], name="run")
    assert check(tree) == [Fault("run/b", "inputs belong on the root; move them there")]


@pytest.mark.parametrize("tree", [[Step("x")], "x", None, Step])
def test_what_is_no_tree_is_refused(tree: Any) -> None:
    """A list, a text or a class is no tree; the fault says what to do."""
    with pytest.raises(
        TreeError, match=r"a tree is a node, such as a Step or a Block, not .*; wrap nodes in Block"
    ):
        checked(tree)


def test_a_tree_is_given_back() -> None:
    """A step or block is a tree already."""
    step, block = Step("x"), Block([])
    assert as_tree(step) is step
    assert as_tree(block) is block


def gate(node: Node, **fields: Any) -> Gate:
    """Return a gate that captures what was decided."""
    return Gate(node, capture_key="review", **fields)


def test_a_loop_reads_what_an_iteration_before_wrote_only_with_a_default() -> None:
    """In the first iteration nothing is there yet, so a read before the write needs a default."""
    strict = Step(Template("{{ draft }}"), name="better", capture_key="draft")
    tree = Loop([gate(strict)], until="review", name="loop")
    (problem,) = problems(tree)
    assert problem.startswith(
        "loop/iteration_01/gate_01/better: reads 'draft', which is written only later or in "
        "parallel, at loop/iteration_01/gate_01/better; "
    )
    optional = Step(Template("{{ draft }}", defaults={"draft": "-"}), capture_key="draft")
    assert problems(Loop([gate(optional)], until="review")) == []


def test_what_a_loop_or_gate_wrote_is_there_after_it() -> None:
    """Captures inside of both, and the gate's own, can be read behind them."""
    plan = Step("x", capture_key="plan")
    tree = Block([Loop([gate(plan)], until="review"), Step(Template("{{ plan }} {{ review }}"))])
    assert problems(tree) == []


def test_until_names_a_key_that_the_loop_captures() -> None:
    """A key that only others write would be waited for in vain; near words are suggested."""
    tree = Block(
        [Step("x", capture_key="ok"), Loop([gate(Step("y"))], until="reviev", name="loop")]
    )
    assert problems(tree) == [
        (
            "pipeline/loop: until='reviev', which nothing in the loop captures (did you mean "
            "'review'?); its captures are: review"
        )
    ]
    assert problems(Loop([Step("y")], until="ok"))[0].endswith("its captures are: none")


def test_declared_reads_of_a_call_are_checked() -> None:
    """The places in its arguments and what its function declares must be there."""

    @reads("other")
    def look(ctx: CallContext) -> None:
        """Read what it declares."""

    tree = Block(
        [
            Call(len, args={"value": Template("{{ text }}")}, name="size"),
            Call(look, name="look"),
            Call(lambda ctx: ctx.outputs, name="free"),
        ]
    )
    assert [problem.split("; ")[0] for problem in problems(tree)] == [
        "pipeline/size: reads 'text', which no input and no capture_key provides",
        "pipeline/look: reads 'other', which no input and no capture_key provides",
    ]


def test_last_response_over_a_call_is_never_judged() -> None:
    """What a call makes is known when it was run; one that merges nothing makes nothing."""
    speaking = Call(lambda ctx: "x", merge="all_messages")
    assert problems(Block([speaking], merge="last_response", capture_key="k")) == []
    assert problems(Call(lambda ctx: "x", merge="last_response")) == []
    silent = Block([Call(lambda ctx: "x")], merge="last_response")
    assert problems(silent)[0].startswith("pipeline: last_response requested but no assistant")


def test_a_gate_captures_without_a_response() -> None:
    """What was decided is captured whatever the gate lets out; last_response still needs one."""
    none = Step("x", merge="none")
    assert problems(gate(none)) == []
    (problem,) = problems(gate(none, merge="last_response"))
    assert problem.startswith("gate_01: last_response requested but no assistant output exists")


def test_keys_in_loops_and_gates_have_one_writer() -> None:
    """A gate and what it wraps cannot capture under one key."""
    assert problems(gate(Step("x", capture_key="review")))[0].startswith(
        "gate_01/step_01: capture_key 'review' is written by gate_01 too"
    )


def test_needs_of_an_iteration() -> None:
    """A part of a loop that runs alone is given what the rest of the tree writes."""
    body: list[Node] = [Step(Template("{{ topic }} {{ plan }}"), name="draft"), gate(Step("y"))]
    loop = Loop(body, until="review", name="loop")
    tree = Block([Step("x", capture_key="plan"), loop], inputs=["topic"], name="t")
    assert needs_of(tree, "t/loop/iteration_01/draft") == (Input("topic"), Input("plan"))


def gated(**about: Any) -> Gate:
    """Return a gate around a step that captures a plan."""
    step = Step("Plan.", name="plan", capture_key="plan", merge="last_response")
    return Gate(step, name="gate", **about)


READER = Step(Template("{{ plan }}"), name="reader")
DROPPED = (
    "p/reader: reads 'plan', written at p/gate/plan, which a rejection at p/gate drops; give a "
    "default, let a rejection end the run (on_reject='stop'), or try again in a Loop until the "
    "gate approves"
)


def test_a_capture_that_a_rejection_drops_is_no_capture_to_rely_on() -> None:
    """A later reader of what a gate holds back is a fault, with the gate and three ways out."""
    assert problems(Block([gated(), READER], name="p")) == [DROPPED]


@pytest.mark.parametrize(
    "tree",
    [
        Block([gated(on_reject="stop"), READER], name="p"),
        Block([gated(), Step(Template("{{ plan }}", defaults={"plan": "-"}))], name="p"),
        Block([Loop([gated(capture_key="said")], until="said", name="tries"), READER], name="p"),
        Block([Loop([gated()], until=lambda ctx: True, name="tries"), READER], name="p"),
        Block([gated(), Loop([READER], until=lambda ctx: True, may_skip=True)], name="p"),
    ],
    ids=["stop", "default", "loop", "function", "skipped"],
)
def test_each_way_out_of_a_dropped_capture_is_sound(tree: Node) -> None:
    """A stop, a default, and a loop that ends with an approval leave nothing to report."""
    assert problems(tree) == []


def test_a_loop_that_goes_on_without_an_approval_may_leave_a_capture_out() -> None:
    """With on_exhausted="keep" the last iteration may have been rejected too."""
    loop = Loop([gated(capture_key="said")], until="said", name="gate", on_exhausted="keep")
    (problem,) = problems(Block([loop, READER], name="p"))
    assert "which a rejection at p/gate/iteration_01/gate drops" in problem


def test_what_ends_a_run_at_a_gate_is_checked() -> None:
    """A word that on_reject does not know is a fault of the gate, with the nearest one."""
    with pytest.raises(TreeError, match=r"on_reject='stopp'.*'stop'"):
        gated(on_reject="stopp")


def test_places_in_plain_text_are_faults_found_at_once() -> None:
    """Prompt, system and examples that would be sent with their braces, each with its way out."""
    tree = Block(
        [
            Step("Write about {{ topic }} and {{topic}}.", name="a", system="Be {{ tone }}."),
            Block(
                [Step("Say it.", name="b", examples=[("Of {{ x }}.", "No."), ("A.", "{{ y }}")])]
            ),
            Step("Not { a } {{ b c }} {{}} place.", name="c"),
        ],
        inputs=("topic",),
    )
    found = [(fault.path, fault.problem) for fault in check(tree)]
    assert [path for path, _ in found] == ["pipeline/a", "pipeline/a", "pipeline/block_02/b"]
    prompt, system, examples = (problem for _, problem in found)
    assert "the prompt is plain text, but contains {{ topic }}: make it a Template" in prompt
    assert "prompt: {template: ...}" in prompt
    assert "the system is plain text, but contains {{ tone }}" in system
    assert "the examples contain {{ x }}, {{ y }}" in examples


def test_the_ways_out_of_places_in_plain_text_work() -> None:
    """Templates, a function that returns the braces, and messages as examples are no faults."""
    tree = Block(
        [
            Step(Template("Write about {{ topic }}."), system=Template("Be {{ topic }}.")),
            Step(lambda ctx: "{{ topic }}", examples=[HumanMessage("{{ x }}"), AIMessage("y")]),
            Step("A.", system=Template("{{ text }}", defaults={"text": "Send {{ braces }}."})),
        ],
        inputs=("topic",),
    )
    assert check(tree) == []
    model = ScriptedModel(default="x")
    interpret(tree, model=model, inputs={"topic": "rain"})
    assert model.calls[1].messages[-1].text == "{{ topic }}"
    assert model.calls[2].messages[0].text == "Send {{ braces }}."


@pytest.mark.parametrize("form", ["subgraphs", "fused"])
def test_no_call_is_paid_for_a_place_in_plain_text(form: Any) -> None:
    """The fault is raised before the first call."""
    model = ScriptedModel(default="x")
    tree = Block([Step("A."), Step("{{ topic }}")], inputs=("topic",))
    with pytest.raises(TreeError, match="make it a Template"):
        compile_graph(tree, model=model, form=form)
    with pytest.raises(TreeError, match="make it a Template"):
        interpret(tree, model=model, inputs={"topic": "rain"})
    assert model.calls == []
